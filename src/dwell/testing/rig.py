"""The base of the suite's tests: a store, a clock moved by hand, and short helpers."""

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import numpy as np
from msgspec import structs

from dwell.batch.batch import Batch
from dwell.batch.events import Event
from dwell.clock import SimulatedClock
from dwell.errors import StoreDamaged
from dwell.message import (
    DEFAULT_PRIORITY,
    U8,
    U64,
    Message,
    Result,
    State,
    TopicSettings,
    encode_extra,
)
from dwell.store.base import Delays, Errors, Store
from dwell.testing.model import Entry
from dwell.testing.views import events_from, puts_of


class Suite:
    """The part of a suite that makes the store; tests are methods marked as :func:`scenario`."""

    async def make_store(self, clock: SimulatedClock) -> Store:
        """Return a new, empty store that is not open yet."""
        raise NotImplementedError

    def play(self, test: Callable[["Rig"], Awaitable[None]]) -> None:
        """Run one test on a store of its own."""
        asyncio.run(self._play(test))

    async def _play(self, test: Callable[["Rig"], Awaitable[None]]) -> None:
        clock = SimulatedClock()
        rig = Rig(await self.make_store(clock), clock)
        await rig.store.open()
        try:
            await test(rig)
        finally:
            await rig.store.close()


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Turn an ``async`` test of a :class:`Suite`, which gets a ``rig``, into a pytest test."""

    @functools.wraps(test)
    def run(self: Suite, **arguments: Any) -> None:
        self.play(lambda rig: test(self, rig, **arguments))

    signature = inspect.signature(test)
    seen = [value for name, value in signature.parameters.items() if name != "rig"]
    # Pytest passes the fixtures in a test's signature, and must not look for a fixture "rig".
    run.__signature__ = signature.replace(parameters=seen)  # type: ignore[attr-defined]
    return run


class Rig:
    """A store with its clock; times count from now, answers are words, the topic is ``t``."""

    def __init__(self, store: Store, clock: SimulatedClock) -> None:
        self.store = store
        self.clock = clock
        self.woken: Counter[str] = Counter()
        self.plans = 0
        store.wake = self._on_wake
        store.plan = self._on_plan

    def _on_wake(self, topic: str, count: int) -> None:
        self.woken[topic] += count

    def _on_plan(self) -> None:
        self.plans += 1

    def hush(self) -> None:
        """Drop the calls of the store until now."""
        self.woken, self.plans = Counter(), 0

    @property
    def now_ms(self) -> int:
        """The present time."""
        return self.clock.now_ms()

    def advance(self, delta_ms: int) -> None:
        """Move the clock; the store is not told."""
        self.clock.advance(delta_ms)

    async def tick(self) -> int | None:
        """Tell the store the time; return the time left until its next deadline."""
        deadline_ms = await self.store.tick(self.now_ms)
        return None if deadline_ms is None else deadline_ms - self.now_ms

    async def configure(self, topic: str = "t", **values: Any) -> None:
        """Set the settings of a topic; those not given get their defaults."""
        await self.store.configure(topic, structs.asdict(TopicSettings(**values)))

    # --- verbs --------------------------------------------------------------------------------

    def entry(self, id_: str, **values: Any) -> Entry:
        """Return a message to be put, which is due in ``delay_ms``."""
        expires_in_ms = values.get("expires_in_ms")
        return Entry(
            id=id_,
            body=values.get("body", id_.encode()),
            due_ms=self.now_ms + values.get("delay_ms", 0),
            priority=values.get("priority", DEFAULT_PRIORITY),
            lease_ms=values.get("lease_ms", 0),
            max_attempts=values.get("max_attempts", 0),
            expires_ms=0 if expires_in_ms is None else self.now_ms + expires_in_ms,
            extra=encode_extra(values.get("key"), values.get("headers")),
        )

    async def put_entries(
        self, entries: list[Entry], topic: str = "t", on_conflict: str = "keep"
    ) -> list[str]:
        """Put messages in one batch."""
        answer = await self.store.put(puts_of(topic, entries), on_conflict)
        assert list(answer.ids) == [entry.id for entry in entries]
        return words(answer.results)

    async def put(
        self, *ids: str, topic: str = "t", on_conflict: str = "keep", **values: Any
    ) -> list[str]:
        """Put equal messages in one batch; each one's body is its id."""
        entries = [self.entry(id_, **values) for id_ in ids]
        return await self.put_entries(entries, topic, on_conflict)

    async def put_made(self, count: int, **values: Any) -> list[str]:
        """Put messages whose ids the store makes; return the ids."""
        entries = [self.entry("", **values)] * count
        answer = await self.store.put(puts_of("t", entries, own_ids=False), "keep")
        assert words(answer.results) == ["created"] * count
        return list(answer.ids)

    async def take(
        self,
        limit: int = 1000,
        *,
        topics: Iterable[str] = "t",
        lease_ms: int = 0,
        owner: str = "me",
    ) -> Batch:
        """Take messages."""
        return await self.store.take(list(topics), limit, lease_ms, owner)

    async def take_ids(self, limit: int = 1000, topics: Iterable[str] = "t") -> list[str]:
        """Take messages; return their ids."""
        return list((await self.take(limit, topics=topics)).ids)

    async def take_by_ids(self, *ids: str, lease_ms: int = 0, owner: str = "me") -> Batch:
        """Take messages by id."""
        return await self.store.take_ids("t", encoded(ids), lease_ms, owner)

    async def peek_ids(self, limit: int = 1000) -> list[str]:
        """Return the ids that a take would give first."""
        return list((await self.store.peek("t", limit)).ids)

    async def ack(self, receipts: U64) -> list[str]:
        """Ack messages."""
        return words(await self.store.ack(receipts))

    async def release(
        self,
        receipts: U64,
        delay_ms: Delays = 0,
        error: Errors = None,
        *,
        counted: bool = True,
    ) -> list[str]:
        """Give messages back."""
        return words(await self.store.release(receipts, delay_ms, error, counted=counted))

    async def touch(self, receipts: U64, lease_ms: int = 0) -> list[str]:
        """Extend leases."""
        return words(await self.store.touch(receipts, lease_ms))

    async def bury(self, receipts: U64, reason: str | None = None) -> list[str]:
        """Set messages aside."""
        return words(await self.store.bury(receipts, reason))

    async def kick(self, *ids: str, topic: str = "t", delay_ms: int = 0) -> list[str]:
        """Bring messages back."""
        due_ms = np.full(len(ids), self.now_ms + delay_ms, np.int64)
        return words(await self.store.kick(topic, encoded(ids), due_ms))

    async def cancel(self, *ids: str, topic: str = "t") -> list[str]:
        """Cancel messages."""
        return words(await self.store.cancel(topic, encoded(ids)))

    async def reschedule(self, *ids: str, topic: str = "t", delay_ms: int = 0) -> list[str]:
        """Set the dues of messages, relative to now."""
        due_ms = np.full(len(ids), self.now_ms + delay_ms, np.int64)
        return words(await self.store.reschedule(topic, encoded(ids), due_ms))

    # --- reading ------------------------------------------------------------------------------

    async def find(self, id_: str, topic: str = "t") -> Message | None:
        """Return a message, or None."""
        return (await self.found([id_.encode()], topic))[0]

    async def found(self, ids: list[bytes], topic: str = "t") -> list[Message | None]:
        """Return messages, each or None; raises StoreDamaged."""
        return [told(one) for one in await self.store.get(topic, ids)]

    async def get(self, id_: str, topic: str = "t") -> Message:
        """Return an existing message."""
        message = await self.find(id_, topic)
        assert message is not None, f"{id_!r} is gone"
        return message

    async def state(self, id_: str, topic: str = "t") -> State:
        """Return the state of a message."""
        message = await self.find(id_, topic)
        return State.GONE if message is None else message.state

    async def events(self, position: int = 0) -> list[Event]:
        """Return the events from a position on."""
        return await events_from(self.store, position)

    async def happened(self, start: int = 0) -> list[str]:
        """Return the events, as ``kind id``."""
        return [f"{event.kind} {event.id}" for event in await self.events(start)]


def words(results: U8) -> list[str]:
    """Return the words of a verb's answer."""
    return [str(Result(int(code))) for code in results]


def encoded(ids: Iterable[str]) -> list[bytes]:
    """Return ids in the form that a store takes."""
    return [id_.encode() for id_ in ids]


def receipts_of(batch: Batch) -> U64:
    """Return the receipts of taken messages."""
    assert batch.receipts is not None, "a take without receipts"
    return batch.receipts


def told(found: Message | StoreDamaged | None) -> Message | None:
    """Return the result of a get; raises the error that may stand in its place."""
    if isinstance(found, StoreDamaged):
        raise found
    return found
