"""A relay between queues of a real RabbitMQ, run as users run it."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiormq import spec

import dwell
from bench.servers import free_port
from dwell.relay.house import QueueSink
from dwell.relay.rabbitmq.properties import Properties
from dwell.relay.rabbitmq.source import RabbitMQSource
from dwell.relay.relay import Plan, Relay
from dwell.relay.rules import Rules
from tests.relay.kafka import RelayProcess, relaying
from tests.relay.rabbitmq import Queues, headers_of
from tests.relay.test_kafka import asked
from tests.spark.conftest import ServerProcess
from tests.waiting import until, until_async


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def ends(mine: Queues, *more: str) -> list[str]:
    return ["--from", mine.source, "--to", mine.sink, *more]


def test_messages_leave_when_due_with_all_they_had(queues, tmp_path):
    mine = queues()
    due_ms = now_ms() + 2_000
    headers = {
        "dwell-due-ms": due_ms,
        "text": "ä",
        "number": 7,
        "big": 2**40,
        "no": False,
        "half": 0.5,
        "none": None,
        "money": Decimal("12.34"),
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "list": [1, "two", {"three": 3}],
        "table": {"a": {"b": [True]}},
    }
    said = {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "priority": 3,
        "correlation_id": "c-1",
        "reply_to": "answers",
        "message_id": "m-1",
        "timestamp": datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC),
        "message_type": "order",
        "app_id": "shop",
    }
    mine.say(b"\x00body", headers, **said)
    with relaying(tmp_path / "store", ends(mine), tmp_path / "log"):
        (found,) = mine.read(mine.goes, 1)
    assert now_ms() >= due_ms
    assert found.body == b"\x00body"
    del headers["dwell-due-ms"]
    assert headers_of(found) == headers
    properties = found.header.properties
    assert {name: getattr(properties, name) for name in said} == said
    assert properties.delivery_mode == 2


def begin(mine: Queues) -> None:
    """Return when a relay reads: what expires in the broker's own queue before is its to drop."""
    mine.say(b"first", {"x-delay": 0})
    assert [one.body for one in mine.read(mine.goes, 1)] == [b"first"]


