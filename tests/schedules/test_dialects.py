"""Lines of other systems: each fires when the system's own documentation says so."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell.calendar import rule_of
from dwell.calendar.epoch import from_ms, to_ms
from dwell.calendar.translation import DIALECTS, translated
from dwell.errors import InvalidSchedule
from dwell.message import Result
from dwell.store.memory import MemoryStore

START = datetime(2026, 11, 28, tzinfo=UTC)
CELERY = Path(__file__).parents[2] / ".brokers" / "tasks" / "bin" / "python"
NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

#: For each system how it numbers a day, what it calls a line of all fields, and whether a day of
#: the month and a weekday must both hold: written down here once more, from its documentation.
SYSTEMS = {
    "quartz": (lambda day: (day.isoweekday() % 7) + 1, "0 {minute} {hour} {day} {month} {week}"),
    "eventbridge": (
        lambda day: (day.isoweekday() % 7) + 1,
        "{minute} {hour} {day} {month} {week} *",
    ),
    "apscheduler": (lambda day: day.weekday(), "{minute} {hour} {day} {month} {week}"),
    "celery": (lambda day: day.isoweekday() % 7, "{minute} {hour} {day} {month} {week}"),
    "robfig": (lambda day: day.isoweekday() % 7, "{minute} {hour} {day} {month} {week}"),
}


def runs(line, count, start=START):
    rule = rule_of("cron", line, "UTC", 0)
    return [from_ms(ms) for ms in islice(rule.following(to_ms(start)), count)]


@st.composite
def sets(draw, least, most, *, starts=False):
    """A field of values, ranges and steps, and the values that it means."""
    first = draw(st.integers(least, most))
    kind = draw(st.sampled_from(("one", "range", "step", "list", *(["from"] if starts else []))))
    if kind == "from":
        step = draw(st.integers(1, max(1, most - first)))
        return f"{first}/{step}", set(range(first, most + 1, step))
    if kind == "one":
        return str(first), {first}
    last = draw(st.integers(first, most))
    if kind == "range":
        return f"{first}-{last}", set(range(first, last + 1))
    if kind == "step":
        step = draw(st.integers(1, 5))
        return f"{first}-{last}/{step}", set(range(first, last + 1, step))
    return (f"{first},{last}"), {first, last}


@st.composite
def lines(draw):
    system = draw(st.sampled_from(sorted(SYSTEMS)))
    number, form = SYSTEMS[system]
    lowest = min(number(START + timedelta(days=day)) for day in range(7))
    starts = system != "celery"
    minute, minutes = draw(sets(0, 59, starts=starts))
    hour, hours = draw(sets(0, 23, starts=starts))
    month, months = draw(st.just(("*", set(range(1, 13)))) | sets(1, 12, starts=starts))
    day, week = draw(sets(1, 28)), draw(sets(lowest, lowest + 6, starts=starts))
    which = draw(st.sampled_from(("day", "week", "none")))
    is_day, is_week = which == "day", which == "week"
    any_day = "?" if system in ("quartz", "eventbridge") else "*"
    line = form.format(
        minute=minute,
        hour=hour,
        month=month,
        day=day[0] if is_day else "*" if which == "none" else any_day,
        week=week[0] if is_week else any_day,
    )

    def fires(at):
        return (
            at.month in months
            and (not is_day or at.day in day[1])
            and (not is_week or number(at) in week[1])
        )

    times = [timedelta(hours=h, minutes=m) for h in sorted(hours) for m in sorted(minutes)]
    return system, line, fires, times


@given(lines())
@settings(max_examples=25, deadline=None)
def test_lines_fire_when_their_system_says(drawn):
    system, line, fires, times = drawn
    days = [START + timedelta(days=number) for number in range(800)]
    found = runs(translated(line, system), 12)
    assert found, line
    end = found[-1]
    allowed = (day + time for day in days if fires(day) for time in times)
    expected = [at for at in allowed if START < at <= end]
    assert found == expected[: len(found)] or end > days[-1]


@pytest.mark.parametrize(
    ("system", "line", "own"),
    [
        ("quartz", "0 0 9 ? * 6L", "0 0 9 * * 5L"),
        ("quartz", "0 0 9 ? * FRI#3", "0 0 9 * * 5#3"),
        ("quartz", "0 0 9 ? * L", "0 0 9 * * 6"),
        ("quartz", "0 0 9 LW * ?", "0 0 9 LW * *"),
        ("quartz", "0 0 9 15W * ?", "0 0 9 15W * *"),
        ("quartz", "0 0 9 L-3,1w * ?", "0 0 9 L-3,1W * *"),
        ("eventbridge", "cron(0 9 15W * ? *)", "0 9 15W * *"),
        ("quartz", "0 0/20 22-2 ? * *", "0 0,20,40 22,23,0,1,2 * * *"),
        ("quartz", "0 0 9 ? * FRI-MON *", "0 0 9 * * 5,6,0,1"),
        ("eventbridge", "cron(0 10 ? * MON-FRI *)", "0 10 * * 1-5"),
        ("apscheduler", "0 9 * * mon-fri", "0 9 * * 1-5"),
        ("apscheduler", "0 9 * * */2", "0 9 * * 1,3,5,0"),
        ("apscheduler", "5/15 9/4 * * 1/2", "5,20,35,50 9,13,17,21 * * 2,4,6"),
        ("celery", "0 9 * * fri-mon", "0 9 * * 5,6,0,1"),
        ("celery", "0 9 */2 * 1", "0 9 */2 * 1"),
        # Of these robfig runs at either, and crontab(5) only at both.
        ("robfig", "0 9 */15 * 1", "0 9 1,16,31 * 1"),
        # A step of one, or a star in a list, leaves the day open.
        ("robfig", "0 0 */1 * mon", "0 0 * * 1"),
        ("robfig", "0 0 1 * */1", "0 0 1 * *"),
        ("robfig", "0 0 1,* * mon", "0 0 * * 1"),
        # It runs in each hour where clocks go back, which one that names hours does not.
        ("robfig", "0 0/1 * * *", "0 * * * *"),
        ("robfig", "30 0 9 * * *", "30 0 9 * * *"),
        ("robfig", "@daily", "@daily"),
        ("crontab", "0 9 * * 7", "0 9 * * 7"),
    ],
)
def test_lines_are_translated(system, line, own):
    assert translated(line, system) == own
    assert runs(own, 2)


@pytest.mark.parametrize(
    ("system", "line", "allowed"),
    [
        ("quartz", "0 9 * * 1", "the fields second minute hour day month weekday [year]"),
        ("quartz", "0 0 9 1 1 ? 2027", "* as the year in place of 2027"),
        ("quartz", "0 0 9 1 * 2", "both must hold there"),
        ("quartz", "0 0 ? * * ?", "hour in place of '?', such as *"),
        ("eventbridge", "?/5 9 * * ? *", "a minute in place of '?/5'"),
        ("quartz", "0 0 9 ? * 0", "a weekday from 1 to 7"),
        ("eventbridge", "0 9 32W * ? *", "a day from 1 to 31 in place of '32W'"),
        ("apscheduler", "0 9 1 * 0", "both must hold there"),
        ("apscheduler", "0 9 1 * */2", "both must hold there"),
        ("apscheduler", "0 9 * * 7", "a weekday from 0 to 6"),
        ("apscheduler", "0 9 * * fri-mon", "a range from less to more, not fri-mon"),
        ("apscheduler", "0 9 * * mon-5/2", "names without numbers in place of 'mon-5/2'"),
        ("apscheduler", "0 9 * * mon-fri/2", "names without numbers in place of 'mon-fri/2'"),
        ("celery", "0 9 1 * 1", "both must hold there"),
        ("robfig", "0 9 * * 7", "a weekday from 0 to 6"),
        ("robfig", "0/90 9 * * 1", "a minute in place of '0/90'"),
        ("robfig", "*-3 9 * * 1", "a minute in place of '*-3'"),
        ("celery", "0 9 15/2 * *", "a step after * or a range in place of '15/2'"),
        ("celery", "0 9 * * mon/2", "in place of 'mon/2'"),
        ("celery", "\u0660 9 * * *", "ASCII characters alone"),
        ("celery", "", "the fields minute hour day month weekday"),
        ("hangfire", "0 9 * * 1", "one of crontab, quartz"),
    ],
)
def test_what_cannot_be_said_is_refused(system, line, allowed):
    with pytest.raises(InvalidSchedule) as refused:
        translated(line, system)
    assert allowed in str(refused.value)


@given(st.text(max_size=40), st.sampled_from(sorted(DIALECTS)))
def test_any_text_is_read_or_refused(line, system):
    refused = "cron: got"
    try:
        rule_of("cron", translated(line, system), "UTC", 0)
    except InvalidSchedule as error:
        refused = str(error)
    assert refused.startswith("cron: got")


_ASK_CELERY = """
import json, sys
from datetime import datetime, timedelta, timezone
from celery.schedules import crontab
start = datetime(2026, 11, 28, tzinfo=timezone.utc)
found = []
for line in json.load(sys.stdin):
    minute, hour, day, month, week = line.split()
    one = crontab(minute, hour, week, day, month, nowfun=lambda: at)
    at, runs = start, []
    for _ in range(20):
        at = at + one.remaining_estimate(at)
        runs.append(int(at.timestamp() * 1000))
    found.append(runs)
