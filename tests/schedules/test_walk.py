"""When rules fire around changes of clocks: what a walk through the time of a zone gives.

The walk goes second by second from one side of a change to the other, and knows nothing of cron,
of recurrences or of changes: it looks at what zoneinfo shows.
"""

import random
import zoneinfo
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dwell.calendar import rule_of
from dwell.calendar.epoch import to_ms
from dwell.queue.schedules.times import times_of

SECOND = timedelta(seconds=1)
MILLISECOND = timedelta(milliseconds=1)
HALF_DAY = timedelta(hours=12)
AROUND = timedelta(hours=3)
ZONES = sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})
STAR = "*"


def changes_of(zone, year):
    """Return the moments of a year at which the clocks of a zone are set."""
    found, at = [], datetime(year, 1, 1, tzinfo=UTC)
    before = at.astimezone(zone).utcoffset()
    while at.year == year:
        later = at + HALF_DAY
        if (after := later.astimezone(zone).utcoffset()) != before:
            low, high = at, later
            while high - low > SECOND:
                middle = low + (high - low) // SECOND // 2 * SECOND
                is_before = middle.astimezone(zone).utcoffset() == before
                low, high = (middle, high) if is_before else (low, middle)
            found.append(high)
        at, before = later, after
    return found


@lru_cache(maxsize=1)
def walk(zone, change):
    """List each second around a change, what clocks show, and the times they have left out."""
    at, found = change - AROUND, []
    most = wall_at(zone, at - SECOND)
    while at <= change + AROUND:
        wall, left_out = wall_at(zone, at), []
        while most + SECOND < wall:
            most += SECOND
            left_out.append(most)
        is_again = wall <= most
        most = max(most, wall)
        found.append((at, wall, is_again, left_out))
        at += SECOND
    return found


def wall_at(zone, at):
    return at.astimezone(zone).replace(tzinfo=None)


class Fields:
    """The fields of a line, as text and as what they allow; None allows all."""

    def __init__(self, seconds, minutes, hours, days, weekdays, *, six):
        self.sets = (seconds if six else {0}, minutes, hours, days, weekdays)
        texts = [STAR if one is None else ",".join(map(str, sorted(one))) for one in self.sets]
        second, minute, hour, day, weekday = texts
        self.line = f"{minute} {hour} {day} * {weekday}"
        if six:
            self.line = f"{second} {self.line}"
        self.names_time = minutes is not None and hours is not None

    def allow(self, wall):
        seconds, *others = self.sets
        shown = (wall.minute, wall.hour, wall.day, wall.isoweekday() % 7)
        return wall.second in seconds and all(
            one is None or value in one for one, value in zip(others, shown, strict=True)
        )


def by_cron(zone, change, fields):
    """Return when a line fires, as crontab(5) of Debian says."""
    found = []
    for at, wall, is_again, left_out in walk(zone, change):
        is_left_out = fields.names_time and any(map(fields.allow, left_out))
        is_allowed = fields.allow(wall) and not (is_again and fields.names_time)
        if is_allowed or is_left_out:
            found.append(to_ms(at))
    return found


def by_rrule(zone, change, fields):
    """Return when a recurrence fires, as RFC 5545 says (3.3.5)."""
    found = set()
    for at, wall, is_again, left_out in walk(zone, change):
        found |= {to_ms(at + (w - left_out[0])) for w in left_out if fields.allow(w)}
        if fields.allow(wall) and not is_again:
            found.add(to_ms(at))
    return sorted(ms for ms in found if ms <= to_ms(change + AROUND))


def by_every(zone, change, span, anchor):
    """Return when a span ends, counted from a time on, whatever clocks show."""
    return [to_ms(at) for at, *_ in walk(zone, change) if (at - anchor) % span == timedelta()]


