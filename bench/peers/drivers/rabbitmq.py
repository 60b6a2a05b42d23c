"""RabbitMQ without a plugin: a queue whose messages expire into the one that takers read.

Only the head of a queue expires: what falls due behind a message with a longer delay is late.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import ClassVar

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from bench.peers.drivers.program import Client, Log, body_of, main, now_ms, number_of

_DUE, _WAITING = "due", "waiting"


class RabbitMq(Client):
    """A connection for all callers, with confirms; a channel for each taker."""

    can: ClassVar = {"put": 1000}

    async def open(self, address: str) -> dict[str, str]:
        self._connection = await aio_pika.connect_robust(address)
        channel = await self._connection.channel()
        self._exchange = channel.default_exchange
        to_due = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": _DUE}
        await channel.declare_queue(_DUE, durable=True)
        await channel.declare_queue(_WAITING, durable=True, arguments=to_due)
        server = self._connection.transport.connection.server_properties  # type: ignore[union-attr]
        return {"rabbitmq": str(server["version"]), "aio-pika": aio_pika.__version__}

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        pairs = zip(numbers, due_ms or [0] * len(numbers), strict=True)
        await asyncio.gather(*[self._put(number, due) for number, due in pairs])

    async def _put(self, number: int, due_ms: int) -> None:
        left_ms = math.ceil(due_ms - now_ms())
        message = aio_pika.Message(
            body_of(number),
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            expiration=left_ms / 1000 if left_ms > 0 else None,
        )
        await self._exchange.publish(message, _WAITING if left_ms > 0 else _DUE)

    async def taker(self, limit: int, taken: Log) -> None:
        async def handle(message: AbstractIncomingMessage) -> None:
            taken([number_of(message.body)])
            await message.ack()

        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=limit)
        queue = await channel.declare_queue(_DUE, durable=True)
        await queue.consume(handle)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main(RabbitMq())
