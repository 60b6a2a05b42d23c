"""What tests say to a RabbitMQ and read from it, from plain functions."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import aio_pika
import aiormq
from aiormq import spec

from tests.waiting import PATIENCE_S, until

T = TypeVar("T")

#: How many messages are read by one connection, so that a slow machine has time for them.
_MOST = 500


class Queues:
    """Queues of one test: what it writes to ``came``, reads from ``goes``, and the dead letters."""

    def __init__(self, hosts: str, name: str, arguments: dict[str, Any] | None = None) -> None:
        self.hosts, self.name = hosts, name
        self.came, self.goes, self.dead = f"{name}-in", f"{name}-out", f"{name}-dead"
        for queue in (self.came, self.goes, self.dead):
            self.declare(queue, **(arguments or {}))

    @property
    def source(self) -> str:
        return f"{self.hosts}/?queue={self.came}"

    @property
    def sink(self) -> str:
        return f"{self.hosts}/?queue={self.goes}"

    def declare(self, queue: str, **arguments: Any) -> None:
        async def declare(channel: Any) -> None:
            await channel.queue_declare(queue, durable=True, arguments=arguments)

        self.by_channel(declare)

    def exchange(self, name: str, kind: str, queue: str, key: str) -> None:
        """Declare an exchange, and bind a queue to it."""

        async def declare(channel: Any) -> None:
            await channel.exchange_declare(name, exchange_type=kind, durable=True)
            await channel.queue_bind(queue, name, key)

        self.by_channel(declare)

    def say(
        self,
        body: bytes,
        headers: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        exchange: str = "",
        **more: Any,
    ) -> None:
        """Send a message, and return when the broker has it."""
        self.say_all([(body, headers)], queue=queue, exchange=exchange, **more)

    def say_all(
        self,
        messages: list[tuple[bytes, dict[str, Any] | None]],
        *,
        queue: str | None = None,
        exchange: str = "",
        **more: Any,
    ) -> None:
        async def publish(channel: Any) -> None:
            found = [
                channel.basic_publish(
                    body,
                    exchange=exchange,
                    routing_key=self.came if queue is None else queue,
                    properties=spec.Basic.Properties(
                        **{"headers": headers, "delivery_mode": 2} | more
                    ),
                    mandatory=True,
                    wait=False,
                )
                for body, headers in messages
            ]
            await asyncio.gather(*found)

        self.by_channel(publish)

    def read(self, queue: str, at_least: int, found: list[Any] | None = None) -> list[Any]:
        """Take so many messages from a queue, and what else is there.

        Where the broker may fail meanwhile, give ``found``: what was read is there then, and is
        acked, so that it may be read again but is never lost.
        """
        acks, found = found is not None, [] if found is None else found

        async def get(channel: Any) -> None:
            one = None
            for _ in range(_MOST):
                got = await channel.basic_get(queue, no_ack=not acks)
                if not got.delivery.name.endswith("Ok"):
                    break
                one = got
                found.append(one)
            if acks and one is not None:
                await channel.basic_ack(one.delivery.delivery_tag, multiple=True)

        def are_there() -> bool:
            self.by_channel(get)
            return len(found) >= at_least

        until(are_there, f"{queue} did not get {at_least}")
        return found

    @contextlib.contextmanager
    def consuming(self, queue: str) -> Iterator[list[Any]]:
        """Consume and ack into the list that is given, over failures of the broker too.

        A quorum queue whose leader is killed during a basic.get may answer later ones with nothing
        while it has messages (RabbitMQ 3.10), so a broker that is killed is read by a consumer. A
        message may be read again, but is never lost.
        """
        found, is_over = list[Any](), threading.Event()

        async def consume(channel: Any) -> None:
            async def add(message: Any) -> None:
                found.append(message)
                await channel.basic_ack(message.delivery.delivery_tag)

            await channel.basic_consume(queue, add)
            while not is_over.is_set() and not channel.is_closed:
                await asyncio.sleep(0.02)

        def run() -> None:
            while not is_over.is_set():
                with contextlib.suppress(OSError, TimeoutError, aiormq.AMQPError):
                    self.by_channel(consume)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield found
        finally:
            is_over.set()
            thread.join()

    def ready(self, queue: str) -> int:
        """Return how many messages wait in a queue for somebody to read them."""

        async def count(channel: Any) -> int:
            told = await channel.queue_declare(queue, passive=True)
            return int(told.message_count)

        return self.by_channel(count)

    def by_channel(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Do some work by a channel of its own."""
        return asyncio.run(_by_channel(self.hosts, work))


async def _by_channel(hosts: str, work: Callable[[Any], Awaitable[T]]) -> T:
    async with asyncio.timeout(PATIENCE_S):
        connection = await aio_pika.connect(hosts)
        async with connection:
            channel = await connection.channel()
            return await work(await channel.get_underlay_channel())


def headers_of(message: Any) -> dict[str, Any]:
    return message.header.properties.headers or {}
