"""A short pickle whose values share others is as little work as any other of its size."""

import pickle
import sqlite3
import tracemalloc
from datetime import UTC, datetime

import pytest
from apscheduler.job import Job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger

from dwell.clock import RealClock
from dwell.errors import InvalidBody
from dwell.takeover.apscheduler import ApScheduler
from dwell.takeover.pickled import plain, read

_CRON = b"capscheduler.triggers.cron\nCronTrigger\n"
_ALL = b"capscheduler.triggers.cron.expressions\nAllExpression\n"
_LATER = datetime(2060, 7, 1, 9, tzinfo=UTC)
#: Enough to tell by, and harmless to whatever reads it.
_DEPTH, _MOST_BYTES = 18, 500_000


def _ran():
    """Be a function that jobs name."""


def _state(trigger):
    job = Job(BackgroundScheduler(), id="odd", trigger=trigger, func=_ran, args=(), kwargs={})
    job.name, job.next_run_time, job.executor = "odd", _LATER, "default"
    job.misfire_grace_time, job.coalesce, job.max_instances = 1, True, 1
    return {**job.__getstate__(), "next_run_time": None}


def _text(text):
    return b"X" + len(text).to_bytes(4, "little") + text


def _shared():
    """Return the instructions of a pair of pairs of pairs; of each, both halves are one."""
    data = _text(b"a") + b"r" + (1000).to_bytes(4, "little")
    for number in range(_DEPTH):
        last, new = ((1000 + number + more).to_bytes(4, "little") for more in (0, 1))
        data += b"j" + last + b"\x86r" + new
    return data


def _with_mark(place):
    trigger = CronTrigger(hour=3, timezone="UTC")
    state = _state(trigger)
    if place in state:
        state[place] = "MARK"
    else:
        setattr(trigger, place, "MARK")
    return state


@pytest.mark.parametrize(
    ("make", "mark"),
    [
        (lambda: _state(CronTrigger(timezone="UTC")), _CRON),
        (lambda: _state(CronTrigger(timezone="UTC")), _ALL),
        (lambda: _state(CronTrigger(timezone="Europe/Berlin")), _text(b"Europe/Berlin")),
        (lambda: _state(DateTrigger(_LATER)), b"capscheduler.triggers.date\nDateTrigger\n"),
        *(
            (lambda place=place: _with_mark(place), _text(b"MARK"))
            for place in (
                *("trigger", "func", "args", "kwargs", "coalesce", "max_instances"),
                *("misfire_grace_time", "start_date", "end_date", "jitter", "timezone", "fields"),
            )
        ),
    ],
)
def test_values_that_share_others_are_not_written_out(tmp_path, make, mark):
    plain_data = pickle.dumps(make(), 2)
    assert mark in plain_data
    # Later protocols have this name, and other marks.
    data = plain_data.replace(mark, _shared()).replace(b"c__builtin__\n", b"cbuiltins\n")
    with sqlite3.connect(tmp_path / "jobs.db") as link:
        link.execute("CREATE TABLE apscheduler_jobs (id, next_run_time, job_state)")
        link.execute("INSERT INTO apscheduler_jobs VALUES ('odd', 4e9, ?)", (data,))
    link.close()
    source = ApScheduler(f"apscheduler+sqlite:///{tmp_path}/jobs.db", RealClock())
    # What is made once, such as time zones, does not count.
    list(source.entries())
    tracemalloc.start()
    try:
        entries = list(source.entries())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < _MOST_BYTES
    assert all(len(one.reason) < 1_000 and len(one.body) <= len(data) for one in entries)


def test_long_names_are_refused():
    text = _text(b"x" * 2_000) + b"q\x00"
    with pytest.raises(InvalidBody, match="name that is too long"):
        read(b"\x80\x04]" + text + b"h\x00\x93a.")


@pytest.mark.parametrize("value", [["x" * 10_000] * 200, [{"x" * 10_000: 1}] * 200, 2**70])
def test_what_json_would_make_long_is_not_plain(value):
    assert plain([1, "x", 2**63 - 1])
    assert not plain([value])


def test_numbers_of_any_length_are_refused():
    assert read(pickle.dumps(2**4096)) == 2**4096
    with pytest.raises(InvalidBody, match="number that is too long"):
        read(pickle.dumps(2**100_000))
