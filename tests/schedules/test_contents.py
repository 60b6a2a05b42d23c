"""Lines of a calendar: DTSTART, RRULE, RDATE and EXDATE, as calendars export them."""

import asyncio
import re
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dwell
from dwell.calendar import rule_of, stated_zone, states_begin
from dwell.calendar.contents import read
from dwell.calendar.epoch import from_ms, to_ms
from dwell.errors import InvalidSchedule
from dwell.message import Result
from dwell.queue.schedules.schedule import moment_text
from dwell.queue.schedules.words import made
from tests import RUNS
from tests.http.test_http_api import calling
from tests.schedules.test_costs import within
from tests.waiting import until_async

BEGIN = datetime(2027, 3, 26, 2, 30)


def shown(text, zone="UTC", count=20):
    rule = rule_of("rrule", text, zone, 0)
    moments = list(islice(rule.following(to_ms(datetime(2026, 12, 1, tzinfo=UTC))), count))
    assert [rule.before(ms) for ms in moments] == moments
    return " ".join(moment_text(ms)[5:-4] for ms in moments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Clocks are set forward on 28 March: what has no 02:30 is at 03:30.
        ("DTSTART;TZID=Europe/Berlin:20270326T023000\nRRULE:FREQ=DAILY;COUNT=4",
         "03-26T01:30 03-27T01:30 03-28T01:30 03-29T00:30"),
        # COUNT counts what EXDATE leaves out, and not what RDATE adds.
        ("DTSTART;TZID=Europe/Berlin:20270326T023000\r\nRRULE:FREQ=DAILY;COUNT=4\r\n"
         "EXDATE;TZID=Europe/Berlin:20270327T023000,2027\r\n 0329T023000\r\n"
         "RDATE:20270401T000000Z\r\n",
         "03-26T01:30 03-28T01:30 04-01T00:00"),
        # What is left out in the gap, as it stands on the wall and as it is.
        ("DTSTART;TZID=Europe/Berlin:20270327T023000\nRRULE:FREQ=DAILY;COUNT=3\n"
         "EXDATE;TZID=Europe/Berlin:20270328T023000", "03-27T01:30 03-29T00:30"),
        ("DTSTART;TZID=Europe/Berlin:20270327T023000\nRRULE:FREQ=DAILY;COUNT=3\n"
         "EXDATE:20270328T013000Z", "03-27T01:30 03-29T00:30"),
        # The second 02:30 of 31 October, which no rule has, and the first.
        ("DTSTART;TZID=Europe/Berlin:20271030T023000\nRRULE:FREQ=DAILY;COUNT=2\n"
         "RDATE:20271031T013000Z", "10-30T00:30 10-31T00:30 10-31T01:30"),
        ("DTSTART;TZID=Europe/Berlin:20271030T023000\nRRULE:FREQ=DAILY;COUNT=2\n"
         "EXDATE:20271031T013000Z", "10-30T00:30 10-31T00:30"),
        # An UNTIL in UTC is a moment, whatever clocks show.
        ("DTSTART;TZID=Europe/Berlin:20271030T023000\nRRULE:FREQ=DAILY;UNTIL=20271031T011500Z",
         "10-30T00:30 10-31T00:30"),
        ("DTSTART;TZID=Europe/Berlin:20270327T023000\nRRULE:FREQ=DAILY;UNTIL=20270328T011000Z",
         "03-27T01:30"),
        ("DTSTART;TZID=Europe/Berlin:20270327T023000\nRRULE:FREQ=DAILY;UNTIL=20270328T013000Z",
         "03-27T01:30 03-28T01:30"),
        # Times that are added go beyond the rule at both ends.
        ("DTSTART:20270101T090000Z\nRRULE:FREQ=DAILY;UNTIL=20270102T090000Z\n"
         "RDATE:20261224T100000Z,20280101T100000Z",
         "12-24T10:00 01-01T09:00 01-02T09:00 01-01T10:00"),
        # Without a rule the begin is the first time.
        ("DTSTART:20270101T090000Z\nRDATE:20270105T090000Z,20270103T090000Z",
         "01-01T09:00 01-03T09:00 01-05T09:00"),
        ("DTSTART;VALUE=DATE:20270101\nRDATE;VALUE=DATE:20270103\nEXDATE;VALUE=DATE:20270101",
         "01-03T00:00"),
        # A date leaves out its day.
        ("DTSTART:20270101T090000\nRRULE:FREQ=HOURLY;INTERVAL=8;COUNT=6\nEXDATE;VALUE=DATE:20270102",
         "01-01T09:00 01-01T17:00 01-03T01:00"),
        # What matches nothing is allowed.
        ("RRULE:FREQ=DAILY;COUNT=2\nDTSTART;X-A=1:20270101T090000\nEXDATE:20270101T090001", None),
        ('EXDATE:19990101T000000Z\nDTSTART;TZID="Europe/Berlin";VALUE=DATE-TIME:20270101T090000\n\n'
         "FREQ=DAILY;COUNT=2\n", "01-01T08:00 01-02T08:00"),
        ("dtstart;tzid=Europe/Berlin:20270101T090000\nrrule:freq=daily;count=1", "01-01T08:00"),
        ("FREQ=DAILY;\r\n UNTIL=20270101;BYHOU\r\n\tR=9;BYMONTH=1", "01-01T09:00"),
    ],
)  # fmt: skip
def test_lines_of_a_calendar_fire_when_they_say(text, expected):
    if expected is None:
        with pytest.raises(InvalidSchedule, match="TZID or VALUE in place of X-A"):
            shown(text)
        return
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("RRULE:FREQ=DAILY\nSUMMARY:pay", "'SUMMARY:pay' in line 2, expected one of DTSTART"),
        ("DTSTART:20270101T090000Z\nRRULE:FREQ=DAILY\nEXDATE=2027", "in line 3, expected one of"),
        ("RRULE:FREQ=DAILY\nEXDATE:2027\n 0101T09", "'EXDATE:20270101T09' in line 2, expected"),
        ("\n\nRRULE:FREQ=DAILY\nEXDATE:20270230T090000", "line 4, expected a time such as"),
        ("RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY", "in line 2, expected one RRULE in the text"),
        ("DTSTART:20270101T090000\nDTSTART:20270101T090000\nRDATE:20270101T090000", "one DTSTART"),
        ("DTSTART:20270101T090000,20270102T090000\nRRULE:FREQ=DAILY", "line 1, expected one time"),
        ("DTSTART:20270101T090000", "expected an RRULE, or a DTSTART with RDATE"),
        ("RDATE:20270101T090000", "expected an RRULE, or a DTSTART with RDATE"),
        ("DTSTART:20270101\nRRULE:FREQ=DAILY", "VALUE=DATE before a date"),
        ("DTSTART;VALUE=DATE:20270101T090000\nRRULE:FREQ=DAILY", "a date in place of"),
        ("DTSTART:18991231T090000\nRRULE:FREQ=DAILY", "from 1900 to 9998"),
        ("FREQ=DAILY\nRDATE:99991231T235959", "from 1900 to 9998"),
        ("FREQ=DAILY\nRDATE;VALUE=PERIOD:20270101T090000/PT1H", "DATE-TIME in place of PERIOD"),
        ("FREQ=DAILY\nRDATE;VALUE=DATE:20270101", "RDATE 20270101, expected a time such as"),
        ("FREQ=DAILY\nEXDATE;TZID=Mars/Olympus:20270101T090000", "in line 2 the TZID 'Mars/Olym"),
        ("FREQ=DAILY\nEXDATE;TZID=Asia/Tokyo:20270101T090000Z", "a time without Z in place of"),
        ("RRULE;X-A=1:FREQ=DAILY\nEXDATE:20270101T090000", "RRULE: without parameters"),
        ("RRULE:FREQ=SOMETIMES\nEXDATE:20270101T090000", "'FREQ=SOMETIMES', expected a FREQ"),
        ("FREQ=DAILY" + "\nEXDATE:20270101T090000" * 500, "at most 10000"),
        ("FREQ=DAILY;BYMONTH=" + "1," * 600 + "1\nRDATE:20270101T090000", "at most 1000 in"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_text_is_told_with_its_line(text, told):
    with pytest.raises(InvalidSchedule, match=rf"(?s)^rrule: got .*{re.escape(told)}"):
        rule_of("rrule", text, "UTC", 0)


def test_a_begin_names_the_zone_and_no_other_is_taken_beside_it():
    text = "DTSTART;TZID=Asia/Tokyo:20270101T090000\nRRULE:FREQ=DAILY;COUNT=1"
    assert shown(text) == shown(text, "Asia/Tokyo") == "01-01T00:00"
    with pytest.raises(InvalidSchedule, match="got 'Europe/Berlin', expected Asia/Tokyo, as"):
        shown(text, "Europe/Berlin")
    with pytest.raises(InvalidSchedule, match="got 'Europe/Berlin', expected UTC, as DTSTART"):
        shown(text.replace(";TZID=Asia/Tokyo", "").replace("00\n", "00Z\n"), "Europe/Berlin")
    # One without a zone is in that of the schedule.
    assert shown(text.replace(";TZID=Asia/Tokyo", ""), "Europe/Berlin") == "01-01T08:00"


def test_the_last_moment_that_calendars_write_is_read_in_any_zone():
    for zone in ("Asia/Tokyo", "America/New_York"):
        rule = rule_of("rrule", "FREQ=DAILY;UNTIL=99991231T235959Z", zone, 0)
        assert next(rule.following(0)) > 0


def moment(wall, zone):
    return to_ms(wall.replace(tzinfo=zone).astimezone(UTC))


@st.composite
def texts(draw):
    """Draw a text, and what it says: its begin, rule, count or until, and the dates."""
    zone = draw(st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]))
    begin = draw(st.sampled_from([BEGIN, datetime(2027, 10, 30, 2), datetime(2027, 4, 3, 1, 45)]))
    step = st.integers(0, 40).map(lambda n: timedelta(minutes=30 * n))
    freq = draw(
        st.sampled_from(["HOURLY", "DAILY", "DAILY;BYHOUR=1,2,3;BYMINUTE=0,30", "MINUTELY"])
    )
    rule = f"FREQ={freq};INTERVAL={draw(st.sampled_from([1, 2, 30]))}"
    until = None
    if draw(st.booleans()):
        rule += f";COUNT={draw(st.integers(1, 60))}"
    else:
        until = begin + draw(step)
    added = draw(st.lists(step.map(begin.__add__), max_size=3))
    left_out = draw(st.lists(step.map(begin.__add__), max_size=6))
    days = draw(
        st.lists(st.integers(0, 2).map(lambda n: begin.date() + timedelta(days=n)), max_size=1)
    )
    return zone, begin, rule, until, added, left_out, days


