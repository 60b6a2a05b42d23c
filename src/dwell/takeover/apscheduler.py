"""The SQL job store of APScheduler 3 as a source: each job becomes a schedule or a message.

A job is a pickle, which is read without running it (:mod:`dwell.takeover.pickled`). Its layout is
that of APScheduler 3.11 (``Job.__getstate__`` and those of triggers and expressions).
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from math import ceil, isfinite
from typing import Any
from zoneinfo import ZoneInfo

from dwell.calendar.epoch import from_ms
from dwell.calendar.translation import translated
from dwell.calendar.zones import zone_of
from dwell.clock import Clock
from dwell.errors import InvalidInput, InvalidSchedule, InvalidUrl
from dwell.given import values
from dwell.message import MAX_BODY_BYTES
from dwell.queue.schedules.words import made
from dwell.takeover.database import database_of, tables_of
from dwell.takeover.entries import Entry, name_for, options_of
from dwell.takeover.pickled import Made, plain, read

#: The prefix of such addresses.
PREFIX = "apscheduler+"
_KIND = "the SQL job store of APScheduler 3"
_TABLE = re.compile(r"\w{1,63}(?:\.\w{1,63})?")
_SELECT = """
SELECT id, next_run_time, CASE WHEN length(job_state) <= {most} THEN job_state END
FROM {table} ORDER BY id"""
_TRIGGERS = "apscheduler.triggers."
_EXPRESSIONS = "apscheduler.triggers.cron.expressions:"
_FIELDS = ("year", "month", "day", "week", "day_of_week", "hour", "minute", "second")
_RANGES = ("RangeExpression", "MonthRangeExpression", "WeekdayRangeExpression")
#: The number of "last" among the positions of a weekday in a month.
_LAST = 5
#: More expressions than a field has values, and more than any number of a trigger.
_MOST_EXPRESSIONS, _MOST = 100, 10**12


class ApScheduler:
    """Jobs in a table, which go to ``topic``, or to the topic ``apscheduler``."""

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        rest, options = options_of(url.removeprefix(PREFIX), ("prefix", "table"))
        table = options.get("table", "apscheduler_jobs")
        if not _TABLE.fullmatch(table):
            raise InvalidUrl(f"table: got {table!r:.80}, expected NAME or SCHEMA.NAME")
        quoted = ".".join(f'"{part}"' for part in table.split("."))
        self._query = _SELECT.format(table=quoted, most=MAX_BODY_BYTES)
        self._url, self._clock = rest, clock
        self._prefix = options.get("prefix", "apscheduler")
        self._topic = "apscheduler" if topic is None else values.topic(topic)

    def entries(self) -> Iterator[Entry]:
        """Yield an entry for each job; raises InvalidUrl or ServerUnreachable."""
        database = database_of(self._url)
        with tables_of(database, self._query, _KIND):
            for id_, next_s, state in database.rows(self._query):
                where = f"job {id_}"
                try:
                    yield from self._entries(where, str(id_), next_s, state)
                except (InvalidInput, OverflowError) as error:
                    yield Entry(where, str(id_), reason=str(error))
                except RecursionError:
                    yield Entry(where, str(id_), reason="job_state: its values are nested too deep")

    def _entries(self, where: str, id_: str, next_s: object, state: object) -> list[Entry]:
        """Return the entries of a job; raises InvalidInput."""
        if not isinstance(state, bytes):
            raise InvalidSchedule(f"job_state: expected bytes, at most {MAX_BODY_BYTES}")
        job = read(state)
        trigger = job.get("trigger") if isinstance(job, dict) else None
        if not isinstance(trigger, Made) or not isinstance(trigger.state, dict):
            raise InvalidSchedule("job_state: expected a job of APScheduler 3 with a trigger")
        body, kind = _body(job, state)
        headers = {"content-type": kind, "apscheduler-id": id_}
        name = name_for(self._prefix, id_)
        entry = Entry(where, name, self._topic, body, {"headers": headers})
        if trigger.of == f"{_TRIGGERS}date:DateTrigger":
            return [self._once(entry, job, next_s)]
        times = _times(trigger)
        words = {**entry.words, **times, **_misfires(job, times.get("jitter"))}
        entry = entry._replace(words=words, is_paused=next_s is None, is_anchored=True)
        if next_s is None:
            return [entry]
        next_ms = _ms(next_s)
        start_ms = _planned_ms(entry, next_ms)
        # It may have been postponed, and an interval counts from there.
        words["start"] = from_ms(next_ms if start_ms is None else start_ms)
        if start_ms is not None:
            return [entry._replace(since_ms=start_ms - 1)]
        # A run that the trigger does not plan is a message of its own.
        own = Entry(where, name_for(self._prefix, f"{id_}@{next_ms}"), self._topic, body)
        return [entry, self._once(own._replace(words={"headers": headers}), job, next_s)]

    def _once(self, entry: Entry, job: Mapping[str, Any], next_s: object) -> Entry:
        """Return the entry of a single run; raises InvalidSchedule."""
        if next_s is None:
            raise InvalidSchedule("next_run_time: got none, and a single message cannot be paused")
        due_ms, grace = _ms(next_s), _grace(job)
        if grace is not None and self._clock.now_ms() - due_ms > grace * 1000:
            return entry._replace(
                reason="was missed there: its misfire_grace_time is over", is_over=True
            )
        return entry._replace(due_ms=due_ms)


def _planned_ms(entry: Entry, next_ms: int) -> int | None:
    """Return the moment of the next run by the trigger, without the jitter that APScheduler added.

    It is the last moment up to then, even if jitter is longer than the time between two: earlier
    moments have run, or are left out there. It is None for a run that was set by hand to another
    time than those of the trigger. Raises InvalidInput.
    """
    if "cron" not in entry.words:
        return next_ms
    schedule = made(entry.name, entry.topic, entry.body, entry.words, next_ms)
    found_ms = schedule.times.before(next_ms)
    is_it = found_ms is not None and next_ms - found_ms <= schedule.jitter_ms
    return found_ms if is_it else None


def _ms(next_s: object) -> int:
    """Return the moment of the next run in epoch milliseconds; raises InvalidSchedule."""
    if not isinstance(next_s, (int, float)) or not isfinite(next_s):
        raise InvalidSchedule(f"next_run_time: got {next_s!r:.40}, expected epoch seconds")
    return ceil(next_s * 1000)


def _body(job: Mapping[str, Any], state: bytes) -> tuple[bytes, str]:
    """Return a job's function and arguments as JSON, or its pickle, with the kind of content."""
    args = job.get("args")
    told = {"func": job.get("func"), "kwargs": job.get("kwargs")}
    told["args"] = list(args) if isinstance(args, tuple) else args
    try:
        if isinstance(told["func"], str) and plain(told):
            return values.body(told), "application/json"
    except InvalidInput:
        # JSON has no word for some numbers.
        pass
    return state, "application/x-python-pickle"