def test_the_plugins_header_and_expiration_say_a_delay(queues, tmp_path):
    mine = queues()
    with relaying(tmp_path / "store", ends(mine), tmp_path / "log"):
        begin(mine)
        sent_ms = now_ms()
        mine.say(b"ttl", None, expiration="4000")
        mine.say(b"plugin", {"x-delay": 700})
        found = mine.read(mine.goes, 2)
    assert [one.body for one in found] == [b"plugin", b"ttl"]
    assert now_ms() >= sent_ms + 4_000
    # As the plugin has it, a delay that is over is negative.
    assert headers_of(found[0]) == {"x-delay": -700}
    (death,) = headers_of(found[1])["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("expired", mine.came, 1)
    assert death["original-expiration"] == "4000"
    assert found[1].header.properties.expiration is None


def test_a_delay_counts_from_its_own_publish(queues, tmp_path):
    """Also for a consumer that publishes a message again, with the headers it came with."""
    mine = queues()
    with relaying(tmp_path / "store", ends(mine), tmp_path / "log"):
        begin(mine)
        # An interceptor of RabbitMQ can write such a header, and leaves one that is there.
        headers = {"timestamp_in_ms": now_ms() - 60_000, "x-delay": 1}
        for delay_ms in (1, 1_500):
            sent_ms = now_ms()
            mine.say(b"again", headers | {"x-delay": delay_ms})
            (found,) = mine.read(mine.goes, 1)
            headers = headers_of(found)
    assert now_ms() >= sent_ms + 1_500


def test_a_long_delay_does_not_hold_up_a_short_one(queues, tmp_path):
    """What a queue with a time to live by message does: it looks at its head alone."""
    mine = queues()
    with relaying(tmp_path / "store", ends(mine), tmp_path / "log"):
        begin(mine)
        mine.say(b"long", None, expiration="3600000")
        mine.say(b"short", None, expiration="3000")
        assert [one.body for one in mine.read(mine.goes, 1)] == [b"short"]


def test_exchanges_and_keys(queues, tmp_path):
    mine = queues()
    exchange = f"{mine.name}-topic"
    mine.exchange(exchange, "topic", mine.goes, "order.*")
    mine.exchange(exchange, "topic", mine.dead, "mail.#")
    soon = {"x-delay": 1}
    mine.say(b"fixed", soon)
    mine.say(b"own", {**soon, "dwell-to": f"{exchange}/mail.sent"})
    mine.say(b"queue", {**soon, "dwell-to": mine.goes})
    to = f"{mine.hosts}/?exchange={exchange}&routing_key=order.new"
    with relaying(
        tmp_path / "store", ["--from", mine.source, "--to", to, "--dead", "x"], tmp_path / "log"
    ):
        found = mine.read(mine.goes, 2)
        (other,) = mine.read(mine.dead, 1)
    assert sorted(one.body for one in found) == [b"fixed", b"queue"]
    assert other.body == b"own"


def test_what_can_go_nowhere_is_a_dead_letter_and_stops_nothing(queues, tmp_path):
    mine = queues()
    mine.say(b"no due")
    mine.say(b"bad", {"dwell-delay": "soon"})
    mine.say(b"no queue", {"x-delay": 1, "dwell-to": "nobody has it"})
    mine.say(b"no exchange", {"x-delay": 1, "dwell-to": "nothing/key"})
    mine.say(b"good", {"x-delay": 1})
    options = ends(mine, "--dead", mine.dead)
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        (good,) = mine.read(mine.goes, 1)
        dead = mine.read(mine.dead, 4)
    assert good.body == b"good"
    reasons = {one.body: headers_of(one)["dwell-reason"] for one in dead}
    assert "due: got none" in reasons[b"no due"]
    assert "dwell-delay: got str 'soon'" in reasons[b"bad"]
    assert "no queue takes it" in reasons[b"no queue"]
    assert "nothing" in reasons[b"no exchange"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_many_leave_in_order_and_are_acked(queues, tmp_path, kind):
    mine = queues(**{"x-queue-type": kind})
    due_ms = now_ms() + 1_500
    mine.say_all([(b"%d" % at, {"dwell-due-ms": due_ms}) for at in range(1_000)])
    with relaying(tmp_path / "store", ends(mine), tmp_path / "log") as relay:
        found = mine.read(mine.goes, 1_000)
        assert relay.end() == 0
    assert [int(one.body) for one in found] == list(range(1_000))
    assert mine.ready(mine.came) == 0


def test_a_queue_that_is_full_is_waited_for(queues, tmp_path):
    """It refuses what comes (reject-publish), until somebody reads."""
    mine = queues()
    small = f"{mine.name}-small"
    mine.declare(small, **{"x-max-length": 10, "x-overflow": "reject-publish"})
    mine.say_all([(b"%d" % at, {"x-delay": 1, "dwell-to": small}) for at in range(40)])
    address = f"127.0.0.1:{free_port()}"
    seen: set[int] = set()
    with relaying(tmp_path / "store", ends(mine, "--http", address), tmp_path / "log"):
        until(lambda: asked(address, "readyz")[0] == 503)

        def all_seen() -> bool:
            seen.update(int(one.body) for one in mine.read(small, 0))
            return len(seen) == 40

        until(all_seen)


@pytest.mark.campaign
def test_a_queue_that_is_full_holds_up_no_other(queues, tmp_path):
    """Also where more is due for it than a relay takes at once."""
    mine = queues()
    full = f"{mine.name}-full"
    mine.declare(full, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    mine.say(b"before", queue=full)
    mine.say_all([(b"%d" % at, {"x-delay": 1, "dwell-to": full}) for at in range(30)])
    mine.say_all([(b"%d" % at, {"x-delay": 2_000}) for at in range(3)])
    address = f"127.0.0.1:{free_port()}"
    options = ends(mine, "--batch", "5", "--http", address)
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        assert [one.body for one in mine.read(mine.goes, 3)] == [b"0", b"1", b"2"]
        assert asked(address, "readyz")[0] == 503
        found = mine.read(full, 31)
        assert {one.body for one in found} == {b"before", *(b"%d" % at for at in range(30))}
        until(lambda: asked(address, "readyz")[0] == 200)
        assert relay.end() == 0


def test_a_letter_waits_for_room_in_the_queue_of_letters(queues, tmp_path):
    mine = queues()
    letters = f"{mine.name}-letters"
    mine.declare(letters, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    mine.say(b"before", queue=letters)
    address = f"127.0.0.1:{free_port()}"
    options = ends(mine, "--dead", letters, "--http", address)
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        mine.say(b"nowhere", {"x-delay": 1, "dwell-to": f"{mine.name}-none"})
        until(lambda: "dead letters" in asked(address, "readyz")[1])
        assert [one.body for one in mine.read(letters, 2)] == [b"before", b"nowhere"]
        assert relay.end() == 0


def test_an_id_of_the_senders_is_held_once(queues, tmp_path):
    mine = queues()
    for _ in range(3):
        mine.say(b"x", {"x-delay": 300}, message_id="same")
    options = ["--from", f"{mine.source}&id=message_id", "--to", mine.sink]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        mine.read(mine.goes, 1)
        until(lambda: mine.ready(mine.came) == 0)
        assert relay.end() == 0
    assert mine.ready(mine.goes) == 0


@pytest.mark.parametrize("more", ["kafka-first", "rabbitmq-first"])
def test_one_broker_into_the_other(queues, topics, tmp_path, more):
    mine, theirs = queues(), topics(1)
    if more == "kafka-first":
        theirs.say(b"body", {"dwell-delay": "1ms", "trace": "t"}, "key")
        theirs.flush()
        with relaying(
            tmp_path / "store", ["--from", theirs.source, "--to", mine.sink], tmp_path / "log"
        ):
            (found,) = mine.read(mine.goes, 1)
        assert (found.body, headers_of(found)) == (b"body", {"trace": "t"})
        return
    mine.say(b"body", {"x-delay": 1, "trace": "t"})
    with relaying(
        tmp_path / "store", ["--from", mine.source, "--to", theirs.sink], tmp_path / "log"
    ):
        (found,) = theirs.read(theirs.goes, 1)
    assert found.value() == b"body"
    assert ("trace", b"t") in found.headers()


@pytest.mark.campaign
def test_a_relay_that_is_killed_is_taken_over(queues, tmp_path):
    mine = queues()
    server = ServerProcess(tmp_path)
    due_ms = now_ms()
    mine.say_all([(b"%d" % at, {"dwell-due-ms": due_ms + at}) for at in range(2_000)])
    options = ends(mine, "--batch", "50", "--lease", "4s")
    try:
        with (
            relaying(server.url, options, tmp_path / "log0") as first,
            relaying(server.url, options, tmp_path / "log1"),
        ):
            found = mine.read(mine.goes, 300)
            first.end(signal.SIGKILL)

            def all_there() -> bool:
                found.extend(mine.read(mine.goes, 0))
                return len({one.body for one in found}) == 2_000

            until(all_there)
    finally:
        server.stop()


def test_a_broker_that_is_away_is_waited_for_and_told(tmp_path):
    port, address = free_port(), f"127.0.0.1:{free_port()}"
    place = f"amqp://guest:secret@127.0.0.1:{port}"
    options = ["--from", f"{place}/?queue=a", "--to", f"{place}/?queue=b", "--http", address]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: asked(address, "readyz")[0] == 503)
        assert "secret" not in asked(address, "readyz")[1]
        assert relay.end() == 0
        assert "secret" not in relay.log


@pytest.mark.parametrize(
    ("source", "sink", "message"),
    [
        ("amqp://h/", "amqp://h/?queue=b", "--from: got no queue"),
        ("amqp://h/?queue=a", "amqp://h/?quux=b", "got the option 'quux'"),
        ("amqp://h/?queue=a", "amqp://h/?queue=b&exchange=c", "expected one of them"),
        ("amqp://h/?queue=a&prefetch=0", "amqp://h/?queue=b", "prefetch: got '0'"),
        (f"amqp://h/?queue=a&prefetch={'9' * 5_000}", "amqp://h/?queue=b", "prefetch: got '999"),
        ("amqp:///?queue=a", "amqp://h/?queue=b", "expected amqp://USER"),
    ],
)
def test_a_bad_address_is_refused(tmp_path, source, sink, message):
    options = ["--from", source, "--to", sink]
    relay = RelayProcess(tmp_path / "store", options, tmp_path / "log")
    assert relay.process.wait(60) == 2
    assert message in relay.log


# --- campaigns ------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_messages_that_outlast_the_consumer_timeout_are_told_and_held_once(tmp_path):
    from bench.brokers import rabbitmq_server

    with rabbitmq_server(consumer_timeout=3_000, channel_tick_interval=500) as broker:
        mine = Queues(broker.hosts, "late")
        headers = {"dwell-delay": "1ms", "dwell-to": mine.name}
        mine.say_all([(b"%d" % at, headers) for at in range(15)])
        with dwell.open(tmp_path / "store") as queue:
            queue.configure(mine.name, max_pending=5, on_full="refuse")
        options = ["--from", mine.source]
        with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
            until(lambda: "consumer_timeout" in relay.log)
            assert "10 messages could not be held" in relay.log
            assert relay.end() == 0
        with dwell.open(tmp_path / "store") as queue:
            queue.configure(mine.name, max_pending=0)
        address = f"127.0.0.1:{free_port()}"
        with relaying(tmp_path / "store", [*options, "--http", address], tmp_path / "log") as relay:
            held = 'dwell_relay_held_total{result="created"} 10.0'
            until(lambda: held in asked(address, "metrics")[1])
            assert relay.end() == 0
        with dwell.open(tmp_path / "store") as queue:
            found = sorted(int(one.body) for one in queue.take(mine.name, 100))
        assert found == list(range(15))


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_a_broker_that_is_killed_again_and_again_loses_nothing(tmp_path):
    from bench.brokers import rabbitmq_server

    with rabbitmq_server() as broker:
        mine = Queues(broker.hosts, "killed", {"x-queue-type": "quorum"})
        total = 0
        with (
            mine.consuming(mine.goes) as found,
            relaying(tmp_path / "store", ends(mine, "--lease", "5s"), tmp_path / "log") as relay,
        ):

            def missing() -> list[int]:
                return sorted(set(range(total)) - {json.loads(one.body) for one in list(found)})

            for number in (signal.SIGTERM, signal.SIGKILL):
                due_ms = now_ms() + 500
                said = [
                    (b"%d" % (total + at), {"dwell-due-ms": due_ms + at}) for at in range(3_000)
                ]
                before = len(found)
                mine.say_all(said)
                total += 3_000
                until(lambda: len(found) > before)  # noqa: B023
                broker.kill(number)
                broker.start()
            until(
                lambda: not missing(),
                lambda: (
                    f"{len(missing())} of {total} are missing, {missing()[:5]}; ready: "
                    f"{mine.ready(mine.came)} and {mine.ready(mine.goes)}; {relay.log[-2000:]}"
                ),
                seconds=400,
            )
            assert relay.end() == 0


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_a_relay_that_is_killed_again_and_again_loses_nothing(queues, tmp_path):
    mine = queues()
    server = ServerProcess(tmp_path)
    seen: Counter[int] = Counter()
    total = 0
    try:
        for round_ in range(8):
            due_ms = now_ms()
            said = [(b"%d" % (total + at), {"dwell-due-ms": due_ms + at}) for at in range(500)]
            mine.say_all(said)
            total += 500
            relay = RelayProcess(
                server.url, ends(mine, "--lease", "3s", "--batch", "100"), tmp_path / "log"
            )
            before = len(seen)
            with contextlib.suppress(AssertionError):
                until(lambda: len(read_all(mine, seen)) > before, seconds=1.5)  # noqa: B023
            time.sleep(0.01 * (round_ % 7))
            relay.end(signal.SIGKILL)
        with relaying(server.url, ends(mine, "--lease", "3s"), tmp_path / "log"):
            until(lambda: len(read_all(mine, seen)) == total, seconds=120)
    finally:
        server.stop()
    assert set(seen) == set(range(total))


def read_all(mine: Queues, seen: "Counter[int]") -> "Counter[int]":
    found: list[Any] = []
    with contextlib.suppress(Exception):
        mine.read(mine.goes, 0, found)
    seen.update(json.loads(one.body) for one in found)
    return seen


class Microseconds:
    """Properties with a timestamp that no client in Python can read."""

    message_id = "m"

    def marshal(self):
        return (1 << 6).to_bytes(2) + (1_760_000_000_000_000_000).to_bytes(8)


def test_what_breaks_the_connection_holds_up_only_itself(queues, tmp_path):
    limited = {"x-queue-type": "quorum", "x-delivery-limit": 20}
    mine = queues(**limited)

    async def publish(channel):
        for at in range(60):
            given = Microseconds() if at == 30 else spec.Basic.Properties(message_id=f"{at}")
            await channel.basic_publish(
                b"%d" % at, routing_key=mine.came, properties=given, wait=False
            )

    mine.by_channel(publish)
    options = ["--from", f"{mine.source}&id=message_id", "--to", mine.sink]
    with relaying(tmp_path / "store", [*options, "--default-delay", "1ms"], tmp_path / "log"):
        found = {int(one.body) for one in mine.read(mine.goes, 59)}
    assert found == set(range(60)) - {30}


def test_the_environment_says_the_ends_where_the_command_does_not(queues, tmp_path, monkeypatch):
    mine = queues()
    mine.say(b"1", {"x-delay": 1})
    monkeypatch.setenv("DWELL_FROM", mine.source)
    monkeypatch.setenv("DWELL_TO", mine.sink)
    with relaying(tmp_path / "store", [], tmp_path / "log") as relay:
        assert [one.body for one in mine.read(mine.goes, 1)] == [b"1"]
        assert relay.end() == 0
    assert "guest:guest" not in relay.log
    mine.say(b"2", {"x-delay": 1})
    program = Path(sys.executable).with_name("dwell")
    done = subprocess.run(
        [program, "--store", tmp_path / "store", "takeover"], capture_output=True, check=True
    )
    assert b"1 moved" in done.stdout


def test_a_message_that_cannot_be_read_is_a_dead_letter(queues, tmp_path, monkeypatch):
    """One that was left out would be acked with what comes after it, and nobody had it."""
    mine = queues()
    source = RabbitMQSource(mine.source)
    read = source._record

    def breaks(message, *place):
        if message.body == b"strange":
            raise OverflowError("int too big to convert")
        return read(message, *place)

    monkeypatch.setattr(source, "_record", breaks)
    mine.say_all([(b"1", None), (b"strange", None), (b"2", None)])

    async def relayed():
        async with dwell.open(tmp_path / "store") as queue:
            stopping, letters = asyncio.Event(), QueueSink(queue)
            rules = Rules(to="jobs", default_delay_ms=0, is_named=False)
            relay = Relay(queue, Plan(), rules, source=source, sink=None, letters=letters)
            running = asyncio.create_task(relay.run(stopping))
            await until_async(lambda: relay.tally.settled == 3 or running.done())
            stopping.set()
            await running
            return await queue.take("jobs", 9), await queue.take("relay-dead", 9)

    good, dead = asyncio.run(relayed())
    assert [one.body for one in good] == [b"1", b"2"]
    assert [one.body for one in dead] == [b"strange"]
    assert "cannot be read: OverflowError" in dead[0].headers["dwell-reason"]
    assert mine.ready(mine.came) == 0


def test_a_stream_is_refused(queues, tmp_path):
    mine = queues()
    mine.declare(stream := f"{mine.name}-stream", **{"x-queue-type": "stream"})
    options = ["--from", f"{mine.hosts}/?queue={stream}", "--to", mine.sink]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        assert relay.process.wait(60) == 2
    assert f"got the stream '{stream}', expected a queue" in relay.log


def test_a_count_of_deaths_may_be_any_number(queues, tmp_path):
    mine = queues()
    deaths = [{"queue": mine.came, "reason": "expired", "count": 2**63 - 1}]
    with relaying(tmp_path / "store", ends(mine), tmp_path / "log"):
        begin(mine)
        mine.say(b"old", {"x-death": deaths}, expiration="2000")
        (found,) = mine.read(mine.goes, 1)
    assert headers_of(found)["x-death"][0]["count"] == 2**63 - 1


def test_what_tells_something_is_read_whatever_its_type(queues, tmp_path):
    mine = queues()
    later = datetime.now(UTC) + timedelta(hours=1)
    said = [{"dwell-due-ms": later}, {"dwell-delay": Decimal(3600)}, {"x-delay": Decimal(9**7)}]
    odd = [{"dwell-delay": [1]}, {"dwell-id": {"a": 1}, "dwell-delay": "1h"}]
    mine.say_all([(b"%d" % at, one) for at, one in enumerate([*said, *odd])])
    mine.say(b"now", None)
    options = ends(mine, "--default-delay", "1ms", "--dead", mine.dead)
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        dead = mine.read(mine.dead, 2)
        assert [one.body for one in mine.read(mine.goes, 1)] == [b"now"]
        until(lambda: not mine.ready(mine.came))
        assert relay.end() == 0
    assert [one.body for one in dead] == [b"3", b"4"]
    reasons = [headers_of(one)["dwell-reason"] for one in dead]
    assert ["got list" in reasons[0], "got dict" in reasons[1]] == [True, True]
    with dwell.open(tmp_path / "store") as queue:
        held = {one.body: one for one in queue.scan("relay", "delayed").messages}
    assert sorted(held) == [b"0", b"1", b"2"]
    assert held[b"0"].due_ms // 1000 == int(later.timestamp())


def test_who_had_a_copy_gets_no_second(queues, tmp_path):
    mine = queues()
    with relaying(tmp_path / "store", ends(mine), tmp_path / "log") as relay:
        mine.say(b"1", {"x-delay": 1, "CC": [mine.dead]})
        (found,) = mine.read(mine.goes, 1)
        assert relay.end() == 0
    assert "CC" not in headers_of(found)
    assert mine.ready(mine.dead) == 1


def test_more_properties_than_a_message_may_have_are_a_dead_letter(queues, tmp_path):
    mine = queues()
    trace = [{"n": at} for at in range(6_000)]
    mine.say_all([(b"1", None), (b"large", {"trace": trace}), (b"2", None)])
    options = ends(mine, "--default-delay", "0s", "--dead", mine.dead)
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        (dead,) = mine.read(mine.dead, 1)
        assert [one.body for one in mine.read(mine.goes, 2)] == [b"1", b"2"]
        assert relay.end() == 0
    assert dead.body == b"large"
    assert headers_of(dead)["trace"] == trace
    assert headers_of(dead)["dwell-reason"].startswith("headers: got")


def test_properties_that_are_none_are_set_aside(queues, tmp_path):
    mine = queues()
    with dwell.open(tmp_path / "store") as queue:
        forged = Properties("m", typed={"a": b"\xff\xff\xff"})
        for at, data in enumerate((b"garbage", *map(msgspec.msgpack.encode, (["m", 300], forged)))):
            headers = {"dwell-properties": b64encode(data).decode()}
            queue.put("jobs", b"bad", id=f"bad{at}", headers=headers)
        queue.put("jobs", b"good")
    options = ["--to", mine.sink, "--topic", "jobs", "--dead", mine.dead]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        assert [one.body for one in mine.read(mine.goes, 1)] == [b"good"]
        assert relay.end() == 0
    with dwell.open(tmp_path / "store") as queue:
        dead = queue.scan("jobs", "dead").messages
        assert {one.id: "properties: " in one.last_error for one in dead} == {
            "bad0": True,
            "bad1": True,
            "bad2": True,
        }
