"""When rules fire: every zone's changes of clocks, all of cron and RFC 5545 that is allowed."""

import re
import zoneinfo
from calendar import isleap
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from dateutil import tz
from dateutil.easter import easter
from dateutil.rrule import rrulestr
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dwell.calendar import every, rule_of
from dwell.calendar.epoch import from_ms, to_ms
from dwell.errors import InvalidSchedule
from tests import RUNS

#: Zones that are something else on each machine.
HERE = ("localtime", "posixrules", "Factory")
NOW_MS = to_ms(datetime(2026, 11, 24, 22, tzinfo=UTC))
DAY_MS = 86_400_000


def cron(line, zone="UTC"):
    return rule_of("cron", line, zone, 0)


def rrule(text, zone="UTC", begin_ms=NOW_MS):
    return rule_of("rrule", text, zone, begin_ms)


def moments_of(rule, ms, count):
    return list(islice(rule.following(ms), count))


def texts(rule, ms, count):
    return [from_ms(found).strftime("%m-%d %H:%M") for found in moments_of(rule, ms, count)]


@pytest.mark.parametrize(
    ("rule", "begin", "expected"),
    [
        # Clocks are set forward at 02:00 on 28 March 2027, and back at 03:00 on 31 October.
        (cron("30 2 * * *", "Europe/Berlin"), "2027-03-27", "03-27 01:30,03-28 01:00,03-29 00:30"),
        (cron("30 2 * * *", "Europe/Berlin"), "2027-10-30", "10-30 00:30,10-31 00:30,11-01 01:30"),
        (cron("*/30 * * * *", "Europe/Berlin"), "2027-10-31", "10-31 00:30,10-31 01:00"),
        (cron("0 9 * * mon-fri", "Europe/Berlin"), "2027-10-29", "10-29 07:00,11-01 08:00"),
        (cron("0 0 29 2 *"), "2026-01-01", "02-29 00:00"),
        (cron("0 0 L * *"), "2027-02-01", "02-28 00:00,03-31 00:00"),
        (rrule("FREQ=DAILY;BYHOUR=2;BYMINUTE=30;BYSECOND=0", "Europe/Berlin"), "2027-03-27",
         "03-27 01:30,03-28 01:30,03-29 00:30"),
        (rrule("FREQ=MONTHLY;BYDAY=-1FR"), "2026-11-25", "11-27 22:00,12-25 22:00"),
        (rrule("RRULE:FREQ=DAILY;COUNT=2"), "2026-11-01", "11-24 22:00,11-25 22:00"),
        (rrule("FREQ=DAILY;UNTIL=20261126T000000Z", "America/New_York"), "2026-11-01",
         "11-24 22:00,11-25 22:00"),
        (rrule("FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,TH"), "2026-12-01", "12-08 22:00,12-10 22:00"),
        (every(7 * 60_000, None), "1970-01-01", "01-01 00:07,01-01 00:14"),
        (every(7 * 60_000, NOW_MS), "2026-11-24", "11-24 22:00,11-24 22:07"),
    ],
)  # fmt: skip
def test_rules_fire_when_they_say(rule, begin, expected):
    expected = expected.split(",")
    at_ms = to_ms(datetime.fromisoformat(begin).replace(tzinfo=UTC))
    assert texts(rule, at_ms, len(expected)) == expected


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("cron", "0 0 30 2 *", "day-of-month"),
        ("cron", "0 0 * *", "fields"),
        ("cron", "* * * * * 7 8", "fields"),
        ("cron", "", "fields"),
        ("cron", "61 * * * *", "minute"),
        ("cron", "*" * 2000, "at most 1000"),
        ("cron", "@every 1h30m", 'every="1h30m"'),
        ("cron", "@reboot", "a time"),
        ("cron", "CRON_TZ=Europe/Berlin 0 9 * * *", 'zone="Europe/Berlin" beside'),
        ("cron", "TZ=Asia/Tokyo 0 9 * * *", 'zone="Asia/Tokyo" beside'),
        ("cron", "rate(5 minutes)", 'every="5m"'),
        ("cron", "cron(0 10 ? * MON-FRI *)", "five fields"),
        ("cron", "0 9 W15 * *", "15W for the weekday nearest"),
        ("cron", "0 9 32W * *", "one day from 1W to 31W in place of 32W"),
        ("cron", "0 9 1-15W * *", "one day from 1W to 31W in place of 15W"),
        ("cron", "0 9 1,L-31 * *", "from L-1 to L-30 in place of L-31"),
        ("cron", "0 9 * * 15W", "in place of 15W"),
        ("cron", "0 9 * * L5", "5L for the last"),
        ("cron", "0 9 * * friLL", "day-of-week"),
        ("cron", "0 friL * * *", "hour"),
        ("cron", "0 9 * * 8-2", "day-of-week"),
        ("cron", "0 9 * * fri-dec", "day-of-week"),
        ("cron", "0 fri-mon * * *", "hour"),
        ("cron", "0 9 5-0 * *", "day-of-month"),
        ("cron", "0 25-3 * * *", "hour"),
        ("cron", "0 20-25 * * *", "hour"),
        ("cron", "61 9 * * mon-fri", "minute"),
        ("cron", "*/90 * * * *", 'at most 60 in place of /90, or every="90m"'),
        ("cron", "0 */25 * * *", 'every="25h"'),
        ("cron", "0 0 1 */13 *", "at most 12"),
        ("cron", "*/61 0 0 1 1 *", 'every="61s"'),
        ("cron", "0 9 L/2 * *", "a step after *, a value or a range in place of 'L/2'"),
        ("cron", "0 9 1,LW/3 * *", "in place of 'LW/3'"),
        ("cron", "0 9 L/5,10 * *", "in place of 'L/5'"),
        ("cron", "0 9 L-3/2 * *", "in place of 'L-3/2'"),
        ("cron", "0 9 * * 5L/2", "in place of '5L/2'"),
        ("cron", "\u0660-\u0665 9 * * *", "ASCII characters alone"),
        ("cron", "0 25 * * *", "Bad hour, allowed are 0 to 23"),
        ("cron", "60 9 * * *", "Bad minute, allowed are 0 to 59"),
        ("cron", "0 9 * 13 *", "Bad month, allowed are 1 to 12 and jan to dec"),
        ("cron", "0 9 * * 8", "Bad day-of-week, allowed are 0 to 7"),
        ("cron", "0 9 32 * *", "Bad day-of-month, allowed are 1 to 31"),
        ("rrule", "FREQ=DAILY;COUNT=2;UNTIL=20300101", "COUNT or UNTIL, and not both"),
        ("rrule", "FREQ=MONTHLY;BYDAY=MO(1)", "a BYDAY of weekdays such as MO,TU"),
        ("rrule", "FREQ=YEARLY;BYEASTER=400", "BYEASTER from -80 to 250"),
        ("rrule", "FREQ=YEARLY;BYEASTER=1,-81", "BYEASTER from -80 to 250"),
        ("rrule", "FREQ=DAILY;;BYHOUR=9", "a part such as BYHOUR=9 after each semicolon"),
        ("rrule", "FREQ=DAILY;BYHOUR=\u0669", "ASCII characters alone"),
        ("rrule", "FREQ=MONTHLY;BYMONTHDAY=0", "BYMONTHDAY from 1 for the first"),
        ("rrule", "FREQ=YEARLY;BYMONTHDAY=1,-0", "BYMONTHDAY from 1 for the first"),
        ("rrule", "FREQ=YEARLY;BYYEARDAY=0", "BYYEARDAY from 1 for the first"),
        ("rrule", "FREQ=YEARLY;BYWEEKNO=0", "BYWEEKNO from 1 for the first"),
        ("rrule", "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=0", "BYSETPOS from 1 for the first"),
        ("rrule", "FREQ=MONTHLY;BYDAY=0MO", "BYDAY from 1 for the first"),
        ("rrule", "FREQ=MONTHLY;BYDAY=6MO", "to 5, or from -1 for the last to -5"),
        ("rrule", "FREQ=YEARLY;BYMONTH=1;BYDAY=1TU,-6MO", "to 5, or from -1 for the last to -5"),
        ("rrule", "FREQ=YEARLY;BYDAY=54MO", "to 53, or from"),
        ("rrule", "FREQ=YEARLY;BYYEARDAY=1,367", "to 366, or from"),
        ("rrule", "FREQ=YEARLY;BYWEEKNO=-54,2", "to 53, or from"),
        ("rrule", "FREQ=MONTHLY;BYMONTHDAY=1,32", "to 31, or from"),
        ("rrule", "FREQ=YEARLY;BYMONTH=1,13", "BYMONTH from 1 to 12"),
        ("rrule", "FREQ=DAILY;BYMINUTE=60", "BYMINUTE from 0 to 59"),
        ("rrule", "FREQ=WEEKLY;BYDAY=2MO", "without a number"),
        ("rrule", "FREQ=DAILY;BYDAY=-1FR", "without a number"),
        ("rrule", "FREQ=YEARLY;BYWEEKNO=3;BYDAY=1MO", "without a number"),
        ("cron", "0 ? * * *", "* in place of ?, which is known as a day of the month or weekday"),
        ("cron", "? 9 * * *", "* in place of ?"),
        ("cron", "0 9 ? ? *", "* in place of ?"),
        ("cron", "? 0 9 * * ?", "* in place of ?"),
        ("cron", "0 9 1,? * *", "* in place of ?"),
        ("cron", "0 9-9/0 * * *", "five fields"),
        ("cron", "0 9-9/99 * * *", "a step of at most 24"),
        ("rrule", "", "FREQ"),
        ("rrule", "hello", "FREQ"),
        ("rrule", "FREQ=SECONDLY", "every"),
        ("rrule", "FREQ=DAILY;INTERVAL=0", "INTERVAL from 1"),
        ("rrule", "FREQ=DAILY;COUNT=99999", "COUNT from 1"),
        ("rrule", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "BYMONTHDAY"),
        ("rrule", "FREQ=WEEKLY;BYMONTHDAY=3", "no BYMONTHDAY"),
        ("rrule", "FREQ=DAILY;BYYEARDAY=3", "no BYYEARDAY"),
        ("rrule", "FREQ=DAILY;BYSETPOS=2", "BYSETPOS of at most 1"),
        ("rrule", "FREQ=DAILY;BYHOUR=9,09;BYSETPOS=-2", "BYSETPOS of at most 1"),
        ("rrule", "FREQ=WEEKLY;BYDAY=MO,TU;BYHOUR=1,2;BYSETPOS=5,-5", "at most 4, as a step of"),
        ("rrule", "FREQ=HOURLY;BYHOUR=1,2,3;BYSETPOS=2", "BYSETPOS of at most 1"),
        ("rrule", "FREQ=MINUTELY;BYSECOND=0,30;BYSETPOS=3", "BYSETPOS of at most 2"),
        (
            "rrule",
            "RSCALE=GREGORIAN;FREQ=MONTHLY;SKIP=BACKWARD;BYMONTHDAY=31",
            "BYMONTHDAY=-1 is the",
        ),
        ("rrule", "FREQ=MINUTELY;BYSECOND=0,-0;BYSETPOS=2", "BYSETPOS of at most 1"),
        ("rrule", "FREQ=DAILY;BYHOUR=9,12;BYSETPOS=367", "BYSETPOS"),
        ("rrule", "FREQ=DAILY;BYHOUR=9,12;BYSETPOS=1,0", "BYSETPOS from 1 for the first"),
        ("rrule", "FREQ=DAILY;BYHOUR=9,12;BYSETPOS=", "expected one rule"),
        ("rrule", "FREQ=HOURLY;BYYEARDAY=x", "expected one rule"),
        ("rrule", "FREQ=DAILY;BYHOUR=99", "BYHOUR from 0 to 23"),
        ("rrule", "FREQ=DAILY;UNTIL=2030", "UNTIL"),
        ("rrule", "FREQ=DAILY;UNTIL=20309999T000000Z", "UNTIL"),
        ("rrule", "FREQ=DAILY;UNTIL=soon", "UNTIL"),
        ("rrule", "FREQ=DAILY;BYHOUR=2 3", "spaces"),
        ("rrule", "FREQ=MINUTELY;INTERVAL=1440;BYHOUR=3", "empty"),
        ("rrule", "FREQ=DAILY;DTSTART=20200101", "without DTSTART"),
        ("rrule", f"FREQ=DAILY;BYMINUTE={','.join(map(str, range(60)))};BYHOUR=1,2,3,4,5", "288"),
    ],
)
def test_what_cannot_be_read_or_never_fires_is_refused(kind, text, told):
    with pytest.raises(InvalidSchedule, match=rf"(?s)^{kind}: got .*{re.escape(told)}"):
        rule_of(kind, text, "UTC", NOW_MS)


