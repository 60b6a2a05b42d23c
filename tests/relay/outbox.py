"""An outbox in a real database, and a relay of it in the test's own process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import dwell
from dwell.message import Message, State
from dwell.outbox import Outbox
from dwell.relay.process import relay_of
from dwell.relay.relay import Relay
from dwell.relay.settings import RelaySettings
from tests.waiting import until, until_async


@dataclass
class Box:
    """An outbox, its database, and the address of both for a relay."""

    engine: sa.Engine
    outbox: Outbox
    address: str

    @classmethod
    @contextlib.contextmanager
    def of(cls, url: str, name: str = "dwell_outbox", **options: Any) -> Iterator["Box"]:
        engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        outbox = Outbox(name, **options)
        outbox.create(engine)
        try:
            yield cls(engine, outbox, f"outbox+{url}?table={name}")
        finally:
            engine.dispose()

    def put(self, topic: str, body: object, **options: Any) -> str:
        """Put one message in a transaction of its own."""
        with self.engine.begin() as link:
            return self.outbox.put(link, topic, body, **options)

    def put_many(self, topic: str, bodies: list[object], **options: Any) -> list[str]:
        with self.engine.begin() as link:
            return self.outbox.put_many(link, topic, bodies, **options)

    def do(self, text: str, **given: Any) -> None:
        """Run SQL; ``{table}`` is the outbox."""
        with self.engine.begin() as link:
            link.execute(sa.text(text.replace("{table}", self.outbox.table.name)), given)

    def count(self) -> int:
        with self.engine.connect() as link:
            found = link.scalar(sa.select(sa.func.count()).select_from(self.outbox.table))
            assert found is not None
            return found

    def until_empty(self) -> None:
        until(lambda: self.count() == 0, "the relay did not move all")


@contextlib.asynccontextmanager
async def moving(queue: dwell.Queue, address: str, **more: Any) -> AsyncIterator[Relay]:
    """Run a relay in this process until the block ends."""
    relay = relay_of(queue, RelaySettings(source=address, **{"sink": None} | more))
    stopping = asyncio.Event()
    running = asyncio.get_running_loop().create_task(relay.run(stopping))
    try:
        yield relay
    finally:
        stopping.set()
        await running


async def moved(box: Box, queue: dwell.Queue) -> None:
    """Run a relay until the outbox is empty."""
    async with moving(queue, box.address):
        await until_async(lambda: asyncio.to_thread(lambda: box.count() == 0))


async def held(queue: dwell.Queue, topic: str) -> list[Message]:
    """Return all that waits in a topic: what is due first, and what came first of that."""
    found: list[Message] = []
    for state in (State.READY, State.DELAYED, State.DEAD):
        cursor = None
        while True:
            page = await queue.scan(topic, state, cursor=cursor)
            found += page.messages
            cursor = page.cursor
            if cursor is None:
                break
    return found


def held_at(store: str | Path, topic: str) -> list[Message]:
    """Return the same of a store that nobody has open, or that many share."""

    async def look() -> list[Message]:
        async with dwell.open(store) as queue:
            return await held(queue, topic)

    return asyncio.run(look())