print(json.dumps(found))
"""


def test_lines_of_celery_fire_when_celery_says():
    """Asked of the real one, which is in a place of its own."""
    said = ["0 9 * * 1", "*/15 8-17 * * 1-5", "0 0 1,15 * *", "30 6 * 2-4 fri-mon", "0 12 */2 * 3"]
    done = subprocess.run(
        [CELERY, "-c", _ASK_CELERY],
        input=json.dumps(said),
        capture_output=True,
        text=True,
        check=True,
    )
    for line, expected in zip(said, json.loads(done.stdout), strict=True):
        assert [to_ms(run) for run in runs(translated(line, "celery"), 20)] == expected, line


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ({"cron": "CRON_TZ=Asia/Tokyo 0 9 * * *"}, ("0 9 * * *", "Asia/Tokyo")),
        ({"cron": " TZ=Asia/Tokyo\t0 9 * * mon", "zone": "UTC"}, ("0 9 * * mon", "Asia/Tokyo")),
        ({"cron": "TZ=Asia/Tokyo @daily", "zone": "Asia/Tokyo"}, ("@daily", "Asia/Tokyo")),
        (
            {"cron": "CRON_TZ=Asia/Tokyo 0 0 9 * * 1", "dialect": "robfig"},
            ("0 0 9 * * 1", "Asia/Tokyo"),
        ),
    ],
)
async def test_a_line_names_its_zone(words, kept):
    async with dwell.Queue(MemoryStore(dwell.SimulatedClock(to_ms(START)))) as queue:
        await queue.schedules.put("s", "t", b"", **words)
        schedule = (await queue.schedules.get("s")).schedule
        assert (schedule.cron, schedule.zone) == kept
        preview = await queue.schedules.preview(1, **words)
        assert preview.runs == await queue.schedules.next("s", 1)
        await queue.schedules.change("s", cron="TZ=Europe/Berlin 0 9 * * *")
        schedule = (await queue.schedules.get("s")).schedule
        assert (schedule.cron, schedule.zone) == ("0 9 * * *", "Europe/Berlin")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"cron": "CRON_TZ=Mars/Base 0 9 * * *"}, "zone: got 'Mars/Base'"),
        ({"cron": "TZ=Asia/Tokyo 0 9 * * *", "zone": "Asia/Seoul"}, "zone: got 'Asia/Seoul' and"),
        ({"cron": "TZ=Asia/Tokyo"}, "cron: got 'TZ=Asia/Tokyo'"),
        ({"cron": "TZ=Asia/Tokyo TZ=Asia/Seoul 0 9 * * *"}, 'zone="Asia/Seoul" beside'),
    ],
)
async def test_a_zone_in_a_line_that_is_refused(words, told):
    async with dwell.Queue(MemoryStore(dwell.SimulatedClock(to_ms(START)))) as queue:
        with pytest.raises(InvalidSchedule, match=told):
            await queue.schedules.put("s", "t", b"", **words)


async def test_a_schedule_keeps_the_translated_line():
    async with dwell.Queue(MemoryStore(dwell.SimulatedClock(to_ms(START)))) as queue:
        words = {"cron": "0 0 9 ? * 2-6", "dialect": "quartz"}
        assert await queue.schedules.put("s", "t", b"", **words) is Result.CREATED
        found = await queue.schedules.get("s")
        assert found.schedule.cron == "0 0 9 * * 1-5"
        changed = await queue.schedules.change("s", cron="0 9 * * 0", dialect="apscheduler")
        assert changed is Result.REPLACED
        assert (await queue.schedules.get("s")).schedule.cron == "0 9 * * 1"
        with pytest.raises(InvalidSchedule, match="without cron"):
            await queue.schedules.put("s", "t", b"", every="1m", dialect="quartz")