@pytest.mark.parametrize(
    ("kind", "text", "same"),
    [
        ("cron", "@daily", "0 0 * * *"),
        ("cron", " @Midnight", "0 0 * * *"),
        ("cron", "@hourly", "0 * * * *"),
        ("cron", "@weekly", "0 0 * * 0"),
        ("cron", "@monthly", "0 0 1 * *"),
        ("cron", "@yearly", "0 0 1 1 *"),
        ("cron", "@annually", "0 0 1 1 *"),
        ("cron", "0 9 ? * MON-FRI", "0 9 * * mon-fri"),
        ("cron", "0 0 9 15 * ?", "0 9 15 * *"),
        ("rrule", "FREQ=DAILY;BYHOUR=9;", "RRULE:FREQ=DAILY;BYHOUR=9"),
        ("rrule", "FREQ=WEEKLY;BYDAY=MO\n", "FREQ=WEEKLY;BYDAY=MO"),
    ],
)
def test_what_others_write_is_read(kind, text, same):
    first, second = (rule_of(kind, one, "Europe/Berlin", NOW_MS) for one in (text, same))
    assert moments_of(first, NOW_MS, 20) == moments_of(second, NOW_MS, 20)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0 9-9/3 * * *", "0 9 * * *"),
        ("5-5/2,40 9 * * *", "5,40 9 * * *"),
        ("3-3/7 5-05/2 9 * * *", "3 5 9 * * *"),
        ("0 9 1-1/5 * *", "0 9 1 * *"),
        ("0 9 1 2-2/3 *", "0 9 1 2 *"),
        ("0 9 1 Jan-1/3 *", "0 9 1 1 *"),
        ("0 9 * * fri-FRI/2", "0 9 * * 5"),
        ("0 9 * * sun-0/2,3-3/1", "0 9 * * 0,3"),
        ("0 9 * * 7-7/2", "0 9 * * 0"),
        ("0 9-10/1 * * *", "0 9,10 * * *"),
    ],
)
def test_a_range_of_one_with_a_step_is_that_one(text, same):
    first, second = (rule_of("cron", one, "Europe/Berlin", NOW_MS) for one in (text, same))
    assert moments_of(first, NOW_MS, 20) == moments_of(second, NOW_MS, 20)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0 9 * * fri-mon", "0 9 * * 5,6,0,1"),
        ("0 9 * * SAT-sun", "0 9 * * 6,0"),
        ("0 9 * * 7-2", "0 9 * * 0,1,2"),
        ("0 9 * * 7-0", "0 9 * * 0"),
        ("0 9 * * 5-7", "0 9 * * 5,6,0"),
        ("0 9 * * fri-sun,mon", "0 9 * * 5,6,0,1"),
        ("0 9 * * fri-mon/2", "0 9 * * 5,0"),
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("50-10/20 22-2/3 * * *", "50,10 22,1 * * *"),
        ("0 9 28-3 nov-feb *", "0 9 28,29,30,31,1,2,3 11,12,1,2 *"),
        ("58-1 0 9 * * *", "58,59,0,1 0 9 * * *"),
        ("0 9 * * friL", "0 9 * * 5L"),
        ("0 9 * * SUNl,wed", "0 9 * * 0L,3"),
    ],
)
def test_ranges_wrap_around(text, same):
    first, second = (rule_of("cron", one, "Europe/Berlin", NOW_MS) for one in (text, same))
    assert moments_of(first, NOW_MS, 40) == moments_of(second, NOW_MS, 40)