def _misfires(job: Mapping[str, Any], jitter: object) -> dict[str, object]:
    """Return what is done about moments that were missed, and about a run that is not done."""
    grace, words = _grace(job), dict[str, object]()
    if grace is not None:
        # There it counts from the run, which has the jitter.
        more = jitter if isinstance(jitter, (int, float)) and jitter > 0 else 0
        words = {"misfire": "skip", "grace": grace + more}
    elif not job.get("coalesce"):
        words = {"misfire": "all"}
    if job.get("coalesce") and job.get("max_instances") == 1:
        # Without coalesce, one instance there does all runs that are overdue.
        words["overlap"] = "skip"
    return words


def _grace(job: Mapping[str, Any]) -> int | None:
    """Return how many seconds late a run may be, None for any; raises InvalidSchedule."""
    grace = job.get("misfire_grace_time")
    if grace is not None and _number(grace) is None:
        raise InvalidSchedule("misfire_grace_time: expected seconds, or None")
    return _number(grace)


def _times(trigger: Made) -> dict[str, object]:
    """Return the words that say when a trigger fires; raises InvalidSchedule."""
    state = trigger.state
    words: dict[str, object] = {
        "start": _moment(state.get("start_date"), "start_date"),
        "end": _moment(state.get("end_date"), "end_date"),
    }
    if (jitter := state.get("jitter")) is not None:
        if not isinstance(jitter, float):
            jitter = _number(jitter)
        if jitter is None:
            raise InvalidSchedule("jitter: expected seconds")
        words["jitter"] = jitter
    if trigger.of == f"{_TRIGGERS}interval:IntervalTrigger":
        return {**words, "every": _span(state.get("interval"))}
    if trigger.of == f"{_TRIGGERS}cron:CronTrigger":
        line = _line(state.get("fields"))
        return {**words, "cron": line, "zone": _zone(state.get("timezone")).key}
    allowed = "one of cron, interval and date"
    raise InvalidSchedule(f"trigger: got {trigger.of!r:.80}, expected {allowed}")