@settings(deadline=None, max_examples=25 * RUNS)
@given(drawn=texts())
@example(("Europe/Berlin", BEGIN, "FREQ=HOURLY", None, [], [], [date(2027, 3, 28)]))
@example(("Europe/Berlin", datetime(2027, 3, 28), "FREQ=HOURLY;COUNT=5", None, [], [], []))
def test_texts_are_what_the_library_lists_as_moments(drawn):
    """Against the library's own walk over the wall, made moments one by one."""
    name, begin, rule, until, added, left_out, days = drawn
    zone = ZoneInfo(name)
    lines = [f"DTSTART;TZID={name}:{begin:%Y%m%dT%H%M%S}"]
    lines += [f"RRULE:{rule}" + ("" if until is None else f";UNTIL={until:%Y%m%dT%H%M%SZ}")]
    lines += [f"RDATE:{one:%Y%m%dT%H%M%SZ}" for one in added]
    lines += [f"EXDATE;TZID={name}:{one:%Y%m%dT%H%M%S}" for one in left_out]
    lines += [f"EXDATE;VALUE=DATE:{one:%Y%m%d}" for one in days]
    endless, _, count = rule.partition(";COUNT=")
    walls = islice(rrulestr(f"RRULE:{endless}", dtstart=begin), 3000)
    # Moments are counted, and two times on the wall are one where clocks go forward.
    ruled = sorted({moment(wall, zone) for wall in walls})[: int(count or 3000)]
    found = {ms for ms in ruled if from_ms(ms).astimezone(zone).date() not in days}
    if until is not None:
        found = {ms for ms in found if ms <= to_ms(until.replace(tzinfo=UTC))}
    for one in added:
        at = one.replace(tzinfo=UTC)
        if at.astimezone(zone).date() not in days:
            found.add(to_ms(at))
    expected = sorted(found - {moment(wall, zone) for wall in left_out})
    # Lines may be folded anywhere.
    read = rule_of("rrule", "\r\n".join(lines).replace("T0", "T\r\n 0"), "UTC", 0)
    most = expected[:200]
    assert list(islice(read.following(0), len(most) + 1))[: len(most)] == most
    if len(expected) < 200 and (until is not None or count):
        assert list(read.following(0)) == expected
    for last, ms in pairwise(most):
        assert read.before(last) == read.before(ms - 1) == last
        assert next(read.following(last)) == next(read.following(ms - 1)) == ms