_MONTH_DAYS = st.one_of(
    st.integers(1, 31).map("{}W".format),
    st.integers(1, 30).map("L-{}".format),
    st.sampled_from(["1", "30", "L", "LW", "20-3", "*/9", "1w", "l-2"]),
)


def _are_days(text, days):
    """Return the days of a month that a text means, looked for among all of them."""
    last = len(days)
    if text in ("L", "LW") or text[:2] == "L-":
        working = [day for day in days if day.weekday() < 5]
        return {working[-1]} if text == "LW" else set(days[::-1][int(text[2:] or 0) :][:1])
    if text.endswith("W"):
        number = int(text[:-1])
        working = [day for day in days if day.weekday() < 5 and number <= last]
        return set(sorted(working, key=lambda day: abs(day.day - number))[:1])
    if text == "20-3":
        return {day for day in days if day.day >= 20 or day.day <= 3}
    if text == "*/9":
        return {day for day in days if day.day % 9 == 1}
    return {day for day in days if day.day == int(text)}


@settings(deadline=None)
@given(
    texts=st.lists(_MONTH_DAYS, min_size=1, max_size=3),
    weekday=st.none() | st.integers(0, 6),
    year=st.integers(1971, 2300),
)
@example(["31W"], None, 2027)
@example(["1W", "L-30"], 6, 2027)
@example(["*/9", "15W"], 3, 2027)
def test_days_counted_from_an_end_or_near_a_number(texts, weekday, year):
    line = f"0 0 {','.join(texts)} * {'*' if weekday is None else weekday}"
    year_days = [date(year, 1, 1) + timedelta(days=at) for at in range(365 + isleap(year))]
    months = [[day for day in year_days if day.month == month] for month in range(1, 13)]
    expected = set()
    for days in months:
        found = {day for text in texts for day in _are_days(text.upper(), days)}
        on = {day for day in days if day.isoweekday() % 7 == weekday}
        if weekday is not None:
            found = found & on if texts[0].startswith("*") else found | on
        expected |= found
    begin_ms = to_ms(datetime(year, 1, 1, tzinfo=UTC))
    try:
        moments = moments_of(cron(line), begin_ms - 1, len(expected) + 1)
    except InvalidSchedule:
        assert not expected
        return
    found = [from_ms(ms).date() for ms in moments]
    assert [day for day in found if day.year == year] == sorted(expected)


