"""Kafka in and Kafka out, by way of the pipelines, with a real broker."""

import itertools
import json
import re
import time

import pytest

import dwell
import dwell.spark
from dwell.errors import InvalidSettings
from dwell.spark.pipelines import audit, relay, schedule
from dwell.spark.pipelines.command import PipelineFailed
from tests.relay.kafka import Topics, relaying

pytestmark = [pytest.mark.usefixtures("registered"), pytest.mark.campaign]

_numbers = itertools.count()
#: What says in SQL which record a row is.
ID = "concat_ws('-', topic, partition, offset)"
DUE = "cast(filter(headers, h -> h.key = 'due')[0].value as string)"


@pytest.fixture
def topics(kafka_hosts):
    return Topics(kafka_hosts, f"spark{next(_numbers)}", 2)


def kafka(topics, **more):
    return {"kafka.bootstrap.servers": topics.hosts, **more}


def settings(shared, topics, folder, **more):
    given = {
        "url": shared.url,
        "topic": topics.name,
        "format": "kafka",
        "option": kafka(
            topics, subscribe=topics.came, startingOffsets="earliest", includeHeaders="true"
        ),
        "id": ID,
        "due": f"cast({DUE} as bigint)",
        "out_format": "kafka",
        "out_option": kafka(topics, includeHeaders="true"),
        "checkpoint": str(folder / "log"),
        "available_now": True,
        **more,
    }
    return relay.RelaySettings(**given)


def test_records_come_by_kafka_and_leave_by_kafka(spark, shared, topics, tmp_path):
    now_ms = time.time_ns() // 1_000_000
    headers = [("due", str(now_ms).encode()), ("trace", b"\xff"), ("trace", b"2")]
    topics.say(b"\x00body", headers, b"\xfekey")
    topics.say(b"later", {"due": str(now_ms + 3_600_000)})
    topics.flush()
    to = f"'{topics.goes}'"
    line = relay.run(spark, settings(shared, topics, tmp_path, target=to))
    assert line == "relay: 2 rows in, 1 out"
    (found,) = topics.read(topics.goes, 1)
    assert (found.key(), found.value(), found.headers()) == (b"\xfekey", b"\x00body", headers)
    # Again: nothing is put twice, and nothing leaves twice.
    assert relay.run(spark, settings(shared, topics, tmp_path, target=to)).endswith("0 out")


def test_one_topic_for_all_is_an_option_of_the_output(spark, shared, topics, tmp_path):
    topics.say(b"1", {"due": "0"})
    topics.flush()
    out = kafka(topics, topic=topics.goes)
    relay.run(spark, settings(shared, topics, tmp_path, out_option=out))
    (found,) = topics.read(topics.goes, 1)
    assert found.value() == b"1"
    # It does not go back to where it came from.
    assert len(topics.read(topics.came, 1)) == 1


def test_no_topic_at_all_is_refused_at_once(shared, topics, tmp_path):
    with pytest.raises(InvalidSettings, match="--out-option topic=NAME"):
        settings(shared, topics, tmp_path)


def test_the_records_of_a_topic_are_scheduled(spark, shared, topics):
    for at in range(20):
        topics.say(json.dumps({"at": at}).encode(), {"due": "4000000000000"}, str(at))
    topics.flush()
    line = schedule.run(
        spark,
        schedule.ScheduleSettings(
            url=shared.url,
            source=topics.came,
            format="kafka",
            option=kafka(topics, subscribe=topics.came, includeHeaders="true"),
            id=ID,
            due=f"cast({DUE} as bigint)",
            body="value",
            key="cast(key as string)",
            topic=topics.name,
        ),
    )
    assert line.startswith("schedule: 20 rows; 20 created")
    with dwell.open(shared.url) as queue:
        found = list(queue.find(topics.name, "at > `17`", state="delayed"))
        assert sorted(message.key for message in found) == ["18", "19"]


def test_books_are_balanced_over_the_events_in_a_topic(spark, server, topics, tmp_path):
    with dwell.open(server.url) as queue:
        queue.put_many("orders", [b"x"] * 30, delay=["0s", "1h", "0s"] * 10)
        taken = queue.take("orders", 15)
        queue.ack(taken[:10])
        queue.bury(taken[10:12])
    topics.say(b"no event")
    with relaying(server.url, ["--events", "--to", topics.sink], tmp_path / "log"):
        # Whether the feed's own message is there already is a matter of time.
        balanced = r"audit: 3. accepted = 10 acked .* 2 dead .*; lost 0, early 0, doubled 0; "
        assert re.match(balanced, audit_of(spark, server, topics, tmp_path))
        with dwell.open(server.url) as queue:
            queue.ack(taken[12:])
        # A second run reads what is new.
        assert "= 13 acked" in audit_of(spark, server, topics, tmp_path)


def test_an_event_that_never_came_unbalances_the_books(spark, server, topics, tmp_path):
    with dwell.open(server.url) as queue:
        queue.put_many("orders", [b"x"] * 3)
        events = queue.events(0).events
    for event in (events[0], events[2], events[2]):
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        body = json.dumps({**fields, "kind": str(event.kind)})
        topics.say(body.encode(), topic=topics.goes)
    topics.flush()
    with pytest.raises(PipelineFailed, match="the books do not balance"):
        audit_of(spark, server, topics, tmp_path, patience="1s")


def audit_of(spark, server, topics, folder, **more):
    return audit.run(
        spark,
        audit.AuditSettings(
            url=server.url,
            out=str(folder / "books"),
            format="kafka",
            option=kafka(topics, subscribe=topics.goes),
            report=False,
            **more,
        ),
    )
