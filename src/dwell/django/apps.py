"""The app that brings ``manage.py dwell_worker``."""

from django.apps import AppConfig


class DwellConfig(AppConfig):
    """Dwell in a project of Django."""

    name = "dwell.django"
    label = "dwell"
    verbose_name = "Dwell"
