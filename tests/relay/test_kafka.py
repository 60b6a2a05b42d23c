"""A relay between topics of a real Kafka, run as users run it."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import dwell
from bench.servers import free_port
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.kafka.sink import KafkaSink
from dwell.relay.kafka.source import KafkaSource
from tests.relay.kafka import PROTOCOLS, RelayProcess, Topics, numbers, read_all, relaying
from tests.waiting import until


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_records_leave_when_due_with_all_they_had(topics, tmp_path):
    mine = topics(1)
    due_ms = now_ms() + 3_000
    headers = [
        ("dwell-due-ms", str(due_ms).encode()),
        ("trace", b"a"),
        ("trace", b"\xff\x00"),
        ("none", None),
    ]
    mine.say(b"body", headers, b"\xfe key")
    mine.say(None, {"dwell-due-ms": str(due_ms)}, "text")
    mine.say(b"", {"dwell-delay": "1ms"})
    mine.flush()
    with relaying(tmp_path / "store", ["--from", mine.source, "--to", mine.sink], tmp_path / "log"):
        found = mine.read(mine.goes, 3)
    assert [(one.key(), one.value()) for one in found] == [
        (None, b""),
        (b"\xfe key", b"body"),
        (b"text", None),
    ]
    assert found[1].headers() == [("trace", b"a"), ("trace", b"\xff\x00"), ("none", None)]
    assert found[1].timestamp()[1] >= due_ms


def test_topics_say_their_delay_and_records_their_target(topics, tmp_path):
    mine = topics(1)
    place = f"kafka://{mine.hosts}/{mine.name}.delay-1s,{mine.name}.delay-level-1?group={mine.name}"
    sent_ms = now_ms()
    mine.say(b"1", topic=f"{mine.name}.delay-1s")
    mine.say(b"2", {"dwell-to": mine.goes}, topic=f"{mine.name}.delay-level-1")
    mine.flush()
    options = ["--from", place, "--to", f"kafka://{mine.hosts}/{mine.dead}", "--hold", "h"]
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        (other,) = mine.read(mine.goes, 1)
        (fixed,) = mine.read(mine.dead, 1)
    assert (fixed.value(), other.value()) == (b"1", b"2")
    assert min(fixed.timestamp()[1], other.timestamp()[1]) >= sent_ms + 1_000


def test_expressions_say_due_and_target(topics, tmp_path):
    mine = topics(1)
    due_ms = now_ms() + 500
    mine.say(json.dumps({"at": due_ms, "for": mine.goes}).encode())
    mine.flush()
    to = f"kafka://{mine.hosts}/{mine.dead}"
    options = ["--from", mine.source, "--to", to, "--due", "at", "--target", "for"]
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        (found,) = mine.read(mine.goes, 1)
    assert found.timestamp()[1] >= due_ms


def test_what_says_no_due_is_a_dead_letter_and_stops_nothing(topics, tmp_path):
    mine = topics(1)
    mine.say(b"no due")
    mine.say(b"bad", {"dwell-due-ms": b"\xff"})
    mine.say(b"bad", {"dwell-delay": "soon"})
    mine.say(b"huge", {"dwell-delay": "1ms", "more": "x" * 20_000})
    mine.say(b"unknown", {"dwell-delay": "1ms", "dwell-to": "no topic?"})
    mine.say(b"good", {"dwell-delay": "1ms"})
    mine.flush()
    options = ["--from", mine.source, "--to", mine.sink, "--dead", mine.dead]
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        (good,) = mine.read(mine.goes, 1)
        dead = mine.read(mine.dead, 5)
    assert good.value() == b"good"
    reasons = {one.value(): dict(one.headers())["dwell-reason"].decode() for one in dead}
    assert "expected a header dwell-due-ms" in reasons[b"no due"]
    assert "dwell-delay: got str 'soon'" in reasons[b"bad"]
    assert "headers: got" in reasons[b"huge"]
    assert "topic" in reasons[b"unknown"].lower()
    origins = {dict(one.headers())["dwell-from"].decode() for one in dead}
    assert {origin.partition("@")[0] for origin in origins} == {
        f"{mine.came}-0-{at}" for at in range(5)
    }


def test_what_waits_is_cancelled_by_its_id(topics, tmp_path):
    mine = topics(2)
    mine.say(b"1", {"dwell-delay": "1h", "dwell-id": "one"}, partition=0)
    mine.say(b"2", {"dwell-delay": "1h"}, partition=0)
    mine.say(b"3", {"dwell-delay": "1h"}, partition=0)
    mine.say(None, {"dwell-cancel": "one"}, partition=0)
    mine.flush()
    options = ["--from", mine.source, "--to", mine.sink]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        # By the other partition, when the record is held for sure.
        until(lambda: committed(mine) == 4)
        mine.say(None, {"dwell-cancel": f"{mine.came}-0-1"}, partition=1)
        mine.flush()
        until(lambda: committed(mine) == 5)
        assert relay.end() == 0
    with dwell.open(tmp_path / "store") as queue:
        (left,) = queue.scan(f"relay.{mine.came}-0", "delayed").messages
    assert left.body == b"3"


@pytest.mark.parametrize("mode", [[], ["--exactly-once"]])
def test_a_cancel_that_comes_too_late_cancels_no_record_of_another_topic(topics, tmp_path, mode):
    """Both topics have a record of one id, and one of them has left."""
    orders, mails = topics(1), topics(2)
    mails.name = orders.name
    source = f"kafka://{orders.hosts}/{orders.came},{mails.came}?group={orders.name}"
    options = ["--from", source, "--to", mails.sink, *mode]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        orders.say(b"order", {"dwell-delay": "1h", "dwell-id": "7"})
        mails.say(b"mail", {"dwell-delay": "1ms", "dwell-id": "7"}, partition=0)
        mails.say(b"other", {"dwell-delay": "1h", "dwell-id": "8"}, partition=0)
        orders.flush()
        mails.flush()
        mails.read(mails.goes, 1)
        until(lambda: committed(orders) + committed(mails) == 3)
        # The id of a record in another partition of the topic is found.
        mails.say(None, {"dwell-cancel": "8"}, partition=1)
        mails.say(None, {"dwell-cancel": "7"}, partition=1)
        mails.flush()
        until(lambda: committed(mails) == 4)
        assert relay.end() == 0
    with dwell.open(tmp_path / "store") as queue:
        assert queue.get(f"relay.{orders.came}-0", "7").body == b"order"
        assert queue.get(f"relay.{mails.came}-0", "8") is None


def test_an_own_id_that_looks_like_a_place_is_cancelled(topics, tmp_path):
    mine = topics(1)
    own = f"{mine.came}-2024-17"
    mine.say(b"1", {"dwell-delay": "1h", "dwell-id": own})
    mine.say(b"2", {"dwell-delay": "1h"})
    for cancelled in (own, f"{mine.came}-0-1"):
        mine.say(None, {"dwell-cancel": cancelled})
    mine.flush()
    options = ["--from", mine.source, "--to", mine.sink]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: committed(mine) == 4)
        assert relay.end() == 0
    with dwell.open(tmp_path / "store") as queue:
        assert not queue.scan(f"relay.{mine.came}-0", "delayed").messages


def test_a_topic_that_was_made_anew_repeats_no_record(topics, tmp_path):
    """Nor does one of another cluster: partition and offset are as they were, the record is not."""
    mine = topics(1)
    options = ["--from", mine.source, "--to", mine.sink]
    mine.say(b"old", {"dwell-delay": "1h"})
    mine.flush()
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: committed(mine) == 1)
        assert relay.end() == 0
    admin = AdminClient({"bootstrap.servers": mine.hosts})
    admin.delete_topics([mine.came])[mine.came].result(60)
    until(lambda: mine.came not in admin.list_topics(timeout=10).topics)
    until(lambda: is_made(admin, mine.came))
    # The one before knows the topic that is gone.
    mine.producer = Producer({"bootstrap.servers": mine.hosts})
    mine.say(b"new", {"dwell-delay": "1ms"}, partition=0)
    mine.flush()
    place = mine.source.replace("group=", "group=again-")
    with relaying(tmp_path / "store", ["--from", place, *options[2:]], tmp_path / "log"):
        assert [one.value() for one in mine.read(mine.goes, 1)] == [b"new"]


@pytest.mark.parametrize("delivery", [[], ["--exactly-once"]])
def test_what_is_held_of_partitions_that_are_gone_leaves_all_the_same(topics, tmp_path, delivery):
    mine = topics(3)
    options = ["--from", mine.source, "--to", mine.sink, *delivery]
    for at in range(3):
        mine.say(b"%d" % at, {"dwell-delay": "1h"}, partition=at)
    mine.flush()
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: committed(mine) == 3)
        assert relay.end() == 0
    make_anew(mine)
    with dwell.open(tmp_path / "store") as queue:
        for at in range(3):
            hold = f"relay.{mine.came}-{at}"
            assert queue.reschedule_where(hold, dwell.select(), delay="1ms").matched == 1
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        assert {one.value() for one in mine.read(mine.goes, 3)} == {b"0", b"1", b"2"}
        assert relay.end() == 0


@pytest.mark.parametrize("count", [5, 25], ids=["shorter", "longer"])
def test_a_topic_that_is_made_anew_under_a_relay_is_read_from_its_beginning(
    topics, tmp_path, count
):
    """It has fewer partitions than before, and holds up no other topic."""
    mine, other = topics(2), topics(1)
    source = f"{mine.source}".replace(mine.came, f"{mine.came},{other.came}")
    options = ["--from", source, "--to", mine.sink, "--hold", mine.name]
    soon = {"dwell-delay": "1ms"}
    for at in range(20):
        mine.say(b"%d" % at, soon, partition=at % 2)
    mine.flush()
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        mine.read(mine.goes, 20)
        until(lambda: committed(mine) == 20)
        make_anew(mine)
        producer = Producer({"bootstrap.servers": mine.hosts})
        for at in range(100, 100 + count):
            producer.produce(mine.came, b"%d" % at, headers=soon)
        assert producer.flush(60) == 0
        mine.say(b"1000", soon, topic=other.came)
        mine.flush()
        found = numbers(mine.read(mine.goes, 21 + count))
    assert sorted(found) == [*range(20), *range(100, 100 + count), 1000]


def test_a_topic_with_a_long_name_is_held_as_any_other(topics, tmp_path):
    mine = topics(1)
    long = f"{mine.name}-{'x' * (220 - len(mine.name) - 1)}"
    admin = AdminClient({"bootstrap.servers": mine.hosts})
    until(lambda: is_made(admin, long))
    # The controller has made it before the broker tells it to others.
    until(lambda: long in admin.list_topics(timeout=10).topics)
    options = ["--from", mine.source.replace(mine.came, f"{mine.came},{long}"), "--to", mine.sink]
    for topic in (mine.came, long):
        mine.say(topic.encode(), {"dwell-delay": "1ms"}, topic=topic)
    mine.flush()
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        found = {one.value().decode() for one in mine.read(mine.goes, 2)}
        assert found == {mine.came, long}
        assert relay.end() == 0


def make_anew(mine: Topics) -> None:
    """Delete the topic that is read, and make it again with one partition."""
    admin = AdminClient({"bootstrap.servers": mine.hosts})
    admin.delete_topics([mine.came])[mine.came].result(60)
    until(lambda: is_made(admin, mine.came))


def is_made(admin: AdminClient, topic: str) -> bool:
    """Make a topic, once what had the name is gone."""
    try:
        admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    except KafkaException:
        return False
    return True


def test_without_a_sink_records_stay_for_workers(topics, tmp_path):
    mine = topics(1)
    mine.say(b"1", {"dwell-delay": "1ms", "dwell-to": "jobs"}, "key")
    mine.say(b"2", {"dwell-delay": "1h", "dwell-to": "jobs", "dwell-id": "later"})
    mine.say(b"3", {"dwell-to": "jobs"})
    mine.flush()
    with relaying(tmp_path / "store", ["--from", mine.source], tmp_path / "log") as relay:
        until(lambda: committed(mine) == 3)
        assert relay.end() == 0
    with dwell.open(tmp_path / "store") as queue:
        (message,) = queue.take("jobs", 10)
        assert (message.body, message.key, message.headers) == (b"1", "key", {})
        assert queue.get("jobs", "later").body == b"2"
        (dead,) = queue.take("relay-dead")
        assert "dwell-reason" in dead.headers


def test_without_a_sink_what_names_no_topic_stops_nothing(topics, tmp_path):
    mine = topics(1)
    mine.say(b"1", {"dwell-delay": "1ms", "dwell-to": "a b!"})
    mine.say(b"2", {"dwell-cancel": "x"})
    mine.say(b"3", {"dwell-cancel": "x", "dwell-to": "a b!"})
    mine.say(b"4", {"dwell-delay": "1ms", "dwell-to": "jobs"})
    mine.flush()
    with relaying(tmp_path / "store", ["--from", mine.source], tmp_path / "log") as relay:
        until(lambda: committed(mine) == 4)
        assert relay.end() == 0
    with dwell.open(tmp_path / "store") as queue:
        assert [one.body for one in queue.take("jobs", 10)] == [b"4"]
        dead = {one.body: one.headers["dwell-reason"] for one in queue.take("relay-dead", 10)}
    assert set(dead) == {b"1", b"2", b"3"}
    assert all("target: got" in reason for reason in dead.values())


def test_without_a_source_what_cannot_be_read_is_set_aside(topics, tmp_path):
    mine = topics(1)
    with dwell.open(tmp_path / "store") as queue:
        for at, text in enumerate(("garbage!", "AAAA", "/////w==")):
            queue.put("jobs", b"bad", id=f"raw{at}", headers={"dwell-raw": text})
        queue.put("jobs", b"bad", id="properties", headers={"dwell-properties": "garbage!"})
        queue.put("jobs", b"good")
    options = ["--to", mine.sink, "--topic", "jobs"]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        assert [one.value() for one in mine.read(mine.goes, 1)] == [b"good"]
        assert relay.end() == 0
    with dwell.open(tmp_path / "store") as queue:
        dead = queue.scan("jobs", "dead").messages
        assert {one.id for one in dead} == {"raw0", "raw1", "raw2", "properties"}
        assert all("expected what a relay writes" in one.last_error for one in dead)


def test_without_a_source_due_messages_leave(topics, tmp_path):
    mine = topics(1)
    with dwell.open(tmp_path / "store") as queue:
        queue.put("jobs", b"1", key="k", headers={"h": "v"})
        queue.put("jobs", b"2", delay="1h")
    options = ["--to", mine.sink, "--topic", "jobs"]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        (found,) = mine.read(mine.goes, 1)
        relay.end()
    assert (found.key(), found.value(), found.headers()) == (b"k", b"1", [("h", b"v")])
    with dwell.open(tmp_path / "store") as queue:
        assert queue.stats().topics["jobs"].delayed == 1


def test_records_of_a_key_leave_in_their_order(topics, tmp_path):
    mine = topics(2)
    due_ms = now_ms() + 2_000
    for at in range(2_000):
        mine.say(str(at).encode(), {"dwell-due-ms": str(due_ms)}, f"k{at % 7}")
    mine.flush()
    options = ["--from", mine.source, "--to", mine.sink, "--batch", "100"]
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        found = mine.read(mine.goes, 2_000)
    by_key: dict[bytes, list[int]] = {}
    for one in found:
        by_key.setdefault(one.key(), []).append(int(one.value()))
    assert all(values == sorted(values) for values in by_key.values())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("more", [[], ["--exactly-once"]], ids=["at-least-once", "exactly-once"])
def test_a_relay_that_is_killed_is_taken_over(topics, tmp_path, redis_url, more, protocol):
    mine = topics(4)
    due_ms = now_ms()
    for at in range(1_500):
        mine.say(str(at).encode(), {"dwell-due-ms": str(due_ms + 2 * at)})
    mine.flush()
    store = f"{redis_url}?prefix={mine.name}"
    options = ["--from", mine.source_in(protocol), "--to", mine.sink, "--hold", mine.name]
    options += ["--batch", "50", "--lease", "5s", *more]
    with (
        relaying(store, options, tmp_path / "log0") as first,
        relaying(store, options, tmp_path / "log1"),
    ):
        mine.read(mine.goes, 500)
        first.end(signal.SIGKILL)
        until(lambda: len(set(numbers(mine.read(mine.goes, 500)))) == 1_500)
    counts = Counter(numbers(mine.read(mine.goes, 1_500)))
    assert set(counts) == set(range(1_500))
    if more:
        assert max(counts.values()) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_that_are_added_are_read(topics, tmp_path, protocol):
    mine = topics(1)
    options = ["--from", f"{mine.source_in(protocol)}&topic.metadata.refresh.interval.ms=500"]
    options += ["--to", mine.sink, "--hold", mine.name]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        for partition in range(3):
            if partition:
                mine.grow(partition + 1)
            mine.say(str(partition).encode(), {"dwell-delay": "1ms"}, partition=partition)
            mine.flush()
            found = mine.read(mine.goes, partition + 1)
            assert sorted(numbers(found)) == list(range(partition + 1))
        assert relay.end() == 0


def committed(mine) -> int:
    reader = Consumer({"bootstrap.servers": mine.hosts, "group.id": mine.name})
    try:
        parts = [TopicPartition(mine.came, at) for at in range(mine.partitions)]
        return sum(max(part.offset, 0) for part in reader.committed(parts, 10))
    except KafkaException:
        # Who coordinates the group is not settled yet.
        return -1
    finally:
        reader.close()


def test_a_store_that_is_locked_is_told(topics, tmp_path):
    mine = topics(1)
    with dwell.open(tmp_path / "store"):
        relay = RelayProcess(tmp_path / "store", ["--from", mine.source], Path(tmp_path, "log"))
        assert relay.process.wait(30) == 3
    assert "dwell serve" in relay.log


def test_what_the_broker_refuses_for_good_is_a_dead_letter(topics, tmp_path):
    mine = topics(1)
    small = f"{mine.name}-small"
    make_topic(mine.hosts, small, {"max.message.bytes": "2000"})
    for more, name in ([], "a"), (["--exactly-once"], "b"):
        due = {"dwell-delay": "1ms", "dwell-to": small}
        mine.say(b"x" * 5_000, due, partition=0)
        mine.say(b"fits", due, partition=0)
        mine.flush()
        options = ["--from", mine.source, "--to", mine.sink, "--dead", mine.dead, "--hold", name]
        store = tmp_path / name
        with relaying(store, [*options, *more], tmp_path / f"log{name}") as relay:
            count = 1 + len(more)
            until(lambda: len(list(read_all(mine.hosts, small, 1))) == count)  # noqa: B023
            dead = mine.read(mine.dead, count)
            assert relay.end() == 0
        assert len(dead[-1].value()) == 5_000
        assert "large" in dict(dead[-1].headers())["dwell-reason"].decode().lower()
        with dwell.open(store) as queue:
            found = queue.stats().topics[f"{name}.{mine.came}-0"]
            assert (found.ready, found.leased, found.dead) == (0, 0, 0)


def test_what_kafka_takes_by_default_leaves(topics, tmp_path):
    """Its limit is for what is sent, the record's own fields with it, and above the client's."""
    mine = topics(1)
    large = Producer({"bootstrap.servers": mine.hosts, "message.max.bytes": 2_000_000})
    bodies = [b"x" * size for size in (999_000, 1_000_001, 1_048_400)]
    for body in bodies:
        large.produce(mine.came, body, headers={"dwell-delay": "1ms"})
    assert large.flush(60) == 0
    options = ["--from", mine.source, "--to", mine.sink, "--dead", mine.dead]
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        assert sorted((one.value() for one in mine.read(mine.goes, 3)), key=len) == bodies


def test_the_newer_protocol_of_groups_may_be_chosen(topics, tmp_path):
    mine = topics(2)
    for at in range(10):
        mine.say(b"%d" % at, {"dwell-delay": "1ms"}, partition=at % 2)
    mine.flush()
    source = f"{mine.source}&group.protocol=consumer"
    options = ["--from", source, "--to", mine.sink, "--hold", mine.name]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        assert sorted(numbers(mine.read(mine.goes, 10))) == list(range(10))
        until(lambda: committed(mine) == 10)
        assert relay.end() == 0


def test_a_letter_that_kafka_refuses_is_kept_in_the_store(topics, tmp_path):
    mine = topics(1)
    make_topic(mine.hosts, f"{mine.name}-tiny", {"max.message.bytes": "500"})
    mine.say(b"x" * 5_000)
    mine.flush()
    options = ["--from", mine.source, "--to", mine.sink, "--dead", f"{mine.name}-tiny"]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: committed(mine) == 1)
        assert relay.end() == 0
    with dwell.open(tmp_path / "store") as queue:
        (letter,) = queue.take(f"{mine.name}-tiny")
    assert len(letter.body) == 5_000
    assert letter.headers["dwell-from"].startswith(f"{mine.came}-0-0@")


def make_topic(hosts: str, name: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": hosts})
    for made in admin.create_topics([NewTopic(name, 1, config=config)]).values():
        made.result(60)


def test_a_relay_tells_how_it_is(topics, tmp_path):
    mine = topics(1)
    for _ in range(5):
        mine.say(b"1", {"dwell-delay": "1ms"})
    mine.say(b"none")
    mine.flush()
    address = f"127.0.0.1:{free_port()}"
    options = ["--from", mine.source, "--to", mine.sink, "--http", address]
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        mine.read(mine.goes, 5)
        until(lambda: asked(address, "readyz") == (200, "ready\n"))
        assert asked(address, "healthz") == (200, "ok\n")
        _, told = asked(address, "metrics")
    assert "dwell_relay_read_total 6.0" in told
    assert "dwell_relay_sent_total 5.0" in told
    assert 'dwell_relay_held_total{result="created"} 5.0' in told
    assert 'dwell_relay_dead_total{by="source"} 1.0' in told
    assert "dwell_relay_late_seconds_count 5.0" in told


def test_a_broker_that_is_away_is_waited_for_and_told(tmp_path):
    port, address = free_port(), f"127.0.0.1:{free_port()}"
    place = f"kafka://127.0.0.1:{port}"
    options = ["--from", f"{place}/a", "--to", f"{place}/b", "--http", address]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: asked(address, "readyz")[0] == 503)
        until(lambda: "trying again" in relay.log)
        for _ in range(20):
            assert asked(address, "readyz")[0] == 503
            time.sleep(0.1)
        assert relay.end() == 0
    assert relay.log.count("trying again") == 1


async def test_no_end_is_open_before_a_broker_has_answered():
    place = f"kafka://127.0.0.1:{free_port()}/a"
    with pytest.raises(BrokerUnreachable):
        await KafkaSink(place, 2_000).open()
    source = KafkaSource(place)
    await source.open(None)
    with pytest.raises(BrokerUnreachable):
        await source.read(1)
    await source.close()


def asked(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
