"""What a rule costs is bounded, whatever it says: the calls of functions are counted."""

import sys
import tracemalloc
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from dwell.calendar import DaysOff
from dwell.calendar.epoch import to_ms
from dwell.errors import InvalidSchedule
from dwell.queue.schedules.schedule import Schedule, _times
from dwell.queue.schedules.times import plan, times_of

#: What fifty years cost that are looked at day by day, and far less than all their minutes.
MOST_CALLS = 150_000
END_MS = to_ms(datetime(2026, 3, 31, 22, tzinfo=UTC))
DAY_MS = 86_400_000
SECONDS = ",".join(map(str, range(60)))


class Costly(Exception):
    pass


def within(most_calls, do):
    """Do something, which may call so many functions."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"
        if calls > most_calls:
            sys.setprofile(None)
            raise Costly

    sys.setprofile(count)
    try:
        return do()
    finally:
        sys.setprofile(None)


def times(rule, zone="UTC"):
    kind = (None, rule) if rule.startswith("FREQ") else (rule, None)
    return times_of(*kind, None, zone, None, None)


@pytest.mark.parametrize("misfire", ["once", "all", "skip"])
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=MINUTELY;UNTIL=20260331T220000Z",
        "FREQ=MINUTELY;INTERVAL=5;UNTIL=20260331T220000Z",
        "FREQ=MINUTELY;BYMONTH=1,2,3,7,8,9,10,11,12",
        f"FREQ=MINUTELY;BYMONTH=3;BYSECOND={SECONDS}",
        f"FREQ=HOURLY;BYMONTH=3;BYMINUTE=0,30;BYSECOND={SECONDS}",
    ],
)
def test_what_fires_no_more_since_long_is_planned_soon(rule, misfire):
    since_ms = END_MS - 600_000
    words = (since_ms, END_MS + 70 * DAY_MS, misfire, 60_000)
    to_do = within(MOST_CALLS, lambda: plan(times(rule), *words, ahead_ms=250))
    assert to_do.fired_ms is not None
    assert since_ms < to_do.fired_ms <= END_MS + DAY_MS


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=MINUTELY;INTERVAL=10080;BYDAY=TU",
        "FREQ=MINUTELY;INTERVAL=1680;BYDAY=WE",
        "FREQ=HOURLY;INTERVAL=28;BYDAY=WE",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU",
        "FREQ=MONTHLY;BYDAY=5MO;BYMONTHDAY=1",
        "FREQ=YEARLY;BYEASTER=1;BYDAY=TU",
        "FREQ=HOURLY;BYYEARDAY=1;BYMONTH=2",
        "FREQ=MINUTELY;BYMONTHDAY=30;BYMONTH=2",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU;BYHOUR=1,2;BYSETPOS=2",
        "FREQ=MINUTELY;BYSETPOS=2",
    ],
)
def test_what_never_fires_is_known_soon(rule):
    """The library that reads rules walks to the year 9999 for these."""

    def found():
        try:
            return times(rule).after(END_MS)
        except InvalidSchedule:
            return None

    assert within(MOST_CALLS, found) is None


@pytest.mark.parametrize("when_off", ["skip", "before", "after"])
@pytest.mark.parametrize("rule", ["* * * * *", "FREQ=MINUTELY", "* * * * 6", "0 9 * * 6,0"])
def test_days_off_are_not_walked_through(rule, when_off):
    kind = (None, rule) if rule.startswith("FREQ") else (rule, None)
    found = times_of(*kind, None, "UTC", None, None, DaysOff(("sat", "sun"), when_off))
    for hours in range(0, 170, 34):
        ms = END_MS + hours * 3_600_000
        # Fifty years in which each day of the rule is off.
        following = within(3 * MOST_CALLS, lambda ms=ms: found.after(ms))
        last = within(3 * MOST_CALLS, lambda ms=ms: found.before(ms))
        assert following is None or following > ms
        assert last is None or last <= ms


@pytest.mark.parametrize("when_off", ["before", "after"])
@pytest.mark.parametrize("rule", ["* * * * * *", f"FREQ=MINUTELY;BYSECOND={SECONDS}"])
def test_no_times_of_a_day_are_made_in_vain(rule, when_off):
    """Some days come after or before days off, whose times they have as well."""
    kind = (None, rule) if rule.startswith("FREQ") else (rule, None)
    days = ("2026-04-08", "2026-04-09", "sat", "sun")
    found = times_of(*kind, None, "UTC", None, None, DaysOff(days, when_off))
    for hour in range(12, 240, 24):
        ms = END_MS + hour * 3_600_000
        last = within(5_000, lambda ms=ms: found.before(ms))
        to_do = within(10_000, lambda ms=ms: plan(found, ms - 1000, ms, "once", 60_000))
        assert to_do.fired_ms in (last, None)


@pytest.mark.parametrize("name", ["MINUTELY", "HOURLY;BYMINUTE=0,10,20,30,40,50"])
def test_days_that_are_left_out_are_not_walked_through(name):
    first = datetime(2026, 1, 1, tzinfo=UTC)
    days = ",".join(f"{first + timedelta(days=day):%Y%m%d}" for day in range(1000))
    rule = within(MOST_CALLS, lambda: times(f"FREQ={name}\nEXDATE;VALUE=DATE:{days}"))
    last_ms, next_ms = to_ms(first), to_ms(first) + 1000 * DAY_MS
    assert within(MOST_CALLS, lambda: rule.after(last_ms)) == next_ms
    assert within(MOST_CALLS, lambda: rule.before(next_ms - 1)) < last_ms


_WEEK = "MO,TU,WE,TH,FR,SA,SU"
_EACH_HALF_HOUR = f"BYDAY={_WEEK};BYHOUR={','.join(map(str, range(24)))};BYMINUTE=0,30"


@pytest.mark.parametrize(
    "name",
    [
        f"YEARLY;{_EACH_HALF_HOUR}",
        f"YEARLY;BYDAY={_WEEK};BYSETPOS={','.join(map(str, range(1, 220)))}",
        f"WEEKLY;{_EACH_HALF_HOUR};BYSETPOS=1,49,97,145,193,241,289",
    ],
)
def test_days_that_are_left_out_list_no_step_again(name):
    first = datetime(2026, 1, 1, tzinfo=UTC)
    days = ",".join(f"{first + timedelta(days=day):%Y%m%d}" for day in range(350))
    rule = times(f"FREQ={name}\nEXDATE;VALUE=DATE:{days}")
    assert within(50_000, lambda: rule.after(to_ms(first))) > to_ms(first) + 349 * DAY_MS


@pytest.mark.parametrize("when_off", ["skip", "before", "after"])
@pytest.mark.parametrize("name", ["YEARLY", "MONTHLY", "WEEKLY"])
def test_days_off_list_no_step_again(name, when_off):
    positions = ";BYSETPOS=1,2,3,-1" if name == "WEEKLY" else ""
    rule = f"FREQ={name};{_EACH_HALF_HOUR}{positions}"
    found = times_of(None, rule, None, "UTC", None, None, DaysOff(("sat", "sun", "wed"), when_off))

    def listed():
        return list(islice(found.following(END_MS), 4_000 if name != "WEEKLY" else 40))

    assert len(within(MOST_CALLS, listed)) > 30


@pytest.mark.parametrize(
    ("line", "zone", "day"),
    [
        ("*/30 0-9 L * 5,6", "Pacific/Kwajalein", (1993, 8, 22)),
        ("*/30 23 L * 5#1", "Pacific/Kiritimati", (1995, 1, 2)),
        ("2 * 22 * mon-fri", "Pacific/Apia", (2011, 12, 31)),
        ("* 12-23 * * 5,6", "Pacific/Enderbury", (1995, 1, 3)),
        ("26-27 */10 */2 * *", "America/St_Johns", (2006, 10, 29)),
    ],
)
def test_a_line_of_cron_finds_its_way_over_odd_changes(line, zone, day):
    """The library that reads lines goes round in circles where a day was left out, or came back."""
    rule = times(line, zone)
    at_ms = to_ms(datetime(*day, tzinfo=UTC))
    for hour in range(-48, 48, 4):
        ms = at_ms + hour * 3_600_000
        last = within(MOST_CALLS, lambda ms=ms: rule.before(ms))
        assert last <= ms
        following = rule.after(last)
        assert following is None or following > ms


_TWELVE = ",".join(map(str, range(12)))
_DAY = ",".join(map(str, range(24)))


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=MINUTELY;INTERVAL={}",
        "FREQ=MINUTELY;INTERVAL={};BYSECOND=" + SECONDS,
        "FREQ=HOURLY;INTERVAL={};BYMINUTE=" + _DAY,
        "FREQ=YEARLY;INTERVAL={};BYHOUR=" + _DAY + ";BYMINUTE=" + _TWELVE,
        "{}-59 0-23 1-31 1-12 0-6",
    ],
)
def test_a_rule_that_is_kept_is_small(rule):
    """Two thousand are kept of all that anybody asks for, and of schedules that are gone."""
    times(rule.format(1)).after(END_MS)
    tracemalloc.start()
    try:
        kept = [times(rule.format(number)) for number in range(1, 50)]
        for one in kept:
            one.after(END_MS)
        size_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size_bytes / len(kept) < 20_000


def test_days_off_that_are_kept_are_small():
    """Numbers in an array; a date in a set takes a hundred bytes."""
    first = datetime(2027, 1, 1, tzinfo=UTC).date()
    days = [
        tuple(str(first + timedelta(days=2 * n + 2000 * i)) for n in range(800)) for i in (0, 1)
    ]
    DaysOff(days[0], "skip")
    tracemalloc.start()
    try:
        kept = DaysOff(days[1], "skip")
        size_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept.has(first + timedelta(days=2000))
    assert size_bytes < 20_000


def test_rows_of_days_off_are_measured_once():
    first = datetime(2027, 1, 1, tzinfo=UTC).date()
    days = [str(first + timedelta(days=n // 25 * 30 + n % 25)) for n in range(1000)]
    within(6_000, lambda: DaysOff(days, "skip"))


def test_schedules_with_many_days_off_are_small():
    first = datetime(2027, 1, 1, tzinfo=UTC).date()
    days = [
        tuple(str(first + timedelta(days=2 * n + 2000 * i)) for n in range(800)) for i in range(20)
    ]
    made = [Schedule(name="s", topic="t", body=b"", cron="0 9 * * *", days_off=of) for of in days]
    assert all(one.times for one in made)
    _times.cache_clear()
    tracemalloc.start()
    try:
        for of in days:
            texts = tuple(bytes(day, "ascii").decode() for day in of)
            made.append(Schedule(name="s", topic="t", body=b"", cron="0 9 * * *", days_off=texts))
            assert made.pop().times
        del texts
        size_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert _times.cache_info().currsize == len(days)
    assert size_bytes / len(days) < 30_000
