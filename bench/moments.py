"""The next moment of many schedules of all kinds, each read from its text, on one core.

The peer is what the libraries that read these texts do by themselves: cronsim for lines of cron,
and dateutil for rules, which walks from the begin of the rule; a rule begins today for it.
"""

import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim
from dateutil.rrule import rrulestr

from bench.result import Result
from dwell.queue.schedules.schedule import Schedule

_ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"),
    *("Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Tokyo", "Africa/Cairo"),
)
_DAYS = ("MO", "TU", "WE", "TH", "FR")
_NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
_NOW_MS = int(_NOW.timestamp() * 1000)


def run(*, schedules: int, rounds: int) -> Result:
    """Compute the next moment of so many schedules of mixed kinds."""
    result = Result("moments", {"schedules": schedules}, "schedules/s")
    mixed = _mixed(schedules)
    result.in_turn(
        rounds,
        {
            "dwell": lambda: _rate(mixed, lambda one: one.times.after(_NOW_MS)),
            "cronsim, dateutil": lambda: _rate(mixed, _by_libraries),
        },
    )
    return result


def _mixed(count: int) -> Sequence[Schedule]:
    draw = random.Random(17)
    made = []
    for at in range(count):
        hour, minute = draw.randrange(24), draw.randrange(60)
        day, zone = draw.choice(_DAYS), draw.choice(_ZONES)
        at_time = f"BYHOUR={hour};BYMINUTE={minute};BYSECOND=0"
        rule = (
            {"cron": f"{minute} {hour} * * *"},
            {"cron": f"{minute} {hour} * * mon-fri"},
            {"cron": f"*/{draw.choice((5, 10, 15, 20))} {hour} * * *"},
            {"cron": f"{minute} {hour} {draw.randrange(1, 29)} * *"},
            {"cron": f"{minute} {hour} * * *", "days_off": ("sat", "sun", "2026-12-25")},
            {"every_ms": draw.randrange(60, 86_400) * 1000},
            {"rrule": f"FREQ=WEEKLY;BYDAY={day};{at_time}"},
            {"rrule": f"FREQ=MONTHLY;BYDAY=-1{day};{at_time}"},
        )[at % 8]
        made.append(Schedule(name=f"s{at}", topic="t", body=b"x", zone=zone, **rule))
    return made


def _by_libraries(one: Schedule) -> object:
    here = _NOW.astimezone(ZoneInfo(one.zone))
    if one.cron is not None:
        return next(CronSim(one.cron, here))
    if one.rrule is not None:
        return rrulestr(one.rrule, dtstart=here).after(here)
    assert one.every_ms is not None
    return _NOW_MS - _NOW_MS % one.every_ms + one.every_ms


def _rate(mixed: Sequence[Schedule], of: Callable[[Schedule], object]) -> float:
    begin = time.process_time()
    for one in mixed:
        of(one)
    return len(mixed) / (time.process_time() - begin)