def _line(fields: object) -> str:
    """Return the fields of a trigger as a line of six fields; raises InvalidSchedule."""
    if not isinstance(fields, list) or len(fields) != len(_FIELDS):
        raise InvalidSchedule("fields: expected those of a CronTrigger")
    said: dict[str, str] = {}
    for field in fields:
        state = field.state if isinstance(field, Made) else None
        if not isinstance(state, dict) or state.get("name") not in _FIELDS:
            raise InvalidSchedule("fields: expected those of a CronTrigger")
        said[state["name"]] = _field(state["name"], state.get("expressions"))
    for name in ("year", "week"):
        if said.get(name) != "*":
            raise InvalidSchedule(f"{name}: got {said.get(name)!r:.40}, expected none")
    if re.search("[0-9][#L]", said["day"]):
        # A weekday's place in a month is a day there, and a weekday in a line.
        if said["day_of_week"] != "*" or "," in said["day"]:
            raise InvalidSchedule(f"day: got {said['day']!r:.40} and others, expected it alone")
        said["day"], said["day_of_week"] = "*", said["day"]
    names = ("minute", "hour", "day", "month", "day_of_week")
    line = translated(" ".join(said[one] for one in names), "apscheduler")
    return line if said["second"] == "0" else f"{said['second']} {line}"


def _field(name: str, expressions: object) -> str:
    """Return a field as text; raises InvalidSchedule."""
    if not isinstance(expressions, list) or not 0 < len(expressions) <= _MOST_EXPRESSIONS:
        raise InvalidSchedule(f"{name}: expected expressions of APScheduler 3")
    return ",".join(_expression(name, one) for one in expressions)


def _expression(name: str, one: object) -> str:
    """Return a part of a field as text; raises InvalidSchedule."""
    state, kind = None, ""
    if isinstance(one, Made):
        state, kind = one.state, one.of.removeprefix(_EXPRESSIONS)
    if isinstance(state, dict):
        step, first, last = (_number(state.get(key)) for key in ("step", "first", "last"))
        after = "" if step is None else f"/{step}"
        if kind == "AllExpression":
            return f"*{after}"
        if kind in _RANGES and first is not None:
            upto = "" if last is None or last == first else f"-{last}"
            return f"{first}{upto}{after}"
        if kind == "LastDayOfMonthExpression":
            return "L"
        place, weekday = (_number(state.get(key)) for key in ("option_num", "weekday"))
        if kind == "WeekdayPositionExpression" and place is not None and weekday is not None:
            return f"{weekday}L" if place == _LAST else f"{weekday}#{place + 1}"
    raise InvalidSchedule(f"{name}: got {kind!r:.60}, expected an expression of APScheduler 3")


def _number(value: object) -> int | None:
    """Return a whole number; None for other values, and for numbers that no field has."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST:
        return value
    return None


def _zone(value: object) -> ZoneInfo:
    """Return a zone of zoneinfo, pytz or datetime; raises InvalidSchedule."""
    if isinstance(value, Made) and isinstance(value.arguments, tuple):
        of, arguments = value.of, value.arguments
        first = arguments[0] if arguments else None
        if isinstance(first, str) and (of == "pytz:_p" or _is_zoneinfo(value.by)):
            return zone_of(first)
        is_utc = of == "datetime:timezone" and _span(first) == timedelta()
        if of == "pytz:_UTC" or is_utc:
            return ZoneInfo("UTC")
    raise InvalidSchedule("timezone: got another kind, expected a zone of zoneinfo or pytz, or UTC")


def _is_zoneinfo(of: object) -> bool:
    """Tell whether something called is ``zoneinfo.ZoneInfo._unpickle``."""
    if not (isinstance(of, Made) and of.of == "builtins:getattr"):
        return False
    named = of.arguments if isinstance(of.arguments, tuple) else ()
    texts = [getattr(one, "text", one) for one in named[:3]]
    return texts == ["zoneinfo:ZoneInfo", "_unpickle"]


def _span(value: object) -> timedelta:
    try:
        if isinstance(value, Made) and value.of == "datetime:timedelta":
            days, seconds, micros = map(_number, value.arguments)
            if days is not None and seconds is not None and micros is not None:
                return timedelta(days, seconds, micros)
    except (TypeError, ValueError):
        pass
    raise InvalidSchedule("interval: expected a timedelta")


def _moment(value: object, field: str) -> datetime | None:
    """Return a moment, which is ten bytes and a zone; raises InvalidSchedule."""
    if value is None:
        return None
    try:
        if isinstance(value, Made) and value.of == "datetime:datetime":
            data, zone = value.arguments
            if not isinstance(data, bytes):
                raise TypeError
            year, month = data[0] * 256 + data[1], data[2]
            day, hour, minute, second = data[3:7]
            micros = int.from_bytes(data[7:10], "big")
            # The highest bit of the month is the fold.
            wall = datetime(year, month & 127, day, hour, minute, second, micros, fold=month >> 7)
            return wall.replace(tzinfo=_zone(zone))
    except (ValueError, TypeError, LookupError):
        pass
    raise InvalidSchedule(f"{field}: expected a time with a zone")