TEXT = "DTSTART;TZID=Europe/Berlin:20960101T090000\nRRULE:FREQ=DAILY;COUNT=3\n"
TEXT += "EXDATE;TZID=Europe/Berlin:20960102T090000\n"
RUNS = ["2096-01-01T09:00:00+01:00", "2096-01-03T09:00:00+01:00"]


async def test_a_text_sets_the_zone_of_its_schedule():
    async with dwell.open("memory:") as queue:
        schedules = queue.schedules
        assert await schedules.put("s", "t", b"", rrule=TEXT) is Result.CREATED
        assert [run.isoformat() for run in await schedules.next("s")] == RUNS
        assert (await schedules.get("s")).schedule.zone == "Europe/Berlin"
        with pytest.raises(InvalidSchedule, match="zone: got 'Asia/Tokyo', expected Europe/Berlin"):
            await schedules.change("s", zone="Asia/Tokyo")
        assert await schedules.change("s", start=datetime(2096, 1, 2, tzinfo=UTC)) is (
            Result.REPLACED
        )
        assert [run.isoformat() for run in await schedules.next("s")] == RUNS[1:]
        tokyo = TEXT.replace("Europe/Berlin", "Asia/Tokyo")
        assert await schedules.change("s", rrule=tokyo) is Result.REPLACED
        assert (await schedules.get("s")).schedule.zone == "Asia/Tokyo"


