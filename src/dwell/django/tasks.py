"""The tasks of Django 6, or of the package django-tasks for earlier releases."""

import django

if django.VERSION >= (6, 0):
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json


def task_backend(alias: str) -> "BaseTaskBackend":
    """Return the backend that the settings have under a name."""
    if django.VERSION >= (6, 0):
        from django.tasks import task_backends
    else:
        from django_tasks import task_backends
    return task_backends[alias]


__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backend",
    "task_enqueued",
    "task_finished",
    "task_started",
]
