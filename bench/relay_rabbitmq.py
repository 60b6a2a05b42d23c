"""RabbitMQ to RabbitMQ by way of a relay: messages a second, and how late they are.

``copy`` is the loop that people write with aio-pika: consume a batch, publish it confirmed, ack it.
It holds nothing. ``ttl`` is the delay that RabbitMQ offers by itself: a queue whose messages expire
into a dead-letter exchange. With delays that differ such a queue looks at its head alone, so those
behind a longer one are late; ``ttl_p99_ms`` says how much, beside the relay's ``p99_ms``.
"""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import aio_pika
from aiormq import spec

from bench.brokers import RabbitMQ, rabbitmq_server
from bench.process import now_ms
from bench.relayed import Counted, relaying, wait_for
from bench.result import Result, percentile

_BODY = b"x" * 200
_PATIENCE_S = 300.0
_BATCH = 2_000
#: Delays of the messages whose lateness is measured, milliseconds.
_DELAYS_MS = (500, 1_000, 2_000, 4_000)


def measure(result: Result, *, messages: int, rate: int, seconds: int, rounds: int) -> None:
    """Measure all in turn, then lateness at a rate."""
    with rabbitmq_server() as broker:
        systems: dict[str, Callable[[], float]] = {
            "dwell": lambda: _relayed(broker, messages),
            "copy": lambda: asyncio.run(_copied(broker, messages)),
            "ttl": lambda: asyncio.run(_expired(broker, messages)),
        }
        result.in_turn(rounds, systems)
        late = _lateness(broker, rate, seconds)
        own = asyncio.run(_late_of_ttl(broker, rate, seconds))
    result.more |= {
        "p50_ms": percentile(late, 0.5),
        "p99_ms": percentile(late, 0.99),
        "early": sum(ms < 0 for ms in late),
        "lost": rate * seconds - len(late),
        "ttl_p50_ms": percentile(own, 0.5),
        "ttl_p99_ms": percentile(own, 0.99),
    }


# --- throughput -----------------------------------------------------------------------------------


def _relayed(broker: RabbitMQ, messages: int) -> float:
    """Return the rate from the first message that was read until all have left."""
    came, goes = asyncio.run(_filled(broker, messages)), asyncio.run(_queue(broker))
    with _relay(broker, came, goes) as counted:
        wait_for(lambda: counted("read") > 0)
        start = time.perf_counter()
        wait_for(lambda: counted("sent") >= messages)
        took_s = time.perf_counter() - start
    there = asyncio.run(_count(broker, goes))
    assert there >= messages, f"{messages - there} messages are lost"
    return messages / took_s


async def _copied(broker: RabbitMQ, messages: int) -> float:
    """Do the same with the client alone."""
    came, goes = await _filled(broker, messages), await _queue(broker)
    async with _channel(broker) as reader, _channel(broker) as writer:
        waiting: list[Any] = []
        arrived = asyncio.Event()

        async def came_in(message: Any) -> None:
            waiting.append(message)
            arrived.set()

        await reader.basic_qos(prefetch_count=_BATCH)
        await reader.basic_consume(came, came_in)
        done, start = 0, 0.0
        while done < messages:
            await arrived.wait()
            arrived.clear()
            start = start or time.perf_counter()
            batch = waiting[:]
            waiting.clear()
            if batch:
                await _publish(writer, goes, [(one.body, {}) for one in batch])
                await reader.basic_ack(batch[-1].delivery.delivery_tag, multiple=True)
            done += len(batch)
        return messages / (time.perf_counter() - start)


async def _expired(broker: RabbitMQ, messages: int, delay_ms: float = 3_000) -> float:
    """Let messages that all expire at one moment go to a queue by a dead-letter exchange.

    A machine that needs longer than the delay to fill the queue gets twice the time.
    """
    goes = await _queue(broker)
    waits = await _queue(
        broker, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": goes}
    )
    end_ms = now_ms() + delay_ms + messages / 4
    async with _channel(broker) as channel:
        for first in range(0, messages, _BATCH):
            left = {"expiration": str(max(round(end_ms - now_ms()), 1))}
            batch = [(_BODY, left)] * min(_BATCH, messages - first)
            await _publish(channel, waits, batch)
        if now_ms() >= end_ms:
            return await _expired(broker, messages, 2 * delay_ms)
        await asyncio.sleep((end_ms - now_ms()) / 1000)
        until = time.monotonic() + _PATIENCE_S
        while await _count_by(channel, goes) < messages:
            assert time.monotonic() < until, "not all expired"
            await asyncio.sleep(0.02)
    return messages / (now_ms() - end_ms) * 1000


