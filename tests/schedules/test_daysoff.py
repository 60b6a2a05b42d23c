"""Days off: moments on them are left out, or on the nearest day before or after."""

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dwell
from dwell.calendar import DaysOff
from dwell.calendar.epoch import from_ms, to_ms
from dwell.errors import InvalidInput, InvalidSchedule
from dwell.message import Result
from dwell.queue.schedules.times import times_of
from tests.http.test_http_api import calling

DAY = timedelta(days=1)
WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEKEND = ("sat", "sun")


def times(rule, days_off, when_off="skip", zone="UTC", start=None, end=None):
    kind = (None, rule) if "FREQ" in rule else (rule, None)
    off = DaysOff(tuple(days_off), when_off) if days_off else None
    return times_of(*kind, None, zone, start, end, off)


def shown(found, start, count):
    moments = list(islice(found.following(to_ms(start.replace(tzinfo=UTC)) - 1), count))
    assert [found.before(ms) for ms in moments] == moments
    return " ".join(f"{from_ms(ms):%d-%H}" for ms in moments)


@pytest.mark.parametrize(
    ("rule", "days_off", "when_off", "expected"),
    [
        # 1 May 2027 is a Saturday.
        ("0 9 * * *", WEEKEND, "skip", "03-09 04-09 05-09 06-09 07-09 10-09"),
        ("0 9 * * *", (*WEEKEND, "2027-05-03"), "skip", "04-09 05-09 06-09 07-09 10-09"),
        ("0 9 1,2,3,6 5 *", WEEKEND, "after", "03-09 06-09"),
        ("0 9 1,6,8 5 *", (*WEEKEND, "2027-05-03"), "after", "04-09 06-09 10-09"),
        ("0 9 1,6,8,9,10 5 *", (*WEEKEND, "2027-05-10"), "before", "06-09 07-09"),
        ("0 9,17 8 5 *", WEEKEND, "before", "07-09 07-17"),
        ("FREQ=MONTHLY;BYMONTHDAY=1,15,20", WEEKEND, "after", "03-00 17-00 20-00 01-00 15-00"),
        ("FREQ=MONTHLY;BYMONTHDAY=15,-1", WEEKEND, "before", "14-00 31-00 15-00 30-00 15-00"),
        # What is added by a calendar is moved, too.
        ("DTSTART:20270430T090000Z\nRRULE:FREQ=DAILY;COUNT=3\nRDATE:20270508T110000Z", WEEKEND,
         "after", "03-09 10-11"),
    ],
)  # fmt: skip
def test_moments_of_days_off(rule, days_off, when_off, expected):
    found = times(rule, days_off, when_off)
    assert shown(found, datetime(2027, 5, 1), expected.count(" ") + 1) == expected


def test_a_walk_that_begins_beside_days_off_knows_what_is_moved():
    after, before = (times("0 9 * * sat", WEEKEND, when_off) for when_off in ("after", "before"))
    assert shown(after, datetime(2027, 5, 3, 8), 2) == "03-09 10-09"
    before_noon = to_ms(datetime(2027, 5, 3, 12, tzinfo=UTC))
    assert after.before(before_noon) == to_ms(datetime(2027, 5, 3, 9, tzinfo=UTC))
    assert shown(before, datetime(2027, 5, 7), 2) == "07-09 14-09"
    sunday = times("0 9 * * sun", WEEKEND, "before")
    assert shown(sunday, datetime(2027, 5, 7), 2) == "07-09 14-09"
    friday = to_ms(datetime(2027, 5, 7, 9, tzinfo=UTC))
    assert sunday.before(friday) == sunday.before(friday + 3_600_000) == friday


def test_moments_are_moved_over_the_end_of_a_rule_but_not_of_a_schedule():
    rule = "DTSTART:20270501T090000Z\nRRULE:FREQ=DAILY;COUNT=2"
    assert shown(times(rule, WEEKEND, "after"), datetime(2027, 4, 1), 9) == "03-09"
    assert shown(times(rule, WEEKEND, "before"), datetime(2027, 4, 1), 9) == "30-09"
    end = to_ms(datetime(2027, 5, 2, 12, tzinfo=UTC))
    assert times(rule, WEEKEND, "after", end=end).after(0) is None


RULES = [
    "0 9 * * *",
    "30 2 * * *",
    "*/30 1-3 * * *",
    "15 0,23 1-20 * *",
    "FREQ=DAILY;BYHOUR=2,9;BYMINUTE=30",
    "FREQ=MONTHLY;BYMONTHDAY=1,10,-1;BYHOUR=2",
    "FREQ=HOURLY;INTERVAL=5",
]