@pytest.mark.parametrize("days", [-80, -2, 1, 250])
def test_days_from_easter_are_in_each_year(days):
    found = moments_of(rrule(f"FREQ=YEARLY;BYEASTER={days}", "UTC", 0), 0, 60)
    easters = [easter(year) + timedelta(days=days) for year in range(1970, 2030)]
    assert [from_ms(ms).date() for ms in found] == easters


@pytest.mark.parametrize("step", ["/2", "/1", "/31"])
@pytest.mark.parametrize("day", ["L", "LW", "l", "L-3", "15W", "1,L", "L,1", "L,LW"])
def test_a_step_after_a_day_without_a_number_is_refused(day, step):
    with pytest.raises(InvalidSchedule, match=r"^cron: got .*, expected a step after \*"):
        cron(f"0 9 {day}{step} * *" if day != "L,1" else f"0 9 L{step},1 * *")


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "Mars/Olympus",
        "../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "Europe",
        *HERE,
        "right/Europe/Berlin",
    ],
)
def test_a_zone_that_does_not_exist_is_refused(zone):
    with pytest.raises(InvalidSchedule, match=r"^zone: got"):
        rule_of("cron", "* * * * *", zone, 0)


def _numbers(most, least=0):
    return st.one_of(
        st.just("*"),
        st.integers(least, most).map(str),
        st.integers(2, 20).map("*/{}".format),
        st.lists(st.integers(least, most), min_size=1, max_size=3).map(
            lambda many: ",".join(map(str, many))
        ),
    )


