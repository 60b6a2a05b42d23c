"""The tables of django-celery-beat as a source: each periodic task becomes a schedule.

Their columns are those of django-celery-beat 2.1 and later (``django_celery_beat.models``). A body
is a message of Celery's protocol 2 (the page "Message Protocol" of its documentation), as workers
with a broker of :mod:`dwell.celery` take it; that module gives each message the id of its task.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from dwell.calendar.epoch import from_ms, to_ms
from dwell.clock import Clock
from dwell.errors import InvalidBody, InvalidInput, InvalidSchedule
from dwell.given import values
from dwell.message import DEFAULT_PRIORITY
from dwell.queue.schedules.words import made
from dwell.takeover.database import database_of, tables_of
from dwell.takeover.entries import Entry, moment_of, name_for, options_of

#: The prefix of such addresses.
PREFIX = "beat+"
_KIND = "django-celery-beat 2"
#: Celery's own queue for tasks that name none.
_QUEUE = "celery"
_MAX_PRIORITY = 255
#: How far back beat begins with a task that has a start and has not run.
_LONG_AGO = timedelta(days=365 * 30)
_MILLISECOND, _ALMOST = timedelta(milliseconds=1), timedelta(microseconds=999)
_PERIODS = {"days": 86_400e6, "hours": 3_600e6, "minutes": 60e6, "seconds": 1e6, "microseconds": 1}
#: Celery reads the first three letters of a name.
_NAME = re.compile(r"([A-Za-z]{3})[A-Za-z]+")

#: Times are read as text, because databases have some that Python has not.
_SELECT = """
SELECT t.id, t.name, t.task, t.args, t.kwargs, t.queue, t.exchange, t.routing_key, t.headers,
    t.priority, CAST(t.expires AS text), t.expire_seconds, t.one_off, CAST(t.start_time AS text),
    t.enabled, CAST(t.last_run_at AS text), t.total_run_count, CAST(t.date_changed AS text),
    c.minute, c.hour, c.day_of_month, c.month_of_year, c.day_of_week, c.timezone,
    i.every, i.period, CAST(k.clocked_time AS text), s.event