def check(rule, expected, change):
    low_ms, high_ms = to_ms(change - AROUND), to_ms(change + AROUND)
    found = []
    for ms in rule.following(low_ms - 1):
        if ms > high_ms:
            break
        found.append(ms)
    assert found == expected
    pairs = list(pairwise(expected))
    for last, ms in pairs[:: len(pairs) // 20 + 1]:
        assert rule.before(last) == rule.before(ms - 1) == last
        assert next(rule.following(last)) == next(rule.following(ms - 1)) == ms


def near(change, zone, spread):
    """Return an hour that clocks show near a change."""
    return (wall_at(zone, change - SECOND) + timedelta(hours=spread)).hour


@st.composite
def some(draw, values, most=3):
    return draw(st.none() | st.sets(st.sampled_from(values), min_size=1, max_size=most))


MINUTES = some([0, 1, 15, 20, 30, 44, 45, 59])
SPREADS = some([-24, -2, -1, 0, 1, 2, 12])
SECONDS = st.sets(st.sampled_from([0, 1, 29, 30, 59]), min_size=1, max_size=2)
WEEKDAYS = some(list(range(7)), 5)


def check_all(zone_name, change, seconds, minutes, spreads, weekdays, days, six):
    zone = ZoneInfo(zone_name)
    hours = None if spreads is None else {near(change, zone, spread) for spread in spreads}
    fields = Fields(seconds, minutes, hours, None, weekdays, six=six)
    rule = rule_of("cron", fields.line, zone_name, 0)
    check(rule, by_cron(zone, change, fields), change)
    days = days and {(wall_at(zone, change) + timedelta(days=day)).day for day in days}
    fields = Fields(seconds, minutes or {0}, hours or {0, 1, 2, 3}, days, None, six=True)
    allowed = zip(("SECOND", "MINUTE", "HOUR", "MONTHDAY"), fields.sets, strict=False)
    parts = [f"BY{name}={','.join(map(str, sorted(one)))}" for name, one in allowed if one]
    begin_ms = to_ms(change - timedelta(days=40))
    rule = rule_of("rrule", ";".join(["FREQ=DAILY", *parts]), zone_name, begin_ms)
    check(rule, by_rrule(zone, change, fields), change)
    # From midnight of a day before the change, as its zone has it.
    midnight = wall_at(zone, change).replace(hour=0, minute=0, second=0) - timedelta(days=9)
    anchor = midnight.replace(tzinfo=zone).astimezone(UTC)
    span = timedelta(minutes=1 + sum(minutes or [6]), seconds=sum(seconds))
    rule = times_of(None, None, span // MILLISECOND, zone_name, to_ms(anchor), None)
    check(rule, by_every(zone, change, span, anchor), change)


#: Half an hour, two hours, a whole day, 44 minutes and a half, and around midnight.
ODD = [
    ("Australia/Lord_Howe", 2026),
    ("Antarctica/Troll", 2026),
    ("Pacific/Apia", 2011),
    ("Pacific/Kwajalein", 1993),
    ("Africa/Monrovia", 1972),
    ("America/St_Johns", 1988),
    ("America/Santiago", 2026),
    ("Africa/Casablanca", 2026),
    ("Europe/Dublin", 2026),
    ("Asia/Pyongyang", 2018),
    ("America/Juneau", 1983),
    ("Asia/Gaza", 2060),
]


@pytest.mark.parametrize(
    ("zone", "year"),
    [*ODD[:4], *(pytest.param(*one, marks=pytest.mark.campaign) for one in ODD[4:])],
)
@pytest.mark.parametrize("six", [False, True])
def test_rules_at_odd_changes_fire_as_a_walk_says(zone, year, six):
    changes = changes_of(ZoneInfo(zone), year)
    assert changes
    for change in changes:
        for minutes, spreads in (
            ({0, 30}, {-1, 0, 1}),
            ({15}, {0, 2, 12}),
            (None, {0}),
            ({20}, None),
        ):
            check_all(zone, change, {0, 30}, minutes, spreads, None, None, six)


DRAWN = {
    "zone": st.sampled_from(ZONES),
    "year": st.integers(1970, 2199),
    "which": st.integers(0, 5),
    "seconds": SECONDS,
    "minutes": MINUTES,
    "spreads": SPREADS,
    "weekdays": WEEKDAYS,
    "days": some([-1, 0, 1]),
    "six": st.booleans(),
}
#: Six fields that name an hour, which is left out in spring and comes twice in autumn.
BERLIN = {
    "zone": "Europe/Berlin",
    "year": 2026,
    "seconds": {0},
    "weekdays": None,
    "days": None,
    "six": True,
}


@settings(deadline=None, max_examples=15)
@given(**DRAWN)
@example(**BERLIN, which=0, minutes={30}, spreads={1})
@example(**BERLIN, which=1, minutes={30}, spreads={0})
def test_rules_fire_as_a_walk_says(zone, year, which, **drawn):
    changes = changes_of(ZoneInfo(zone), year)
    assume(changes)
    check_all(zone, changes[which % len(changes)], **drawn)


@settings(deadline=None, max_examples=60)
@given(
    place=st.sampled_from(ODD),
    text=st.sampled_from(
        [
            "FREQ=HOURLY",
            "FREQ=MINUTELY;INTERVAL=30",
            "FREQ=DAILY;BYHOUR=0,1,2,3,23;BYMINUTE=15,30,45",
            "FREQ=MONTHLY;BYMONTHDAY=1,4,14,25,26,27,28,29,30,31;BYHOUR=2,3;BYMINUTE=30",
        ]
    ),
    which=st.integers(0, 5),
    hours=st.integers(1, 48),
    count=st.integers(1, 120),
)
@example(("Antarctica/Troll", 2026), "FREQ=DAILY;BYHOUR=2,3;BYMINUTE=30", 0, 48, 4)
@example(("Europe/Berlin", 2026), "FREQ=DAILY;BYHOUR=2,3;BYMINUTE=15,45", 0, 1, 1)
def test_a_count_counts_moments_where_clocks_change(place, text, which, hours, count):
    """As many as the same rule without a count has first, whatever clocks skip or repeat."""
    zone, year = place
    changes = changes_of(ZoneInfo(zone), year)
    begin_ms = to_ms(changes[which % len(changes)] - timedelta(hours=hours))
    endless = rule_of("rrule", text, zone, begin_ms)
    expected = list(islice(endless.following(begin_ms - 1), count))
    rule = rule_of("rrule", f"{text};COUNT={count}", zone, begin_ms)
    found = list(islice(rule.following(begin_ms - 1), count + 9))
    assert found == expected
    assert rule.before(found[-1] + 10**11) == found[-1]


@pytest.mark.campaign
@settings(deadline=None, max_examples=150)
@given(**DRAWN)
def test_many_rules_fire_as_a_walk_says(zone, year, which, **drawn):
    changes = changes_of(ZoneInfo(zone), year)
    assume(changes)
    check_all(zone, changes[which % len(changes)], **drawn)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(8))
def test_rules_of_every_zone_fire_as_a_walk_says(part):
    """Each zone of the database, at one of its changes from 1970 to 2199."""
    for zone in ZONES[part::8]:
        chance = random.Random(zone)
        years = chance.sample(range(1970, 2200), 230)
        changes = next(filter(None, (changes_of(ZoneInfo(zone), year) for year in years[:60])), [])
        # A zone whose clocks are never set is walked through as well.
        quiet = datetime(chance.choice(years), 3, 28, 1, tzinfo=UTC)
        check_all(
            zone,
            chance.choice(changes or [quiet]),
            set(chance.sample([0, 1, 29, 30, 59], 2)),
            chance.choice([None, {0, 30}, {15}, {0, 20, 45}]),
            chance.choice([None, {-1, 0, 1}, {0}, {-24, 12}]),
            chance.choice([None, {0, 1, 2, 3, 4}, {0, 6}]),
            chance.choice([None, {-1, 0}, {0, 1}]),
            chance.choice([False, True]),
        )