LINES = st.tuples(_numbers(59), _numbers(23), _numbers(28, 1), _numbers(12, 1), _numbers(6)).map(
    " ".join
)
RECURRENCES = st.tuples(
    st.sampled_from(["HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY"]),
    st.integers(1, 5),
    st.sampled_from(["", ";BYDAY=MO,TH", ";BYHOUR=1,2,3", ";BYMONTH=3,10", ";COUNT=300"]),
).map(lambda parts: "FREQ={};INTERVAL={}{}".format(*parts))
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
)


@settings(deadline=None, max_examples=60)
@example(("cron", "0 */3 * * 0"), "Australia/Lord_Howe", (2027, 4, 4), 0)
@given(
    kind_and_text=st.one_of(
        LINES.map(lambda line: ("cron", line)), RECURRENCES.map(lambda text: ("rrule", text))
    ),
    zone=ZONES,
    day=st.sampled_from(
        [(2027, 3, 14), (2027, 3, 28), (2027, 10, 31), (2027, 11, 7), (2027, 4, 4)]
    ),
    minutes=st.integers(-1500, 1500),
)
def test_before_and_after_tell_of_the_same_moments(kind_and_text, zone, day, minutes):
    """Around changes of clocks: in order, none twice, and the last before is the one it was."""
    try:
        rule = rule_of(*kind_and_text, zone, to_ms(datetime(2026, 1, 1, tzinfo=UTC)))
    except InvalidSchedule:
        return
    at_ms = to_ms(datetime(*day, tzinfo=UTC)) + minutes * 60_000
    moments = moments_of(rule, at_ms - 3 * DAY_MS, 40)
    assert moments == sorted(set(moments))
    for last, ms in pairwise(moments):
        assert rule.before(ms - 1) == last
        assert rule.before(last) == last
        assert next(rule.following(last)) == ms


