"""Django: a backend for its tasks, on any store.

::

    INSTALLED_APPS = [..., "dwell.django"]
    TASKS = {
        "default": {
            "BACKEND": "dwell.django.DwellBackend",
            "OPTIONS": {"url": "http://127.0.0.1:8410"},
        }
    }

``manage.py dwell_worker`` runs the tasks. It works with the tasks of Django 6 and, for earlier
releases, with the package django-tasks.
"""

from dwell.django.backend import DwellBackend
from dwell.django.records import WorkerLost

__all__ = ["DwellBackend", "WorkerLost"]
