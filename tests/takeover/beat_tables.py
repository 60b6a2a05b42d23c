"""Tables that django-celery-beat makes and fills itself: ``beat_tables.py DATABASE fill``."""

import json
import sys
from datetime import UTC, datetime, timedelta

import django
from celery import Celery
from django.conf import settings
from django.core.management import call_command
from psycopg.conninfo import conninfo_to_dict

LATER = datetime(2060, 7, 1, 9, tzinfo=UTC)
_CRONTABS = {
    "work": ("30", "9", "*", "*", "mon,tuesday,3-5", "Europe/Berlin"),
    "sundays": ("*/20", "8-10", "*", "jan-march", "0", "UTC"),
    "months": ("0", "0", "1,15", "*", "*", "Asia/Tokyo"),
    "wraps": ("5", "22-2", "*", "*", "fri-mon", "America/New_York"),
}
_INTERVALS = {"often": (10, "seconds"), "weekly": (7, "days")}


def configure(url):
    if url.startswith("sqlite"):
        base = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    else:
        names = {"dbname": "NAME", "user": "USER", "host": "HOST", "port": "PORT"}
        base = {names[name]: value for name, value in conninfo_to_dict(url).items()}
        base["ENGINE"] = "django.db.backends.postgresql"
    settings.configure(
        DATABASES={"default": base},
        INSTALLED_APPS=["django_celery_beat"],
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )
    django.setup()
    Celery("site", set_as_current=True).conf.timezone = "UTC"


def fill():
    from django_celery_beat import models

    call_command("migrate", verbosity=0)
    task = models.PeriodicTask.objects.create
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone")
    lines = {
        name: models.CrontabSchedule.objects.create(**dict(zip(names, line, strict=True)))
        for name, line in _CRONTABS.items()
    }
    for name, line in lines.items():
        task(name=name, task="shop.add", crontab=line, args="[40, 2]", queue="mails", priority=3)
    spans = {
        name: models.IntervalSchedule.objects.create(every=every, period=period)
        for name, (every, period) in _INTERVALS.items()
    }
    for name, span in spans.items():
        task(name=name, task="shop.add", interval=span, kwargs='{"x": 1, "y": "\u00e9"}')
    ran = LATER - timedelta(days=365 * 40)
    task(name="ran", task="t", interval=spans["weekly"], last_run_at=ran, total_run_count=9)
    task(name="later", task="t", interval=spans["weekly"], start_time=LATER, expire_seconds=60)
    task(name="until", task="t", crontab=lines["months"], expires=LATER)
    task(name="off", task="t", crontab=lines["months"], enabled=False, headers='{"who": "me"}')
    task(name="odd name/\u00e9", task="t", crontab=lines["months"], description="text")
    clock = models.ClockedSchedule.objects.create(clocked_time=LATER)
    once = {"clocked": clock, "one_off": True}
    task(name="once", task="t", **once, expire_seconds=5, priority=9)
    task(name="once off", task="t", **once, enabled=False)
    done = models.ClockedSchedule.objects.create(clocked_time=ran)
    task(name="once done", task="t", clocked=done, one_off=True, enabled=False)
    task(name="once counted", task="t", clocked=done, one_off=True, total_run_count=1)
    task(name="first of month", task="t", crontab=lines["months"], one_off=True)
    sun = models.SolarSchedule.objects.create(event="sunset", latitude=52.5, longitude=13.4)
    task(name="sun", task="t", solar=sun)
    task(name="routed", task="t", crontab=lines["months"], exchange="e", routing_key="r")
    models.PeriodicTask.objects.filter(name="never").delete()


def moments(begin):
    """Return when beat runs tasks of crontabs after a time, by name."""
    from django_celery_beat import models

    found = {}
    for task in models.PeriodicTask.objects.filter(crontab__isnull=False, name__in=_CRONTABS):
        schedule, at, found[task.name] = task.schedule, begin, []
        for _ in range(8):
            schedule.nowfun = lambda at=at: at
            start, delta, _ = schedule.remaining_delta(at)
            at = (start + delta).astimezone(UTC)
            found[task.name].append(at.isoformat())
    return found


def due():
    """Return the names of the tasks that beat runs as soon as it starts."""
    from celery import current_app
    from django_celery_beat import models
    from django_celery_beat.schedulers import ModelEntry

    tasks = models.PeriodicTask.objects.filter(enabled=True, one_off=False, solar=None)
    return [task.name for task in tasks if ModelEntry(task, app=current_app).is_due().is_due]


def starts():
    """Add tasks with a start, and return when beat runs each of them twice, by name."""
    from django_celery_beat import models

    now = datetime.now(UTC).replace(microsecond=0)
    hour = timedelta(hours=1)
    rules = {
        "every": {"interval": models.IntervalSchedule.objects.create(every=6, period="hours")},
        "rarely": {"interval": models.IntervalSchedule.objects.create(every=99, period="days")},
        "nightly": {"crontab": models.CrontabSchedule.objects.create(minute="7", hour="*/6")},
        "clock": {
            "clocked": models.ClockedSchedule.objects.create(clocked_time=now + 9 * hour),
            "one_off": True,
        },
        "single": {
            "crontab": models.CrontabSchedule.objects.create(minute="7", hour="*/8"),
            "one_off": True,
        },
    }
    ran = {"new": None, "just": now - hour / 60, "past": now - 5 * hour, "old": now - 99 * hour}
    found = {}
    for rule, words in rules.items():
        for when, at in ran.items():
            for hours in (-90, 2, 20, 9000):
                name = f"{rule}-{when}-{hours}"
                # What is due at the start itself, beat may leave out.
                start = (now + hours * hour).replace(second=30)
                task = models.PeriodicTask.objects.create(
                    name=name, task="t", start_time=start, last_run_at=at, **words
                )
                found[name] = _runs(task, now, 1 if "one_off" in words else 2)
    return found


def _runs(task, at, count):
    """Return the first moments from a time on at which beat runs a task."""
    from celery import current_app
    from django_celery_beat.schedulers import ModelEntry

    entry, found = ModelEntry(task, app=current_app), []
    while len(found) < count:
        entry._default_now = entry.schedule.nowfun = lambda at=at: at
        told = entry.is_due()
        if told.is_due:
            found.append(at.isoformat())
            entry.last_run_at = at
        at += timedelta(seconds=max(told.next or 0, 1))
    return found


if __name__ == "__main__":
    configure(sys.argv[1])
    if sys.argv[2] == "fill":
        fill()
    elif sys.argv[2] == "due":
        print(json.dumps(due()))
    elif sys.argv[2] == "starts":
        print(json.dumps(starts()))
    else:
        print(json.dumps(moments(datetime.fromisoformat(sys.argv[2]))))