@pytest.mark.parametrize("part_ms", [0, 1, 999])
def test_a_count_begins_with_the_start_also_with_a_part_of_a_second(part_ms):
    found = moments_of(rrule("FREQ=DAILY;COUNT=3", "UTC", NOW_MS - part_ms), 0, 9)
    assert found == [NOW_MS, NOW_MS + DAY_MS, NOW_MS + 2 * DAY_MS]


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=MONTHLY;INTERVAL=5;BYMONTHDAY=1,31",
        "FREQ=MONTHLY;BYDAY=2TU",
        "FREQ=YEARLY;INTERVAL=3",
        "FREQ=YEARLY;BYWEEKNO=20,53;BYDAY=MO",
        "FREQ=WEEKLY;INTERVAL=3;BYDAY=MO,SU",
        "FREQ=HOURLY;INTERVAL=7",
        "FREQ=MINUTELY;INTERVAL=1001",
    ],
)
def test_a_rule_that_is_walked_from_later_on_means_the_same(text):
    """Against the library's own walk from the beginning."""
    begin = datetime(2000, 1, 17, 5, 30)
    start = datetime(2021, 2, 3, 4, 5)
    walk = rrulestr(f"RRULE:{text}", dtstart=begin).xafter(start, count=12)
    expected = [to_ms(at.replace(tzinfo=UTC)) for at in walk]
    rule = rrule(text, "UTC", to_ms(begin.replace(tzinfo=UTC)))
    assert moments_of(rule, to_ms(start.replace(tzinfo=UTC)), 12) == expected
    assert rule.before(expected[-1] + 1) == expected[-1]


def _some(name, values):
    return st.just("") | st.lists(values, min_size=1, max_size=4, unique=True).map(
        lambda many: f";{name}=" + ",".join(map(str, many))
    )


def _may_fire(text):
    # The library walks to the year 9999 where no such day is in such a month.
    return not ("YEARDAY" in text and "BYMONTH" in text)


#: All that a rule may say, but for intervals with which some days of the week never come.
ALL_PARTS = st.tuples(
    st.sampled_from(["MINUTELY", "HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY"]).map(
        "FREQ={}".format
    ),
    st.sampled_from([1, 1, 2, 3, 5, 13, 100, 1001]).map(";INTERVAL={}".format),
    _some("BYDAY", st.sampled_from(["MO", "TU", "WE", "SA", "SU", "1FR", "-1TH"])),
    _some("BYMONTH", st.integers(1, 12)),
    _some("BYHOUR", st.integers(0, 23)),
    _some("BYMINUTE", st.integers(0, 59)),
    _some("BYSECOND", st.integers(0, 59)),
    _some("WKST", st.sampled_from(["SU", "WE"])).map(lambda text: text.partition(",")[0]),
    _some("BYMONTHDAY", st.integers(-28, 28).filter(bool)),
    _some("BYYEARDAY", st.integers(-366, 366).filter(bool)),
    _some("BYSETPOS", st.sampled_from([1, 2, -1, -2, 5, -7])),
).map("".join)
ALL_PARTS = ALL_PARTS.filter(_may_fire)
DRAWN = {
    "text": ALL_PARTS,
    "begin": st.datetimes(datetime(2019, 1, 1), datetime(2021, 1, 1)),
    "days": st.integers(0, 900),
    "minutes": st.integers(0, 1440),
    "zone": st.sampled_from(["UTC", "UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Gaza"]),
}