@settings(deadline=None, max_examples=150)
@given(
    rule=st.sampled_from(RULES),
    weekdays=st.sets(st.sampled_from(WEEK), max_size=4),
    dates=st.sets(st.integers(0, 40), max_size=12),
    when_off=st.sampled_from(["skip", "before", "after"]),
    begin=st.sampled_from([date(2027, 3, 10), date(2027, 10, 10), date(2026, 12, 10)]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/Havana", "Australia/Lord_Howe"]),
    hours=st.integers(0, 1000),
)
def test_days_off_are_those_of_a_walk_by_days(rule, weekdays, dates, when_off, begin, zone, hours):
    """Each moment without days off is taken to its day, one by one, and made a moment again."""
    there = ZoneInfo(zone)
    off = {begin + day * DAY for day in dates}

    def is_off(day):
        return day in off or WEEK[day.weekday()] in weekdays

    plain = times(rule, ["1990-01-01"], "skip", "UTC")
    first = datetime(begin.year, begin.month, begin.day) - 20 * DAY
    walls = set()
    for ms in plain.following(to_ms(first.replace(tzinfo=UTC)) - 1):
        wall = from_ms(ms).replace(tzinfo=None)
        if wall > first + 110 * DAY:
            break
        day = wall.date()
        if when_off == "skip" and is_off(day):
            continue
        while is_off(day):
            day += DAY if when_off == "after" else -DAY
        walls.add(datetime.combine(day, wall.time()))
    # The rule of these times, each by itself, says what clocks make of them.
    expected = sorted(
        {ms for wall in sorted(walls) for ms in moments_of(rule, wall, there)},
    )
    low, high = to_ms((first + 20 * DAY).replace(tzinfo=UTC)), 0
    high = low + 60 * 86_400_000
    found = times(rule, [*weekdays, *(day.isoformat() for day in off)], when_off, zone)
    start = low + hours * 3_600_000
    wanted = [ms for ms in expected if start < ms <= high]
    got = list(islice(found.following(start), len(wanted)))
    assert got == wanted
    for last, ms in list(pairwise(wanted))[::7]:
        assert found.before(last) == found.before(ms - 1) == last


@settings(deadline=None, max_examples=60)
@given(
    rule=st.sampled_from([*RULES, "30 23 * * *", "0,30 0,22,23 * * *", "FREQ=DAILY;BYHOUR=23,9"]),
    zone_and_day=st.sampled_from(
        [
            ("America/Nuuk", date(2027, 3, 27)),
            ("Pacific/Apia", date(2011, 12, 30)),
            ("America/Havana", date(2027, 3, 14)),
            ("Pacific/Kwajalein", date(1993, 8, 21)),
        ]
    ),
    dates=st.sets(st.integers(-2, 3), min_size=1, max_size=4),
    when_off=st.sampled_from(["skip", "before", "after"]),
    hours=st.integers(0, 60),
)
@example("30 23 * * *", ("America/Nuuk", date(2027, 3, 27)), {1}, "skip", 0)
@example("30 23 * * *", ("America/Nuuk", date(2027, 3, 27)), {1}, "before", 0)
@example("FREQ=DAILY;BYHOUR=2,9;BYMINUTE=30", ("Pacific/Apia", date(2011, 12, 30)), {1}, "after", 0)
def test_no_moment_is_on_a_day_off_where_clocks_skip_midnight(
    rule, zone_and_day, dates, when_off, hours
):
    zone, day = zone_and_day
    there, off = ZoneInfo(zone), {day + number * DAY for number in dates}
    found = times(rule, map(str, off), when_off, zone)
    start = to_ms(datetime(day.year, day.month, day.day, tzinfo=UTC) - 4 * DAY) + hours * 3_600_000
    moments = list(islice(found.following(start), 60))
    assert not [ms for ms in moments if from_ms(ms).astimezone(there).date() in off]
    for last, ms in pairwise(moments):
        assert found.before(last) == found.before(ms - 1) == last


def moments_of(rule, wall, there):
    """Return the moments of a time on the wall, as the rule has them where clocks are set."""
    if "FREQ" in rule:
        return [to_ms(wall.replace(tzinfo=there).astimezone(UTC))]
    line = f"{wall.minute} {wall.hour} {wall.day} {wall.month} *"
    if rule.startswith("*"):
        both = {to_ms(wall.replace(tzinfo=there, fold=fold).astimezone(UTC)) for fold in (0, 1)}
        return [ms for ms in both if from_ms(ms).astimezone(there).replace(tzinfo=None) == wall]
    near = to_ms((wall - 2 * DAY).replace(tzinfo=UTC))
    return [next(times_of(line, None, None, there.key, None, None).following(near))]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"days_off": ["friday"]}, "days_off: got 'friday', expected one of mon, tue"),
        ({"days_off": ["2030-02-30"]}, "days_off: got '2030-02-30', expected one of"),
        ({"days_off": ["20300201"]}, "days_off: got '20300201', expected one of"),
        ({"days_off": "sat"}, "days_off: got str 'sat', expected a list"),
        ({"days_off": [datetime(2030, 1, 1)]}, "days_off: got .*, expected a weekday or a date"),
        ({"days_off": [7]}, "days_off: got int 7, expected a weekday or a date"),
        ({"days_off": WEEK}, "got all weekdays, expected one that is not off"),
        ({"days_off": [date(2030, 1, 1) + n * DAY for n in range(32)]}, "at most 31 days in a row"),
        ({"days_off": [date(2030, 1, 1) + 2 * n * DAY for n in range(1001)]}, "at most 1000"),
        (
            {"days_off": ["sat"], "when_off": "later"},
            "when_off: got str 'later', expected one of skip",
        ),
        ({"days_off": ["sat"], "cron": None, "every": "1h"}, "every beside it, expected cron or"),
        ({"days_off": ["sat"], "cron": "* * * * sat"}, "never fires"),
    ],
)
async def test_bad_days_off_are_refused_and_nothing_is_put(words, told):
    async with dwell.open("memory:") as queue:
        with pytest.raises(InvalidInput, match=told):
            await queue.schedules.put("s", "t", b"", **{"cron": "0 9 * * *", **words})
        assert await queue.schedules.get("s") is None


