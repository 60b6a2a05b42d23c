"""Queues and bindings that are gone from the store, as when a Redis came back empty."""

import kombu
import pytest

import dwell
from dwell.celery import directory, upkeep
from tests.celery.consumers import Consumer, counts, publish
from tests.redis.servers import redis_server
from tests.waiting import until


def forget_queues(store, *exchanges):
    """Remove all rows, as of a store that came back empty."""
    for topic in ("kombu.queues", *map(directory.exchange_topic, exchanges)):
        store("clear", topic)


def test_a_queue_that_is_gone_is_declared_again_by_who_consumes(connect, store, monkeypatch):
    monkeypatch.setattr(upkeep, "_SWEEP_S", 0.2)
    exchange = kombu.Exchange("news", "topic")
    queues = [kombu.Queue("stays", exchange, "news.*"), kombu.Queue("ends", exchange, "#")]
    queues[1].expires = 3600
    consumer = Consumer(connect(), *queues)
    before = store("get", "kombu.queues", ["stays", "ends"])
    forget_queues(store, "news")
    until(lambda: store("stats").topics["kombu.exchange.news"].delayed == 2)
    until(lambda: all(store("get", "kombu.queues", ["stays", "ends"])))
    again = store("get", "kombu.queues", ["stays", "ends"])
    assert [one.headers for one in again] == [one.headers for one in before]
    # Another connection that declares no queue, as if it were another process.
    connect().Producer(exchange=exchange).publish("sport", routing_key="news.sport")
    assert consumer.until(2) == ["sport", "sport"]


def test_queues_are_declared_again_when_another_redis_is_in_the_place():
    """Long before they would be looked for."""
    queue = kombu.Queue("tasks", kombu.Exchange("news", "topic"), "news.*")
    with redis_server() as server, kombu.Connection(f"dwell+{server.url}") as connection:
        consumer = Consumer(connection, queue)
        publish(connection, queue, "first")
        consumer.until(1)
        connection.connection.link.upkeep._sweep_at_s = float("inf")
        server.ask("FLUSHALL")
        with dwell.open(server.url) as other:
            until(lambda: other.get("kombu.queues", "tasks"))
            until(lambda: "kombu.exchange.news" in other.stats().topics)


@pytest.mark.parametrize("mode", ["transient", "persistent"])
@pytest.mark.parametrize("kind", ["topic", "fanout"])
def test_a_queue_that_is_gone_is_declared_again_by_who_publishes(connect, store, kind, mode):
    """Otherwise its messages are dropped, and nobody is told."""
    exchange = kombu.Exchange("news", kind, delivery_mode=mode)
    queue, others = kombu.Queue("tasks", exchange, "news.*"), kombu.Queue("others", exchange, "x")
    producer = connect().Producer(exchange=exchange)
    words = {"routing_key": "news.sport", "declare": [queue, others]}
    producer.publish("first", **words)
    forget_queues(store, "news")
    producer.publish("second", **words)
    with producer.batch():
        producer.publish("third", **words)
        forget_queues(store, "news")
        producer.publish("fourth", **words)
    consumer = Consumer(connect(), kombu.Queue("tasks"))
    assert consumer.until(4) == ["first", "second", "third", "fourth"]
    assert bool(store("get", "kombu.queues", "others")) is (kind == "fanout")


def test_a_transient_message_declares_its_own_queue_again(connect, store):
    producer, queue = connect().Producer(), kombu.Queue("tasks")
    for body in ("first", "second"):
        words = {"declare": [queue], "delivery_mode": "transient"}
        producer.publish(body, routing_key="tasks", **words)
        forget_queues(store)
    assert counts(store, queue) == (0, 2, 0, 0)


def test_an_exchange_without_a_queue_says_so_once(connect, store, caplog):
    producer = connect().Producer(exchange=kombu.Exchange("news", "topic"))
    for mode in (1, 2, 2):
        producer.publish("x", routing_key="news.sport", delivery_mode=mode)
        assert caplog.text.count("news: the exchange has no queue") == (mode == 2)
    connect().Producer(exchange=kombu.Exchange("all", "fanout")).publish("x")
    assert "all: " not in caplog.text


def test_what_a_consumer_takes_back_stays_away(connect, store, monkeypatch):
    """Its bindings, one by one or with their exchange, and its queue."""
    monkeypatch.setattr(upkeep, "_SWEEP_S", 0.2)
    exchange = kombu.Exchange("news", "topic")
    queues = [
        kombu.Queue(name, exchange, "#", expires=life) for name, life in (("a", None), ("b", 0.6))
    ]
    connection = connect()
    consumer = Consumer(connection, *queues)
    looked = _looks(connection, monkeypatch)
    consumer.consumer.queues[0].unbind_from(exchange, "#")
    consumer.consumer.queues[1].delete()
    looked(3)
    assert not store("stats").topics["kombu.exchange.news"].delayed
    assert not store("get", "kombu.queues", "b")
    queues[0](connection.default_channel).declare()
    connection.default_channel.exchange_delete("news")
    looked(3)
    assert not store("stats").topics["kombu.exchange.news"].delayed
    assert store("get", "kombu.queues", "a")


def _looks(connection, monkeypatch):
    """Return a function that waits until the queues of a connection were looked for so often."""
    upkeep_, done = connection.connection.link.upkeep, []
    real = upkeep_._restore

    async def restore():
        await real()
        done.append(1)

    monkeypatch.setattr(upkeep_, "_restore", restore)

    def looked(times):
        done.clear()
        until(lambda: len(done) >= times)

    return looked