def listed_by_the_library(text, begin):
    # Its cache keeps a lock when a walk is interrupted, and then waits for ever.
    return rrulestr(f"RRULE:{text}", dtstart=begin)


def check_against_the_library(text, begin, days, minutes, zone):
    """Against its own walk from the beginning, forwards and backwards, a moment for each time."""
    begin, there = begin.replace(microsecond=0), ZoneInfo(zone)
    start = begin + timedelta(days=days, minutes=minutes)
    try:
        rule = rrule(text, zone, moment(begin, there))
    except InvalidSchedule:
        return False
    if "WEEKLY" in text and "SETPOS" in text:
        # The library counts the days of its first week from the begin on.
        start = max(start, begin + timedelta(days=7))
    day = timedelta(days=1)
    listed = listed_by_the_library(text, begin).xafter(start - day)
    walls, later = [], []
    for at in islice(listed, 9000):
        walls.append(at)
        later += [at] * (at > start)
        if at.year - start.year > 44 or (len(later) > 13 and at > later[13] + 2 * day):
            break
    # What clocks set may move is not compared at the ends.
    found = sorted({moment(at, there) for at in walls if at < walls[-1] - day or zone == "UTC"})
    start_ms = moment(start, there)
    last_ms = start_ms + 44 * 365 * DAY_MS
    expected = [ms for ms in found if start_ms < ms < last_ms][:12]
    assert moments_of(rule, start_ms, 12)[: len(expected)] == expected
    for last, ms in pairwise(expected):
        assert rule.before(last) == rule.before(ms - 1) == last
    return bool(expected)


def moment(wall, zone):
    return to_ms(wall.replace(tzinfo=zone).astimezone(UTC))


#: Rules that few are drawn like.
ODD_RULES = [
    "FREQ=WEEKLY;BYDAY=MO,WE,FR;BYSETPOS=-1",
    "FREQ=WEEKLY;INTERVAL=3;WKST=WE;BYDAY=TU,WE,SU;BYHOUR=1,2,3;BYSETPOS=2,-2",
    "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR,SA,SU;BYMONTH=2,10;BYSETPOS=1,-1,5",
    "FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=0,30;BYSETPOS=2,-1",
    "FREQ=DAILY;INTERVAL=5;BYHOUR=2;BYMINUTE=0,15,30;BYSETPOS=2,3,-9",
    "FREQ=HOURLY;INTERVAL=7;BYMINUTE=5,10,15;BYSECOND=0,30;BYSETPOS=-2,1",
    "FREQ=MINUTELY;INTERVAL=7;BYSECOND=1,2,59;BYSETPOS=-1,2",
    "FREQ=HOURLY;BYMONTHDAY=1,-1;BYHOUR=0,2,23",
    "FREQ=MINUTELY;INTERVAL=25;BYMONTHDAY=28,-3;BYYEARDAY=59,60,-307",
    "FREQ=HOURLY;BYYEARDAY=1,87,300,-1,-366;BYMINUTE=0,30;BYSETPOS=2",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=2,3;BYSETPOS=-1,1",
    "FREQ=YEARLY;BYDAY=SU;BYHOUR=2;BYMINUTE=0,30;BYSETPOS=-1,25,26,80",
]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Australia/Lord_Howe"])
@pytest.mark.parametrize("text", ODD_RULES)
def test_odd_rules_are_those_of_the_library(text, zone):
    for days in (0, 85, 298, 450, 662, 724):
        assert check_against_the_library(text, datetime(2019, 1, 2, 3, 4, 5), days, 77, zone)


@settings(deadline=None, max_examples=50 * RUNS)
@given(**DRAWN)
def test_rules_of_all_parts_are_those_of_the_library(**drawn):
    check_against_the_library(**drawn)


