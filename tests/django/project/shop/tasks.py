"""Tasks that note what they do, and signals that note what was sent."""

import os
import sys
import time

import django

from dwell.django.tasks import task_enqueued, task_finished, task_started

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

_NOTES = os.environ["SITE_NOTES"]


def note(*words, to=_NOTES):
    with open(to, "a") as notes:
        notes.write(" ".join(words) + "\n")


@task
def add(x, y):
    return x + y


@task
async def aadd(x, y):
    return x + y


@task
def fails(text):
    note("fails", text)
    raise ValueError(text)


@task
def exits():
    sys.exit(3)


@task
def hangs():
    while True:
        time.sleep(0.01)


@task
def not_json():
    return object()


@task
def grows(size):
    note("grows")
    return "x" * size


@task(takes_context=True)
def attempts(context, needed):
    """Fail until an attempt, and return its number."""
    if context.attempt < needed:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task(queue_name="mail", priority=5)
def mail(name):
    note("mail", name)


@task
def nested(number):
    return add.enqueue(number, number).id


@task
def slow(name, seconds):
    note("begins", name)
    time.sleep(seconds)
    note("ends", name)


def _noting(name):
    def receive(sender, task_result, **words):
        function = task_result.task.func.__name__
        note(name, sender.__name__, function, task_result.status, to=f"{_NOTES}.signals")

    return receive


_SIGNALS = {
    "task_enqueued": task_enqueued,
    "task_started": task_started,
    "task_finished": task_finished,
}
for _name, _signal in _SIGNALS.items():
    _signal.connect(_noting(_name), weak=False)


def _bad(sender, task_result, **words):
    if "bad receivers" in task_result.args:
        raise RuntimeError("metrics are away")


def connect_bad(*signals):
    for one in signals:
        one.connect(_bad, weak=False)


connect_bad(task_started, task_finished)