@pytest.mark.parametrize("when_off", ["skip", "before", "after"])
def test_a_row_of_days_off_is_measured_from_its_begin_to_its_end(when_off):
    """Sundays that join weekdays off make a row, which no date begins."""
    sundays = [str(date(2026, 12, 6) + n * 7 * DAY) for n in range(20)]
    with pytest.raises(InvalidSchedule, match="from 2026-11-30 on, expected at most 31 days in"):
        times("0 9 * * *", (*WEEK[:6], *sundays), when_off)
    # From Monday to Saturday there are 6 days, and with three Sundays 27.
    times("0 9 * * *", (*WEEK[:6], *sundays[:3]), when_off)
    with pytest.raises(InvalidSchedule, match="from 2026-11-30 on"):
        times("0 9 * * *", (*WEEK[:6], *sundays[:4]), when_off)


async def test_days_off_of_a_schedule_are_kept_in_order_and_changed():
    async with dwell.open("memory:") as queue:
        days = [date(2030, 12, 25), "SUN", "sat", "2030-12-25"]
        words = {"cron": "0 9 * * *", "days_off": days, "when_off": "after"}
        assert await queue.schedules.put("s", "t", b"", **words) is Result.CREATED
        words["days_off"] = ["sat", "sun", "2030-12-25"]
        assert await queue.schedules.put("s", "t", b"", **words) is Result.KEPT
        assert all(run.weekday() < 5 for run in await queue.schedules.next("s", 20))
        assert await queue.schedules.change("s", when_off=None) is Result.REPLACED
        found = (await queue.schedules.get("s")).schedule
        assert (found.days_off, found.when_off) == (("sat", "sun", "2030-12-25"), "skip")
        with pytest.raises(InvalidSchedule, match="every beside it"):
            await queue.schedules.change("s", every="1h")
        assert await queue.schedules.change("s", days_off=None, every="1h") is Result.REPLACED


async def test_days_off_over_http():
    async with calling() as caller:
        path = "/v1/schedules/report"
        ask = {"topic": "t", "body": "x", "cron": "0 9 * * *", "days_off": ["sun", "sat"]}
        assert await caller.ask("PUT", path, ask) == {"result": "created"}
        found = await caller.get(f"{path}?runs=9")
        assert (found["days_off"], "when_off" in found) == (["sat", "sun"], False)
        assert all(datetime.fromisoformat(run).weekday() < 5 for run in found["runs"])
        assert await caller.ask("PATCH", path, {"when_off": "before"}) == {"result": "replaced"}
        assert (await caller.get(path))["when_off"] == "before"
        assert await caller.ask("PATCH", path, {"days_off": None}) == {"result": "replaced"}
        assert "days_off" not in await caller.get(path)
        for bad in ({"days_off": ["x"]}, {"days_off": "sat"}, {"when_off": "x"}):
            await caller.ask("PATCH", path, bad)
            assert caller.status == 400