@pytest.mark.campaign
@settings(deadline=None, max_examples=1000)
@given(**DRAWN)
def test_many_rules_of_all_parts_are_those_of_the_library(**drawn):
    check_against_the_library(**drawn)


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Australia/Lord_Howe", (2026, 10, 4)),
        ("Antarctica/Troll", (2026, 3, 29)),
        ("Africa/Casablanca", (2026, 2, 15)),
        ("America/St_Johns", (2027, 3, 14)),
        ("Pacific/Apia", (2011, 12, 30)),
        ("Asia/Tehran", (2021, 3, 22)),
    ],
)
@pytest.mark.parametrize("hours", ["0", "1,2", "2,3", "0,1,2,3,23"])
@pytest.mark.parametrize("minutes", ["0", "15,30", "5,45", "0,20,40,59"])
@pytest.mark.parametrize("freq", ["DAILY", "WEEKLY;BYDAY=SU,MO"])
def test_recurrences_at_odd_changes_are_those_of_the_wall_in_order(zone, day, hours, minutes, freq):
    """What is on the wall is made a moment, one by one, and sorted."""
    text = f"FREQ={freq};BYHOUR={hours};BYMINUTE={minutes};BYSECOND=0"
    start = datetime(*day) - timedelta(days=9)
    there = ZoneInfo(zone)
    wall = rrulestr(f"RRULE:{text}", dtstart=start).between(start, start + timedelta(days=20))
    expected = sorted({to_ms(at.replace(tzinfo=there).astimezone(UTC)) for at in wall})
    rule = rrule(text, zone, to_ms(start.replace(tzinfo=there)))
    found = [ms for ms in moments_of(rule, expected[0] - 1, 500) if ms <= expected[-1]]
    assert found == expected
    steps = [next(rule.following(ms - 1)) for ms in expected]
    assert steps == expected
    assert [rule.before(ms) for ms in expected] == expected


def _changes(name):
    """Yield the moments from 2020 to 2037 at which the clocks of a zone are set, by dateutil."""
    zone = tz.gettz(name)
    if zone is None:
        return
    day = datetime(2020, 1, 1, tzinfo=UTC)
    before = day.astimezone(zone).utcoffset()
    while day.year < 2038:
        day += timedelta(days=1)
        after = day.astimezone(zone).utcoffset()
        if after != before:
            low, high = day - timedelta(days=1), day
            while high - low > timedelta(minutes=1):
                middle = low + (high - low) // 2
                low, high = (
                    (middle, high)
                    if middle.astimezone(zone).utcoffset() == before
                    else (low, middle)
                )
            yield high.replace(second=0, microsecond=0), before, after
        before = after


def _zones_by_changes():
    """Yield a zone for each history of changes that some zone has, and how many have it."""
    same = defaultdict(list)
    for name in sorted(zoneinfo.available_timezones().difference(HERE)):
        same[tuple(_changes(name))].append(name)
    for changes, names in same.items():
        yield names[0], changes, len(names)


@pytest.mark.campaign
def test_every_change_of_clocks_from_2020_to_2037():
    """A job of each day runs once a day in every zone; dateutil says where the changes are."""
    found = 0
    for name, changes, zones in _zones_by_changes():
        found += zones * len(changes)
        for at, before, after in changes:
            # The middle of what is left out, or of what comes twice.
            wall = (at + before + (after - before) / 2).replace(tzinfo=None)
            line = f"{wall.minute} {wall.hour} * * *"
            text = f"FREQ=DAILY;BYHOUR={wall.hour};BYMINUTE={wall.minute};BYSECOND=0"
            first_ms = to_ms(at) - 2 * DAY_MS
            by_cron = moments_of(cron(line, name), first_ms, 4)
            by_rrule = moments_of(rrule(text, name, first_ms - DAY_MS), first_ms, 4)
            there = ZoneInfo(name)
            if after - before < timedelta(hours=12):
                spans = {round((b - a) / DAY_MS) for a, b in pairwise(by_cron)}
                assert spans == {1}, (name, at)
            for mine, theirs in zip(by_cron, by_rrule, strict=True):
                shown = from_ms(mine).astimezone(there)
                if (shown.hour, shown.minute) == (wall.hour, wall.minute):
                    assert mine == theirs, (name, at)
                    assert shown.fold == 0, (name, at)
                else:
                    # Left out: cron runs when the change is over, the recurrence as much later.
                    assert after > before, (name, at)
                    assert abs(mine - to_ms(at)) < 60_000, (name, at)
                    assert (
                        from_ms(theirs).astimezone(there).replace(tzinfo=None)
                        - wall.replace(second=0, microsecond=0)
                        >= timedelta()
                    ), (name, at)
    assert found > 4000