async def test_a_text_fires_all_that_it_says_and_is_removed():
    clock = dwell.SimulatedClock(to_ms(datetime(2096, 1, 1, tzinfo=UTC)))
    async with dwell.open("memory:", clock=clock) as queue:
        await queue.schedules.put("s", "t", b"", rrule=TEXT, misfire="all")
        clock.advance(5 * 86_400_000)
        firing = asyncio.create_task(queue.schedules.fire())

        async def is_over():
            return await queue.schedules.get("s") is None

        await until_async(is_over)
        firing.cancel()
        times = [one.headers["dwell-time"] for one in await queue.take("t", 10)]
        assert times == ["2096-01-01T08:00:00Z", "2096-01-03T08:00:00Z"]


async def test_a_text_over_http():
    async with calling() as caller:
        path = "/v1/schedules/report"
        ask = {"topic": "t", "body": "x", "rrule": TEXT}
        assert await caller.ask("PUT", path, ask) == {"result": "created"}
        found = await caller.get(f"{path}?runs=9")
        assert (found["rrule"], found["zone"], found["runs"]) == (TEXT, "Europe/Berlin", RUNS)
        bad = TEXT.replace("EXDATE", "EXRULE")
        answer = await caller.ask("PATCH", path, {"rrule": bad})
        assert caller.status == 400
        assert "in line 3, expected one of DTSTART, EXDATE, RDATE, RRULE" in str(answer)


