"""Schedules of EventBridge become those of Dwell; boto3 and moto have written them."""

import json
from datetime import UTC, datetime
from itertools import islice

import boto3
import pytest
from moto import mock_aws

from dwell.calendar.epoch import from_ms
from dwell.errors import InvalidUrl
from tests.takeover.copies import copied, messages, reasons, schedules

_ROLE = "arn:aws:iam::123456789012:role/r"
_QUEUE = "arn:aws:sqs:eu-central-1:123456789012:mails"
_CALL = "arn:aws:scheduler:::aws-sdk:ses:sendEmail"


@pytest.fixture
def aws():
    words = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "eu-central-1"}
    with mock_aws():
        yield lambda service: boto3.client(service, **words)


@pytest.fixture
def made(aws):
    """Make a schedule, and return what AWS tells of it."""
    scheduler = aws("scheduler")

    def make(name, expression, arn=_QUEUE, given='{"n": 1}', **words):
        words = {"FlexibleTimeWindow": {"Mode": "OFF"}} | words
        target = {"Arn": arn, "RoleArn": _ROLE} | ({} if given is None else {"Input": given})
        scheduler.create_schedule(Name=name, ScheduleExpression=expression, Target=target, **words)
        return scheduler.get_schedule(Name=name)

    return make


def _file(folder, *documents):
    path = folder / "rules.json"
    texts = [json.dumps(one, default=lambda value: value.isoformat()) for one in documents]
    path.write_text("\n".join(texts))
    return f"eventbridge:{path}"


def _ms(*parts):
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)


def _next(schedule, begin, count=3):
    ms = int(begin.timestamp() * 1000)
    return [from_ms(one).isoformat()[:19] for one in islice(schedule.times.following(ms), count)]


def test_schedules_keep_their_times_targets_and_inputs(made, tmp_path):
    begin, end = datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC), datetime(2030, 1, 1, 1, tzinfo=UTC)
    window = {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 15}
    zoned = {"ScheduleExpressionTimezone": "Europe/Berlin"}
    url = _file(
        tmp_path,
        made("often", "rate(5 minutes)", StartDate=begin, EndDate=end),
        # A list, as jq makes it of many answers.
        [
            made("work", "cron(15 10 ? * 2-6 *)", FlexibleTimeWindow=window, **zoned),
            made("event", "rate(1 day)", given=None, State="DISABLED"),
        ],
        made("call", "cron(0 0 1 * ? *)", arn=_CALL, given="plain text"),
    )
    report = copied(tmp_path / "store", url)
    assert (report.put, report.balances) == ({"created": 4}, True)
    assert copied(tmp_path / "store", url).put == {"kept": 4}
    found = schedules(tmp_path / "store")
    often = found["eventbridge:default:often"]
    assert (often.topic, often.body) == ("mails", b'{"n": 1}')
    assert often.headers == {"eventbridge-target": _QUEUE}
    assert _next(often, begin) == [f"2030-01-01T00:{minute}:30" for minute in ("05", "10", "15")]
    assert len(_next(often, begin, 50)) == 11
    work = found["eventbridge:default:work"]
    assert (work.zone, work.jitter_ms) == ("Europe/Berlin", 900_000)
    # Quarter past ten from Monday to Friday, on the days around a change of clocks.
    assert _next(work, datetime(2027, 3, 26, tzinfo=UTC)) == [
        "2027-03-26T09:15:00",
        "2027-03-29T08:15:00",
        "2027-03-30T08:15:00",
    ]
    event = found["eventbridge:default:event"]
    assert event.paused
    assert json.loads(event.body)["resources"][0].endswith("schedule/default/event")
    assert event.start_ms is not None
    assert found["eventbridge:default:call"].topic == "sendEmail"
    assert found["eventbridge:default:call"].body == b"plain text"


def test_one_time_schedules_become_messages_unless_they_are_over(made, tmp_path):
    zoned = {"ScheduleExpressionTimezone": "America/New_York"}
    url = _file(
        tmp_path,
        made("later", "at(2060-07-01T09:00:00)", **zoned),
        # The clocks there skip this time.
        made("gap", "at(2061-03-13T02:30:00)", **zoned),
        made("past", "at(2020-07-01T09:00:00)"),
        made("off", "at(2060-07-01T09:00:00)", State="DISABLED"),
    )
    report = copied(tmp_path / "store", url)
    assert (report.put["created"], report.over, report.refused) == (2, 1, 1)
    assert "paused" in reasons(report)["schedule default:off"]
    found = messages(tmp_path / "store", "mails")
    due_ms = {name: message.due_ms for name, message in found.items()}
    assert due_ms == {
        "eventbridge:default:later": _ms(2060, 7, 1, 13),
        "eventbridge:default:gap": _ms(2061, 3, 13, 7, 30),
    }
    assert copied(tmp_path / "store", url).put == {"kept": 2}