# --- lateness -------------------------------------------------------------------------------------


def _lateness(broker: RabbitMQ, rate: int, seconds: int) -> list[float]:
    """Send at a rate, with delays that differ; return how late a consumer had each, in order."""
    came, goes = asyncio.run(_filled(broker, 1)), asyncio.run(_queue(broker))
    with _relay(broker, came, goes) as counted:
        wait_for(lambda: counted("sent") == 1)
        # What expires in the broker's own queue is dropped there, so the plugin's header it is.
        return asyncio.run(_late(broker, came, goes, rate, seconds, _plugin))


async def _late_of_ttl(broker: RabbitMQ, rate: int, seconds: int) -> list[float]:
    goes = await _queue(broker)
    waits = await _queue(
        broker, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": goes}
    )
    return await _late(broker, waits, goes, rate, seconds, _expiration)


def _plugin(delay_ms: int) -> dict[str, Any]:
    return {"headers": {"x-delay": delay_ms}}


def _expiration(delay_ms: int) -> dict[str, Any]:
    return {"expiration": str(delay_ms)}


async def _late(
    broker: RabbitMQ,
    came: str,
    goes: str,
    rate: int,
    seconds: int,
    said: Callable[[int], dict[str, Any]],
) -> list[float]:
    late: list[float] = []
    chance = random.Random(1)

    async def came_out(message: Any) -> None:
        # The first is what a relay began with.
        if message.body != _BODY:
            late.append(now_ms() - float(message.body))

    async with _channel(broker) as reader, _channel(broker) as writer:
        await reader.basic_consume(goes, came_out, no_ack=True)
        start, sent, total = now_ms(), 0, rate * seconds
        while sent < total:
            due = min(int((now_ms() - start) * rate / 1000), total)
            batch = []
            for _ in range(due - sent):
                delay_ms = chance.choice(_DELAYS_MS)
                body = f"{now_ms() + delay_ms:.1f}".encode().ljust(len(_BODY))
                batch.append((body, said(delay_ms)))
            if batch:
                await _publish(writer, came, batch)
            sent += len(batch)
            await asyncio.sleep(0.005)
        until = time.monotonic() + max(_DELAYS_MS) / 1000 + 30
        while len(late) < total and time.monotonic() < until:
            await asyncio.sleep(0.05)
    return sorted(late)


# --- the broker -----------------------------------------------------------------------------------


def _relay(broker: RabbitMQ, came: str, goes: str) -> AbstractContextManager[Counted]:
    return relaying(f"{broker.hosts}/?queue={came}", f"{broker.hosts}/?queue={goes}")


async def _filled(broker: RabbitMQ, messages: int) -> str:
    """Return a queue of messages that are due."""
    queue, due = await _queue(broker), {"headers": {"dwell-due-ms": int(now_ms())}}
    async with _channel(broker) as channel:
        for first in range(0, messages, _BATCH):
            await _publish(channel, queue, [(_BODY, due)] * min(_BATCH, messages - first))
    return queue


async def _publish(
    channel: Any, queue: str, messages: Sequence[tuple[bytes, dict[str, Any]]]
) -> None:
    """Publish messages that survive a restart, and wait for all confirms."""
    confirms = [
        channel.basic_publish(
            body,
            routing_key=queue,
            properties=spec.Basic.Properties(delivery_mode=2, **more),
            mandatory=True,
            wait=False,
        )
        for body, more in messages
    ]
    await asyncio.gather(*confirms)


async def _queue(broker: RabbitMQ, **arguments: Any) -> str:
    name = f"q{uuid.uuid4().hex[:12]}"
    async with _channel(broker) as channel:
        await channel.queue_declare(name, durable=True, arguments=arguments)
    return name


async def _count(broker: RabbitMQ, queue: str) -> int:
    async with _channel(broker) as channel:
        return await _count_by(channel, queue)


async def _count_by(channel: Any, queue: str) -> int:
    return int((await channel.queue_declare(queue, passive=True)).message_count)


@contextlib.asynccontextmanager
async def _channel(broker: RabbitMQ) -> AsyncIterator[Any]:
    connection = await aio_pika.connect(broker.hosts)
    async with connection:
        yield await (await connection.channel()).get_underlay_channel()