@pytest.mark.parametrize(
    "text",
    [
        "DTSTART:20300101T000000Z\n" + "RDATE:20300101T000000\n" * 45_000,
        "RRULE:FREQ=DAILY\n" + " x\n" * 300_000,
        "FREQ=DAILY" + " " * 10_000,
    ],
)
def test_what_is_too_long_is_refused_before_a_line_of_it_is_read(text):
    """The event loop of a server reads the zone of each text that it is sent."""
    for reader in (stated_zone, states_begin, lambda text: made("n", "t", b"", {"rrule": text}, 0)):

        def refused(reader=reader):
            with pytest.raises(InvalidSchedule, match="characters, at most 10000"):
                reader(text)

        within(200, refused)


@pytest.mark.parametrize("name", ["RDATE", "EXDATE"])
def test_many_lines_are_read_in_steps_of_their_number(name):
    lines = "DTSTART:20300101T000000Z\nRRULE:FREQ=DAILY\n" + f"{name}:20300101T000000\n" * 400
    found = read(lines)
    assert [len(found.added), len(found.left_out)] == [
        400 * (name == each) for each in ("RDATE", "EXDATE")
    ]
    assert read(lines.replace("FREQ", "F\n R\n E\n Q")) == found


NOW = datetime(2026, 11, 28, tzinfo=UTC)


@pytest.mark.parametrize(
    ("begin", "rule"),
    [
        ("19600315", "FREQ=YEARLY;COUNT=100"),
        ("20270315", "FREQ=YEARLY;COUNT=60"),
        ("19700101", "FREQ=MONTHLY;COUNT=1200"),
        ("19700101", "FREQ=WEEKLY;COUNT=5000"),
    ],
)
def test_a_count_ends_however_long_it_takes(begin, rule):
    text = f"DTSTART:{begin}T090000Z\nRRULE:{rule}"
    found = rule_of("rrule", text, "UTC", 0)
    expected = [to_ms(one) for one in rrulestr(text) if one > NOW]
    assert list(found.following(to_ms(NOW))) == expected
    assert found.before(expected[-1] + 40 * 366 * 86_400_000) == expected[-1]


@pytest.mark.parametrize(
    ("rule", "is_open"),
    [
        ("FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR", True),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", True),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29", True),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=TU", False),
    ],
)
def test_a_count_that_is_far_from_its_end_is_not_counted_to_it(rule, is_open):
    """Ten thousand of these would be in the year 9999, if there are so many."""
    text = f"DTSTART:19700105T090000Z\nRRULE:{rule};COUNT=10000"
    found = within(1_000_000, lambda: rule_of("rrule", text, "UTC", 0))
    assert (next(found.following(to_ms(NOW)), None) is not None) is is_open


@pytest.mark.parametrize("zone", [None, "UTC"])
async def test_a_zone_that_is_given_back_is_that_of_the_text(zone):
    async with dwell.open("memory:") as queue:
        text = "DTSTART;TZID=Europe/Berlin:20260101T090000\nRRULE:FREQ=DAILY"
        await queue.schedules.put("s", "t", b"", rrule=text)
        assert await queue.schedules.change("s", zone=zone) is Result.KEPT
        assert (await queue.schedules.get("s")).schedule.zone == "Europe/Berlin"
        with pytest.raises(InvalidSchedule, match="expected Europe/Berlin, as DTSTART says"):
            await queue.schedules.change("s", zone="America/New_York")


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("FREQ=DAILY;FREQ=WEEKLY", "expected each part once"),
        ("FREQ=DAILY;BYHOUR=1;BYHOUR=2", "expected each part once"),
        ("FREQ=DAILY;UNTIL=20270101Z", "expected an UNTIL such as"),
    ],
)
def test_a_part_that_says_two_things_is_refused(rule, told):
    with pytest.raises(InvalidSchedule, match=told):
        rule_of("rrule", rule, "UTC", 0)