def test_rules_have_their_targets_if_they_are_given(aws, tmp_path):
    events = aws("events")
    events.put_rule(Name="nightly", ScheduleExpression="cron(0 3 * * ? *)", State="DISABLED")
    events.put_rule(Name="seen", EventPattern='{"source":["shop"]}')
    events.put_rule(Name="twice", ScheduleExpression="rate(2 hours)")
    arn = "arn:aws:lambda:eu-central-1:123456789012:function:clean"
    targets = [{"Id": "a", "Arn": arn, "Input": "{}"}, {"Id": "b", "Arn": _QUEUE, "InputPath": "$"}]
    events.put_targets(Rule="twice", Targets=targets)
    told = events.list_rules()
    for rule in told["Rules"]:
        if rule["Name"] == "twice":
            rule["Targets"] = events.list_targets_by_rule(Rule="twice")["Targets"]
    report = copied(tmp_path / "store", _file(tmp_path, told))
    assert (report.put["created"], report.over, report.refused) == (2, 1, 1)
    assert "InputPath" in reasons(report)["rule twice:b"]
    found = schedules(tmp_path / "store")
    nightly = found["eventbridge-rule:nightly"]
    assert (nightly.paused, nightly.topic) == (True, "eventbridge")
    assert json.loads(nightly.body)["source"] == "aws.events"
    twice = found["eventbridge-rule:twice:a"]
    assert (twice.topic, twice.body, twice.every_ms) == ("clean", b"{}", 7_200_000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"Name": None}, "str"),
        ({"ScheduleExpression": None}, "get-schedule"),
        ({"ScheduleExpression": "rate(0 minutes)"}, "every"),
        ({"ScheduleExpression": "rate(\u0665 minutes)"}, "ScheduleExpression"),
        ({"ScheduleExpression": "rate(5 months)"}, "expected cron"),
        ({"ScheduleExpression": "at(2030-02-31T00:00:00)"}, "exists"),
        ({"ScheduleExpression": "cron(0 0 1 * ? 2031)"}, "year"),
        ({"ScheduleExpression": "cron(0 0 32W * ? *)"}, "cron"),
        ({"ScheduleExpressionTimezone": "Mars/Base"}, "Mars/Base"),
        ({"State": "DELETING"}, "State"),
        ({"StartDate": "soon"}, "StartDate"),
        ({"EndDate": 1e300}, "EndDate"),
        ({"EndDate": {}}, "EndDate"),
        ({"Target": {"Arn": 5}}, "str"),
        ({"Target": {"Arn": "a b"}}, "topic"),
        ({"Target": {"Arn": "a", "Input": "<aws.scheduler.scheduled-time>"}}, "Input"),
        ({"Target": {"Arn": "a", "Input": "x" * 2**21}}, "body"),
        ({"FlexibleTimeWindow": {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": -5}}, "jitter"),
    ],
)
def test_an_odd_schedule_is_refused_and_holds_up_no_other(made, tmp_path, change, said):
    good = made("good", "cron(0 3 * * ? *)")
    odd = good | {"Name": "odd"}
    report = copied(tmp_path / "store", _file(tmp_path, odd | change, 5, [["x"], None], good))
    assert (report.put["created"], report.refused, report.balances) == (1, 4, True)
    assert said in report.told[0].reason


def test_times_are_read_from_both_versions_of_the_command_line(made, tmp_path):
    one = made("one", "rate(5 minutes)")
    one["StartDate"] = 1_893_456_000.5
    two = made("two", "rate(5 minutes)") | {"StartDate": "2030-01-01T01:00:00.500000+01:00"}
    copied(tmp_path / "store", _file(tmp_path, one, two))
    found = schedules(tmp_path / "store").values()
    assert {schedule.start_ms for schedule in found} == {1_893_456_000_500}


@pytest.mark.parametrize("text", ["{", '{"Name": 1} x', "[" * 100_000, b"\xff"])
def test_a_file_that_is_not_json_is_refused_before_anything_is_put(tmp_path, text):
    path = tmp_path / "rules.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidUrl, match="JSON"):
        copied(tmp_path / "store", f"eventbridge:{path}")
    assert schedules(tmp_path / "store") == {}
