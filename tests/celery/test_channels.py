"""What a channel of kombu does over each store."""

import asyncio
import contextlib
import multiprocessing
import os
import time

import kombu
import pytest
from kombu.exceptions import ChannelError

import dwell
from dwell.celery import directory, intake, upkeep
from dwell.celery.channel import Channel
from dwell.celery.directory import queue_row
from dwell.celery.names import topic_of
from dwell.celery.transport import _url_of
from tests.celery.consumers import Consumer, counts, publish
from tests.waiting import until


def test_higher_priorities_come_first(connect):
    connection, queue = connect(), kombu.Queue("tasks")
    for priority in (3, 9, 0, 6):
        publish(connection, queue, priority, priority=priority)
    publish(connection, queue, "none")
    assert Consumer(connection, queue).until(5) == [9, 6, 3, 0, "none"]


def test_a_prefetch_count_bounds_what_is_delivered(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    publish(connection, queue, *range(10))
    consumer = Consumer(connection, queue, prefetch=3)
    assert consumer.drain() == [0, 1, 2]
    consumer.messages[0].ack()
    assert consumer.until(4) == [0, 1, 2, 3]
    assert consumer.drain() == [0, 1, 2, 3]
    consumer.messages[3].ack(multiple=True)
    assert consumer.until(7) == [*range(7)]
    until(lambda: counts(store, queue) == (0, 3, 3, 0))


def test_an_ack_of_several_leaves_what_was_not_delivered(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    other = kombu.Queue("others")(connection.default_channel)
    publish(connection, queue, *range(5))
    publish(connection, other, "x")
    consumer = Consumer(connection, queue, prefetch=10)
    connection.drain_events(timeout=30)
    until(lambda: counts(store, queue) == (0, 0, 5, 0))
    # The tag of another queue, which was delivered after the first and taken after all.
    other.get().ack(multiple=True)
    until(lambda: counts(store, queue) == (0, 0, 4, 0))
    until(lambda: counts(store, other) == (0, 0, 0, 0))
    assert consumer.until(5) == [*range(5)]


def test_an_ack_of_several_up_to_a_message_that_is_settled_does_nothing(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    publish(connection, queue, *range(5))
    consumer = Consumer(connection, queue, prefetch=5)
    assert consumer.until(5) == [*range(5)]
    tag = consumer.messages[0].delivery_tag
    consumer.messages[0].ack()
    consumer.messages[0].channel.basic_ack(tag, multiple=True)
    consumer.messages[1].ack()
    until(lambda: counts(store, queue) == (0, 0, 3, 0))


#: Its decoder raises an error of arithmetic.
_NO_NUMBER = b'{"properties": {}, "body": {"__type__": "decimal", "__value__": "abc"}}'


@pytest.mark.parametrize(
    "body", [b"no JSON", b"[]", b"{}", b'{"properties": 7}', b"\xff", _NO_NUMBER]
)
def test_a_message_of_others_is_set_aside(connect, store, body):
    connection, queue = connect(), kombu.Queue("tasks")
    store("put", "tasks", body, id="odd", priority=0)
    publish(connection, queue, *range(3))
    consumer = Consumer(connection, queue, prefetch=1, acks=3)
    assert consumer.until(3) == [*range(3)]
    until(lambda: counts(store, queue) == (0, 0, 0, 1))
    assert store("get", "tasks", "odd").last_error.startswith("no message of kombu: ")


def test_a_message_that_kombu_cannot_build_is_set_aside(connect, store, monkeypatch):
    connection, queue = connect(), kombu.Queue("tasks")

    class Refusing(Channel.Message):
        def __init__(self, payload, channel=None):
            if payload["headers"].get("odd"):
                raise ValueError("not for me")
            super().__init__(payload, channel)

    monkeypatch.setattr(Channel, "Message", Refusing)
    publish(connection, queue, 1, headers={"odd": True})
    publish(connection, queue, 2)
    assert Consumer(connection, queue, acks=1).until(1) == [2]
    until(lambda: counts(store, queue) == (0, 0, 0, 1))


def test_a_message_of_others_does_not_hide_the_next_of_a_get(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    store("put", "tasks", b"no JSON", id="odd", priority=0)
    publish(connection, queue, 1)
    assert queue(connection.default_channel).get().payload == 1
    assert queue(connection.default_channel).get() is None
    assert store("get", "tasks", "odd").state is dwell.State.DEAD


def test_what_was_taken_ahead_is_given_back_when_work_takes_long(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    queue(connection.default_channel).declare()
    producer = connection.Producer()
    with producer.batch():
        for number in range(600):
            producer.publish(number, routing_key="tasks")
    consumer = Consumer(connection, queue, prefetch=2, acks=300)
    while len(consumer.messages) < 302:
        connection.drain_events(timeout=30)
    # More than it may hold are at hand, which is what makes it fast.
    assert consumer.drain() == [*range(302)]
    until(lambda: counts(store, queue) == (0, 298, 2, 0), lambda: counts(store, queue))
    # They are where they were.
    assert Consumer(connect(), queue).until(298) == [*range(302, 600)]


def test_messages_without_acks_are_gone_when_they_are_delivered(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    publish(connection, queue, "once")
    assert Consumer(connection, queue, no_ack=True).until(1) == ["once"]
    assert counts(store, queue) == (0, 0, 0, 0)


def test_a_message_that_was_requeued_says_so(connect):
    connection, queue = connect(), kombu.Queue("tasks")
    publish(connection, queue, "again")
    consumer = Consumer(connection, queue)
    consumer.until(1)
    assert "redelivered" not in consumer.messages[0].delivery_info
    consumer.messages[0].requeue()
    consumer.until(2)
    assert consumer.messages[1].delivery_info["redelivered"]
    consumer.messages[1].ack()


def test_a_rejected_message_is_dead(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    publish(connection, queue, "bad")
    consumer = Consumer(connection, queue)
    consumer.until(1)
    consumer.messages[0].reject()
    page = store("scan", topic_of(queue.name), "dead")
    assert page.messages[0].last_error == "rejected"


def test_with_max_attempts_a_message_is_dead_in_the_end(connect, store):
    connection, queue = connect(max_attempts=2), kombu.Queue("tasks")
    publish(connection, queue, "poison")
    consumer = Consumer(connection, queue)
    for times in (1, 2):
        consumer.until(times)
        consumer.messages[-1].requeue()
    assert counts(store, queue) == (0, 0, 0, 1)


def test_a_lease_that_has_ended_is_given_up(connect, store):
    """As after a pause of the process that was longer than the lease."""
    connection, queue = connect(lease="500ms"), kombu.Queue("tasks")
    publish(connection, queue, "lost")
    consumer = Consumer(connection, queue, prefetch=1)
    consumer.until(1)
    tag = consumer.messages[0].delivery_tag
    store("release", tag)
    # It is delivered again, though the first was never acked.
    consumer.until(2)
    consumer.messages[0].ack()
    consumer.messages[1].ack()
    until(lambda: counts(store, queue) == (0, 0, 0, 0))


def test_a_call_that_fails_leaves_no_message_undelivered(connect, monkeypatch):
    """Messages without acks are acked as they are taken, beside others of the same take."""
    connection = connect(lease="1s")
    shared = connection.connection.link
    works, events = kombu.Queue("works"), kombu.Queue("events")
    fails, true_ack = ["once"], shared.queue.ack

    async def ack(*args, **words):
        if fails:
            fails.pop()
            raise dwell.ServerUnreachable("away for a moment")
        return await true_ack(*args, **words)

    monkeypatch.setattr(shared.queue, "ack", ack)
    channel, got = connection.default_channel, []
    for queue, no_ack in ((works, False), (events, True)):
        publish(connection, queue, queue.name)
        channel._intake._topics |= {queue.name: intake.Consumed(queue.name, no_ack)}
        channel._callbacks[queue.name] = lambda message: got.append(message.decode())
    shared.run(channel._intake._start)
    while sorted(got) != ["events", "works"]:
        connection.drain_events(timeout=30)
    assert not fails


def test_leases_of_a_store_that_was_replaced_end_no_others(connect, store):
    connection, queue = connect(lease="1s"), kombu.Queue("tasks")
    publish(connection, queue, *range(3))
    consumer = Consumer(connection, queue, prefetch=3)
    consumer.until(3)
    held = connection.default_channel._intake
    # As after a restore: a message of another life of the store.
    with dwell.open("memory:") as other:
        other.put("t", b"x")
        foreign = str(other.take("t")[0].receipt)
    held._held = {foreign: None, **held._held}
    end = time.monotonic() + 2.5
    until(lambda: time.monotonic() > end)
    assert foreign not in held._held
    assert counts(store, queue) == (0, 0, 3, 0)
    held._held[foreign] = None
    held._acked.append((foreign, ""))
    consumer.messages[0].ack()
    until(lambda: counts(store, queue) == (0, 0, 2, 0))
    connection.release()
    assert counts(store, queue) == (0, 2, 0, 0)


def test_messages_of_a_store_that_was_replaced_can_be_refused(connect, store, caplog):
    connection, queue = connect(), kombu.Queue("tasks")
    publish(connection, queue, "kept", "dead")
    consumer = Consumer(connection, queue)
    consumer.until(2)
    held = connection.default_channel._intake
    with dwell.open("memory:") as other:
        other.put_many("t", [b"x", b"y"])
        foreign = [str(one.receipt) for one in other.take("t", 2)]
    held._held.update(dict.fromkeys(foreign))
    connection.default_channel.basic_reject(foreign[0], requeue=True)
    connection.default_channel.basic_reject(foreign[1], requeue=False)
    assert caplog.text.count("refused after its lease had ended") == 2
    consumer.messages[1].reject()
    assert counts(store, queue) == (0, 0, 1, 1)


def test_a_held_message_is_kept_longer_than_its_lease(connect, store):
    connection, queue = connect(lease="2s"), kombu.Queue("tasks")
    publish(connection, queue, "long")
    consumer = Consumer(connection, queue)
    consumer.until(1)
    end = time.monotonic() + 4.5
    until(lambda: time.monotonic() > end)
    assert consumer.drain() == ["long"]
    (held,) = store("scan", topic_of(queue.name), "leased").messages
    assert held.attempt == 1


def test_closing_a_channel_gives_back_what_it_holds(connect, store):
    connection, queue = connect(lease="1h"), kombu.Queue("tasks")
    publish(connection, queue, *range(5))
    consumer = Consumer(connection, queue, prefetch=2)
    consumer.drain()
    consumer.messages[0].ack()
    connection.release()
    assert counts(store, queue) == (0, 4, 0, 0)
    (first, *_) = store("peek", topic_of(queue.name), 4)
    # A delivery that came to nothing does not count.
    assert first.attempt == 0


def test_a_batch_of_messages_is_one_call_of_the_store(connect, store, monkeypatch):
    connection, queue = connect(), kombu.Queue("tasks")
    with connection.channel() as channel:
        queue(channel).declare()
        calls = []
        real = dwell.Queue.put_many
        monkeypatch.setattr(
            dwell.Queue, "put_many", lambda *args, **words: calls.append(1) or real(*args, **words)
        )
        producer = connection.Producer(channel)
        assert producer.supports_batch_publish
        with producer.batch():
            for number in range(500):
                producer.publish(number, routing_key="tasks", priority=number % 3)
            assert counts(store, queue) == (0, 0, 0, 0)
    assert calls == [1]
    assert counts(store, queue) == (0, 500, 0, 0)


def test_a_batch_that_fails_puts_nothing(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    producer = connection.Producer()
    queue(connection.default_channel).declare()
    with contextlib.suppress(ZeroDivisionError), producer.batch():
        producer.publish("x", routing_key="tasks")
        raise ZeroDivisionError
    assert counts(store, queue) == (0, 0, 0, 0)


# --- queues and exchanges ---------------------------------------------------------------------


def test_bindings_are_those_of_all_connections(connect, url):
    exchange = kombu.Exchange("news", "topic")
    consumer = Consumer(connect(), kombu.Queue("reader", exchange, "news.*"))
    # Another connection that declares no queue, as if it were another process.
    producer = connect().Producer(exchange=exchange)
    producer.publish("sport", routing_key="news.sport")
    producer.publish("weather", routing_key="weather")
    assert consumer.drain() == ["sport"]
    for queue in consumer.consumer.queues:
        queue.unbind_from(exchange, "news.*")
    producer.publish("late", routing_key="news.sport")
    assert consumer.drain() == ["sport"]


def test_a_fanout_reaches_every_queue(connect):
    exchange = kombu.Exchange("all", "fanout")
    consumers = [Consumer(connect(), kombu.Queue(f"q{n}", exchange)) for n in range(3)]
    connect().Producer(exchange=exchange).publish("hello")
    assert [consumer.until(1) for consumer in consumers] == [["hello"]] * 3


def test_a_queue_that_expires_is_deleted_with_its_messages(connect, store, monkeypatch):
    monkeypatch.setattr(upkeep, "_SWEEP_S", 0.2)
    exchange = kombu.Exchange("all", "fanout")
    queue = kombu.Queue("short", exchange, expires=0.6)
    left = connect()
    consumer = Consumer(left, queue)
    producer = connect().Producer(exchange=exchange)
    producer.publish("first")
    consumer.until(1)
    # It is kept while somebody consumes from it.
    end = time.monotonic() + 1.5
    until(lambda: time.monotonic() > end)
    producer.publish("second")
    consumer.until(2)
    consumer.messages[1].requeue()
    left.release()
    other = Consumer(connect(), kombu.Queue("other"))
    until(lambda: counts(store, queue) == (0, 0, 0, 0), lambda: store("stats").topics)
    until(lambda: not store("stats").topics["kombu.exchange.all"].delayed)
    producer.publish("third")
    assert counts(store, queue) == (0, 0, 0, 0)
    assert other.drain() == []


def test_a_queue_that_is_deleted_automatically_goes_with_its_consumer(connect, store):
    exchange = kombu.Exchange("all", "fanout")
    queue = kombu.Queue("mine", exchange, auto_delete=True)
    consumer = Consumer(connect(), queue)
    producer = connect().Producer(exchange=exchange)
    producer.publish("left")
    consumer.consumer.cancel()
    producer.publish("late")
    assert counts(store, queue) == (0, 0, 0, 0)
    assert store("stats").topics["kombu.exchange.all"].delayed == 0


def test_a_reply_for_a_queue_that_is_gone_is_dropped(connect, store):
    queue = kombu.Queue("replies", auto_delete=True, durable=False)
    producer = connect().Producer()
    producer.publish("nobody", routing_key="replies", delivery_mode="transient")
    assert topic_of(queue.name) not in store("stats").topics
    consumer = Consumer(connect(), queue)
    producer.publish("somebody", routing_key="replies", delivery_mode="transient")
    assert consumer.until(1) == ["somebody"]


def test_a_queue_exists_once_it_was_declared(connect):
    queue = kombu.Queue("seen")(connect().default_channel)
    with pytest.raises(ChannelError, match="no queue 'seen'"):
        queue.queue_declare(passive=True)
    queue.declare()
    publish(connect(), kombu.Queue("seen"), 1, 2, 3)
    assert queue.queue_declare(passive=True).message_count == 3
    queue.delete()
    with pytest.raises(ChannelError):
        queue.queue_declare(passive=True)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"expires": 1.0}),
        ({"expires": 60.0}, {}),
        ({"expires": 60.0}, {"expires": 1.0}),
        ({}, {"auto_delete": True}),
        ({"expires": 86_400.0}, {"auto_delete": True}),
    ],
)
def test_a_queue_keeps_the_life_that_it_was_declared_with(connect, store, first, second):
    queue = kombu.Queue("tasks", **first)
    publish(connect(), queue, 1)
    before = store("get", "kombu.queues", "tasks")
    with pytest.raises(ChannelError, match="PRECONDITION_FAILED - queue 'tasks'") as raised:
        kombu.Queue("tasks", **second)(connect().default_channel).declare()
    assert raised.value.reply_code == "406"
    assert store("get", "kombu.queues", "tasks") == before
    publish(connect(), queue, 2)
    assert counts(store, queue) == (0, 2, 0, 0)


def test_a_queue_of_an_older_version_has_only_an_end_or_none(connect, store):
    store("put", "kombu.queues", b"stays", id="stays", due=4_102_444_800_000)
    for name in ("goes", "goes.too"):
        store("put", "kombu.queues", name.encode(), id=name, delay="1h")
    declare = connect().default_channel.queue_declare
    declare("stays")
    declare("goes", arguments={"x-expires": 60_000})
    for name, arguments in (("stays", {"x-expires": 60_000}), ("goes.too", {})):
        with pytest.raises(ChannelError):
            declare(name, arguments=arguments)


def test_a_name_that_is_too_long_leaves_nothing(connect, store, monkeypatch):
    monkeypatch.setattr(upkeep, "_SWEEP_S", 0.2)
    name = "q" * 201
    with pytest.raises(dwell.InvalidTopic):
        connect().default_channel.queue_declare(name)
    assert store("get", "kombu.queues", name) is None
    # A row that an older version left stops no other queue.
    for id_, body in ((name, name), ("brief", "brief")):
        store("put", "kombu.queues", body.encode(), id=id_)
    store("put", "brief", b"x")
    Consumer(connect(), kombu.Queue("other"))
    until(lambda: not store("stats").topics["brief"].ready)


def test_a_queue_whose_tasks_wait_or_run_is_not_deleted_if_empty(connect, store):
    channel, queue = connect().default_channel, kombu.Queue("tasks")
    queue(channel).declare()
    store("put", "tasks", b"{}", delay="1h", id="later")
    channel.queue_delete("tasks", if_empty=True)
    store("reschedule", "tasks", "later", delay=0)
    channel.queue_delete("tasks", if_empty=True)
    (taken,) = store("take", "tasks")
    channel.queue_delete("tasks", if_empty=True)
    assert store("get", "tasks", "later") is not None
    store("ack", taken)
    assert channel._has_queue("tasks")
    channel.queue_delete("tasks", if_empty=True)
    assert not channel._has_queue("tasks")


def test_a_message_that_was_lost_before_it_was_delivered_takes_no_place(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    publish(connection, queue, *range(4))
    consumer = Consumer(connection, queue, prefetch=2)
    intake_ = connection.default_channel._intake
    until(lambda: len(intake_._buffer) == 2)
    # As after an outage that was longer than a lease.
    connection.connection.link.run(intake_._give_back, list(intake_._held))
    for expected in range(4):
        while len(consumer.messages) <= expected:
            connection.drain_events(timeout=30)
        consumer.messages[expected].ack()
    # The others may have been taken before these were given back.
    assert sorted(consumer.bodies) == [*range(4)]
    assert intake_.held == 0


def test_a_sweep_that_was_stopped_leaves_a_queue_that_was_declared_again(
    connect, store, monkeypatch
):
    monkeypatch.setattr(directory, "_LEASE_S", 0.05)
    connection, queue = connect(), kombu.Queue("tasks", expires=0.05)
    queue(connection.default_channel).declare()
    shared = connection.connection.link
    true_take = shared.queue.take

    async def take(*args, **words):
        batch = await true_take(*args, **words)
        if len(batch):
            # The process is stopped here for longer than the lease.
            await shared.upkeep.directory.declare(queue_row("tasks"), None)
            await shared.queue.put("tasks", b"new", id="new")
        return batch

    monkeypatch.setattr(shared.queue, "take", take)
    until(
        lambda: not shared.run(shared.upkeep.directory.sweep, []) and store("get", "tasks", "new")
    )
    assert store("get", "kombu.queues", "tasks").state is dwell.State.DELAYED


def test_rows_that_others_have_put_stop_no_queue(connect, store):
    channel = connect().default_channel
    channel.exchange_declare("all", type="fanout")
    channel.queue_declare("stays")
    channel.queue_bind("stays", exchange="all")
    channel.queue_declare("ends", arguments={"x-expires": 50})
    kept = directory.exchange_topic("all")
    for topic, body in (("kombu.queues", b"\xff"), (kept, b"{"), (kept, b"\xff")):
        store("put", topic, body, delay="1h", id=f"odd-{body[0]}")
    store("put", "kombu.queues", b"\xfe", id="expired")
    store("put", "ends", b"old", id="old")
    shared = connect().connection.link

    def are_swept():
        shared.run(shared.upkeep.directory.sweep, [])
        return not (store("get", "kombu.queues", "expired") or store("get", "ends", "old"))

    until(are_swept)
    names = shared.run(shared.upkeep.directory.names)
    assert "stays" in names
    (binding,) = shared.run(shared.upkeep.directory.bindings, "all")
    assert binding.queue == "stays"
    channel.queue_delete("stays")
    assert not shared.run(shared.upkeep.directory.bindings, "all")


def test_a_pattern_that_others_have_put_is_not_used(connect, store):
    exchange = kombu.Exchange("news", "topic")
    consumer = Consumer(connect(), kombu.Queue("reader", exchange, "news.*"))
    row = directory.binding_row("", directory.Binding("odd.*", "^other$", "reader"))
    store("put", directory.exchange_topic("news"), row.body, id="odd", delay="1h")
    connect().Producer(exchange=exchange).publish("sport", routing_key="odd.sport")
    assert consumer.drain() == ["sport"]


def test_a_queue_that_is_declared_while_it_is_deleted_is_a_new_one(connect, store, monkeypatch):
    channel = connect().default_channel
    channel.queue_declare("tasks")
    shared = connect().connection.link
    true_clear, declared = shared.queue.clear, []

    async def clear(topic):
        row = queue_row("tasks")
        declared.append(asyncio.create_task(shared.upkeep.directory.declare(row, None)))
        await asyncio.sleep(0.2)
        assert not declared[0].done()
        return await true_clear(topic)

    monkeypatch.setattr(shared.queue, "clear", clear)
    channel.queue_delete("tasks")
    until(lambda: declared[0].done())
    assert channel._has_queue("tasks")


def test_a_purge_cancels_what_waits_and_leaves_what_is_dead(connect, store):
    connection, queue = connect(), kombu.Queue("tasks")
    publish(connection, queue, *range(3))
    consumer = Consumer(connection, queue, prefetch=1)
    consumer.until(1)
    consumer.messages[0].reject()
    consumer.consumer.cancel()
    until(lambda: counts(store, queue) == (0, 2, 0, 1))
    assert queue(connection.default_channel).purge() == 2
    assert counts(store, queue) == (0, 0, 0, 1)


def test_a_full_queue_that_drops_is_told_once(connect, store, caplog):
    queue = kombu.Queue("full")
    publish(connect(), queue, 1)
    store("configure", "full", max_pending=1, on_full="drop")
    publish(connect(), queue, 2, 3)
    assert caplog.messages == ["full: the topic is full, and drops messages"]
    producer = connect().Producer()
    with producer.batch():
        for number in (4, 5):
            producer.publish(number, routing_key="full")
    assert caplog.messages == ["full: the topic is full, and drops messages"] * 2
    assert counts(store, queue) == (0, 1, 0, 0)


def test_messages_that_nobody_reads_in_time_are_dead(connect, store):
    connection, queue = connect(), kombu.Queue("tasks", message_ttl=0.2)
    publish(connection, queue, "old")
    publish(connection, kombu.Queue("other"), "old", expiration=0.2)
    for name in ("tasks", "other"):
        until(lambda name=name: counts(store, kombu.Queue(name)) == (0, 0, 0, 1))


def test_any_name_of_a_queue_is_a_topic(connect, store):
    names = ["celery@host.pidbox", "a b", "Ä:ö", "..", "a:40b", "a@b"]
    assert len({topic_of(name) for name in names}) == len(names)
    for name in names:
        connection, queue = connect(), kombu.Queue(name)
        publish(connection, queue, name)
        assert Consumer(connection, queue).until(1) == [name]
    with pytest.raises(dwell.InvalidTopic, match="got str 'x"):
        publish(connect(), kombu.Queue("x" * 201), "long")


def test_a_message_that_is_too_large_is_refused(connect, store):
    with pytest.raises(dwell.InvalidBody, match="1048576"):
        publish(connect(), kombu.Queue("tasks"), "x" * 2**20)
    assert counts(store, kombu.Queue("tasks")) == (0, 0, 0, 0)


def test_bodies_come_as_they_were(connect):
    connection, queue = connect(), kombu.Queue("tasks")
    producer = connection.Producer()
    bodies = [b"\x00\xff", "text", {"a": [1, None, "ü"]}]
    for body in bodies:
        producer.publish(body, routing_key="tasks", declare=[queue])
    producer.publish({"large": "x" * 1000}, routing_key="tasks", compression="gzip")
    consumer = Consumer(connection, queue)
    assert consumer.until(4) == [*bodies, {"large": "x" * 1000}]


def test_a_process_that_is_forked_has_a_connection_of_its_own(connect, url):
    if url.startswith("dwell+memory"):
        pytest.skip("what is in memory is another process's own")
    connection, queue = connect(), kombu.Queue("tasks")
    publish(connection, queue, "parent")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_publish_and_end, args=(connection, queue))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert Consumer(connection, queue).until(2) == ["parent", "child"]


def _publish_and_end(connection, queue):
    """Publish by a connection that another process has opened, as after a fork of a server."""
    producer = connection.Producer()
    producer.publish("child", routing_key="tasks", retry=True, retry_policy={"max_retries": 3})
    os._exit(0)


@pytest.mark.parametrize("url", ["server"], indirect=True)
def test_the_next_url_is_used_when_the_first_does_not_answer(url):
    nobody = url[: url.rindex(":")] + ":1"
    with kombu.Connection(f"{nobody};{url}", transport_options=_AT_ONCE) as connection:
        publish(connection, kombu.Queue("tasks"), "found")
        assert Consumer(connection, kombu.Queue("tasks")).until(1) == ["found"]


_AT_ONCE = {"store": {"retries": 0}}


@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_the_next_url_is_used_with_its_options(url):
    nobody = url[: url.rindex(":")] + ":1/0?timeout=1"
    texts = f"{nobody};{url}?prefix=shop", f"{url}?prefix=shop"
    with kombu.Connection(texts[0]) as first, kombu.Connection(texts[1]) as second:
        publish(first, kombu.Queue("tasks"), "found")
        assert Consumer(second, kombu.Queue("tasks")).until(1) == ["found"]


@pytest.mark.parametrize(
    "next_one", ["dwell+http://[::1]:8499", "dwell+https://127.0.0.1:1/p?x=a%40b"]
)
def test_the_next_url_is_used_as_it_is(next_one):
    with kombu.Connection(f"dwell+memory://;{next_one}") as connection:
        assert connection.transport.link is not None
        connection.maybe_switch_next()
        assert f"dwell+{_url_of(connection)}" == next_one
        connection.maybe_switch_next()
        assert _url_of(connection) == "memory://"