FROM django_celery_beat_periodictask t
LEFT JOIN django_celery_beat_crontabschedule c ON c.id = t.crontab_id
LEFT JOIN django_celery_beat_intervalschedule i ON i.id = t.interval_id
LEFT JOIN django_celery_beat_clockedschedule k ON k.id = t.clocked_id
LEFT JOIN django_celery_beat_solarschedule s ON s.id = t.solar_id
ORDER BY t.id"""


class _Task(msgspec.Struct):
    """A row of the query, in the order of its columns."""

    id: int
    name: str
    task: str
    args: str | None
    kwargs: str | None
    queue: str | None
    exchange: str | None
    routing_key: str | None
    headers: str | None
    priority: int | None
    expires: str | None
    expire_seconds: int | None
    one_off: bool
    start_time: str | None
    enabled: bool
    last_run_at: str | None
    total_run_count: int
    date_changed: str
    minute: str | None
    hour: str | None
    day_of_month: str | None
    month_of_year: str | None
    day_of_week: str | None
    timezone: str | None
    every: int | None
    period: str | None
    clocked_time: str | None
    event: str | None


class Beat:
    """Periodic tasks, which go to the topic of their queue, or ``topic``."""

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        rest, options = options_of(url.removeprefix(PREFIX), ("prefix",))
        self._url, self._clock = rest, clock
        self._prefix = options.get("prefix", "beat")
        self._topic = None if topic is None else values.topic(topic)

    def entries(self) -> Iterator[Entry]:
        """Yield an entry for each periodic task; raises InvalidUrl or ServerUnreachable."""
        database = database_of(self._url)
        with tables_of(database, _SELECT, _KIND):
            for row in database.rows(_SELECT):
                where = f"periodic task {row[0]}"
                try:
                    fields = dict(zip(_Task.__struct_fields__, row, strict=True))
                    yield self._entry(where, msgspec.convert(fields, _Task, strict=False))
                except msgspec.ValidationError as error:
                    yield Entry(where, reason=f"row: {error}")
                except (InvalidInput, OverflowError) as error:
                    yield Entry(where, str(row[1]), reason=str(error))

    def _entry(self, where: str, task: _Task) -> Entry:
        """Return the entry of a task; raises InvalidInput."""
        topic = self._topic or values.topic(task.queue or _QUEUE, "queue")
        name = name_for(self._prefix, task.name)
        entry = Entry(where, name, topic, _body(task), is_paused=not task.enabled)
        priority = DEFAULT_PRIORITY - min(max(task.priority or 0, 0), _MAX_PRIORITY)
        now_ms = self._clock.now_ms()
        if task.clocked_time is not None or task.one_off:
            return _once(entry, task, priority, now_ms)
        words = {**_times(task), "priority": priority}
        if task.expires is None and task.expire_seconds:
            words["ttl"] = task.expire_seconds
        is_anchored = task.every is not None
        return entry._replace(words=words, is_anchored=is_anchored, since_ms=_ran_ms(task))


def _times(task: _Task) -> dict[str, object]:
    """Return the words that say when a task is run; raises InvalidSchedule."""
    if task.event is not None:
        told = "a schedule of another kind, as none here follows the sun"
        raise InvalidSchedule(f"solar: got {task.event!r:.40}, expected {told}")
    words: dict[str, object] = {}
    if task.expires is not None:
        # Beat runs nothing from then on.
        words["end"] = moment_of(task.expires, "expires") - _MILLISECOND
    start = _start(task)
    if task.every is not None:
        if task.period not in _PERIODS:
            allowed = f"one of {', '.join(_PERIODS)}"
            raise InvalidSchedule(f"period: got {task.period!r:.40}, expected {allowed}")
        ran = from_ms(_ran_ms(task))
        every = timedelta(microseconds=task.every * _PERIODS[task.period])
        # A start only holds back the next run, from which beat then counts.
        is_held = start is not None and ran + every < start
        return {**words, "every": every, "start": start if is_held else ran}
    if task.minute is None:
        raise InvalidSchedule("schedule: got none, expected crontab, interval or clocked")
    months, days = task.month_of_year or "*", task.day_of_week or "*"
    fields = [task.minute, task.hour or "*", task.day_of_month or "*"]
    fields += [_NAME.sub(r"\1", text) for text in (months, days)]
    line = " ".join("".join(field.split()) for field in fields)
    words |= {"cron": line, "dialect": "celery", "zone": task.timezone or "UTC"}
    return words if start is None else {**words, "start": start}


def _once(entry: Entry, task: _Task, priority: int, now_ms: int) -> Entry:
    """Return the entry of a task that is run once; raises InvalidInput.

    Beat disables such a task after its run, and then no field tells that it was run.
    """
    if task.total_run_count:
        return entry._replace(reason="is run once, and was", is_over=True)
    due_ms = _first_ms(entry, task)
    if entry.is_paused and task.clocked_time is not None and due_ms > now_ms:
        raise InvalidSchedule("enabled: got False, and a single message cannot be paused")
    if entry.is_paused:
        return entry._replace(reason="is disabled, as after its only run", is_over=True)
    words: dict[str, object] = {"priority": priority}
    # What is overdue is run now. Beat reads 0 seconds as none.
    at_ms = max(due_ms, now_ms)
    if task.expires is not None:
        words["expires"] = expires_ms = to_ms(moment_of(task.expires, "expires"))
        if expires_ms <= at_ms:
            return entry._replace(reason="expires before it is run", is_over=True)
    elif task.expire_seconds:
        words["expires"] = at_ms + task.expire_seconds * 1000
    return entry._replace(due_ms=due_ms, words=words)


def _first_ms(entry: Entry, task: _Task) -> int:
    """Return when beat runs a task next; raises InvalidSchedule."""
    start = _start(task)
    if task.clocked_time is not None:
        due_ms = to_ms(moment_of(task.clocked_time, "clocked_time") + _ALMOST)
        return due_ms if start is None else max(due_ms, to_ms(start))
    words = {word: value for word, value in _times(task).items() if word != "end"}
    since_ms = _ran_ms(task)
    schedule = made(entry.name, entry.topic, b"", words, since_ms)
    found = schedule.times.after(since_ms)
    if found is None:
        raise InvalidSchedule(f"schedule: never fires after {from_ms(since_ms).isoformat()}")
    return found


def _start(task: _Task) -> datetime | None:
    """Return the first moment at which beat may run a task; raises InvalidSchedule."""
    if task.start_time is None:
        return None
    return from_ms(to_ms(moment_of(task.start_time, "start_time") + _ALMOST))


def _ran_ms(task: _Task) -> int:
    """Return when a task ran last by what beat assumes; raises InvalidSchedule."""
    if task.last_run_at is not None:
        return to_ms(moment_of(task.last_run_at, "last_run_at"))
    changed = moment_of(task.date_changed, "date_changed")
    return to_ms(changed if task.start_time is None else changed - _LONG_AGO)


def _body(task: _Task) -> bytes:
    """Return the message of a task, without its id; raises InvalidInput."""
    if task.exchange or task.routing_key:
        raise InvalidInput("exchange, routing_key: got one, expected a queue alone")
    args = _json(task.args or "[]", list, "args")
    kwargs = _json(task.kwargs or "{}", dict, "kwargs")
    own = _json(task.headers or "{}", dict, "headers")
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    expires = task.expires and moment_of(task.expires, "expires").isoformat()
    headers = {
        **own,
        "periodic_task_name": task.name,
        "lang": "py",
        "task": task.task,
        "id": None,
        "root_id": None,
        "parent_id": None,
        "shadow": None,
        "eta": None,
        "expires": expires,
        "group": None,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": repr(args)[:1024],
        "kwargsrepr": repr(kwargs)[:1024],
        "origin": "dwell takeover",
        "ignore_result": False,
    }
    queue = task.queue or _QUEUE
    message = {
        "body": b64encode(values.body([args, kwargs, embed])).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_mode": 2,
            "body_encoding": "base64",
            "priority": task.priority or 0,
        },
    }
    return values.body(message)


def _json(text: str, kind: type, field: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise InvalidBody(f"{field}: got {text!r:.80}, expected JSON of a {kind.__name__}")
    return value
