"""The queues and bindings of all processes, as messages of the store.

Each is a message that is due when the queue expires, and else in the far future. To keep a queue is
to reschedule its messages; the first process that takes a due message deletes the queue.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from dwell.batch.batch import Batch
from dwell.celery.names import QUEUES, exchange_topic, is_exchange_topic, topic_of
from dwell.errors import AccessDenied, IdExists, InvalidTopic, StoreError
from dwell.given import values
from dwell.message import MAX_PRIORITY, Message, Result, State
from dwell.queue import Queue
from dwell.tasks import finished, whole

#: The due of what does not expire: the year 2100, in epoch milliseconds.
_FAR_MS = 4_102_444_800_000

#: The header of a queue that says which life it was declared with.
_LIFE = "life"

#: How long a queue that is being deleted is waited for, seconds, and how often it is tried.
_PAUSE_S, _TRIES = 0.05, 200
#: How long a row is held while its queue is deleted, seconds.
_LEASE_S = 60.0
_PAGE = 1_000


class Binding(msgspec.Struct, frozen=True):
    """A queue that is bound to an exchange; ``ttl_ms`` is how long messages in it live."""

    routing_key: str
    pattern: str | None
    queue: str
    ttl_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A message of the directory."""

    topic: str
    id: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Directory:
    """Declares, binds and deletes queues in a store, and finds existing queues."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def declare(self, row: Row, lives_ms: int | None) -> bool:
        """Declare a queue that expires in ``lives_ms``, or never.

        Returns False for a queue that exists and was declared with another life.
        """
        for _ in range(_TRIES):
            with contextlib.suppress(IdExists):
                await self._put(row, lives_ms, "error")
                return True
            found = await self._queue.get(row.topic, row.id)
            if found is None or found.state is State.LEASED:
                # Another process deletes the queue now, and ends soon.
                await asyncio.sleep(_PAUSE_S)
                continue
            if found.state is State.DELAYED and not _is_declared_so(found, row, lives_ms):
                return False
            if found.state is not State.DELAYED or lives_ms is not None:
                await self.put(row, lives_ms)
            return True
        raise _being_deleted(row)

    async def bind(self, exchange: str, binding: Binding, lives_ms: int | None) -> None:
        """Bind a queue to an exchange for as long."""
        await self.put(binding_row(exchange_topic(exchange), binding), lives_ms)

    async def put(self, row: Row, lives_ms: int | None) -> None:
        """Put a message of the directory in place of the existing one; raises StoreError."""
        for _ in range(_TRIES):
            if await self._put(row, lives_ms, "replace") is not Result.LEASED:
                return
            await asyncio.sleep(_PAUSE_S)
        raise _being_deleted(row)

    async def _put(self, row: Row, lives_ms: int | None, on_conflict: str) -> Result:
        due_ms = _FAR_MS if lives_ms is None else int(self._queue.clock.now_ms() + lives_ms)
        put = await self._queue.put(
            row.topic,
            row.body,
            id=row.id,
            due=due_ms,
            headers=row.headers,
            on_conflict=on_conflict,
        )
        return put.result

    async def refresh(self, rows: Sequence[Row], lives_ms: int) -> None:
        """Extend the life of rows to ``lives_ms`` from now; put expired rows again."""
        for topic in dict.fromkeys(row.topic for row in rows):
            own = [row for row in rows if row.topic == topic]
            results = await self._queue.reschedule(
                topic, [row.id for row in own], delay=lives_ms / 1000
            )
            for row, result in zip(own, results, strict=True):
                if result is not Result.MOVED:
                    await self.put(row, lives_ms)

    async def gone(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that are not there, or have expired."""
        found: list[Row] = []
        for topic in dict.fromkeys(row.topic for row in rows):
            own = [row for row in rows if row.topic == topic]
            there = await self._queue.get(topic, [row.id for row in own])
            pairs = zip(own, there, strict=True)
            found += [row for row, one in pairs if one is None or one.state is not State.DELAYED]
        return found

    async def restore(self, rows: Sequence[Row], lives_ms: int | None) -> int:
        """Put rows again that are gone, to live for ``lives_ms``; return how many."""
        gone = await self.gone(rows)
        for row in gone:
            await self.put(row, lives_ms)
        return len(gone)

    async def unbind(self, exchange: str, binding: Binding) -> None:
        """Remove a binding."""
        row = binding_row(exchange_topic(exchange), binding)
        await self._queue.cancel(row.topic, row.id)

    async def exists(self, queue: str) -> bool:
        """Tell whether a queue was declared and has not expired."""
        found = await self._queue.get(QUEUES, topic_of(queue))
        return found is not None and found.state is State.DELAYED

    async def names(self) -> list[str]:
        """Return the names of the queues that do not expire."""
        pages = self._rows(QUEUES)
        return [body.decode(errors="replace") async for due_ms, body in pages if due_ms == _FAR_MS]

    async def bindings(self, exchange: str) -> list[Binding]:
        """Return the queues that are bound to an exchange now."""
        return [binding async for binding in self._bindings(exchange_topic(exchange))]

    async def _bindings(self, topic: str) -> AsyncIterator[Binding]:
        """Yield the bindings of an exchange, without rows that somebody else has put."""
        async for _, body in self._rows(topic):
            with contextlib.suppress(msgspec.MsgspecError):
                yield msgspec.json.decode(body, type=Binding)

    async def _rows(self, topic: str) -> AsyncIterator[tuple[int, bytes]]:
        async for batch in self._queue.pages(topic, State.DELAYED, limit=_PAGE):
            for pair in zip(batch.due_ms.tolist(), batch.bodies, strict=True):
                yield pair

    async def delete(self, queue: str, bindings: Sequence[Row] | None) -> None:
        """Delete a queue and its messages.

        ``bindings`` are the rows of all its bindings; None looks at all exchanges.
        """
        # While its row is held, as in a sweep, others who declare the queue wait.
        held = await self._hold(queue_row(queue))
        rows = await self._bindings_of(queue) if bindings is None else bindings
        for row in rows:
            await self._queue.cancel(row.topic, row.id)
        await self._queue.clear(topic_of(queue))
        await self._queue.ack(held)

    async def _hold(self, row: Row) -> Batch:
        """Take the row of a queue, which is put if there is none."""
        for _ in range(_TRIES):
            result = await self._queue.reschedule(row.topic, row.id, delay=0)
            if result is Result.UNKNOWN:
                with contextlib.suppress(IdExists):
                    await self._put(row, 0, "error")
            held = await self._queue.take_ids(row.topic, [row.id], lease=_LEASE_S)
            if len(held):
                return held
            # Another process deletes the queue now, and ends soon.
            await asyncio.sleep(_PAUSE_S)
        raise _being_deleted(row)

    async def _bindings_of(self, queue: str) -> list[Row]:
        topics = filter(is_exchange_topic, (await self._queue.stats()).topics)
        return [
            binding_row(topic, binding)
            for topic in topics
            async for binding in self._bindings(topic)
            if binding.queue == queue
        ]

    async def sweep(self, exchanges: Iterable[str]) -> int:
        """Delete the queues that have expired, and their bindings to some exchanges."""
        topics = [QUEUES, *map(exchange_topic, exchanges)]
        batch = await self._queue.take(topics, _PAGE, lease=_LEASE_S)
        # While rows are leased nobody may declare their queues, so a process that ends leaves none.
        return await finished(whole(self._delete(batch)))

    async def _delete(self, batch: Batch) -> int:
        """Delete the queues of leased rows, except the queues of others; return how many."""
        others, own = [], []
        for message in batch:
            is_queue = message.topic == QUEUES
            if is_queue and await self._queue.touch(message, _LEASE_S) is not Result.TOUCHED:
                # This process was stopped for long, and another may have declared the queue.
                continue
            if is_queue and not await self._clear(message.body):
                others.append(message)
            else:
                own.append(message)
        if others:
            # Behind all rows that this process may delete, and due as before.
            await self._queue.release(others, counted=False, priority=MAX_PRIORITY)
        if own:
            await self._queue.ack(own)
        return len(own)

    async def _clear(self, name: bytes) -> bool:
        """Clear the topic of a queue; return False without the right to."""
        try:
            await self._queue.clear(topic_of(name.decode()))
        except AccessDenied:
            return False
        except (InvalidTopic, UnicodeDecodeError):
            # An older version let in names that are too long for a topic, and anybody may put rows.
            pass
        return True


def _is_declared_so(found: Message, row: Row, lives_ms: int | None) -> bool:
    if found.due_ms == _FAR_MS or lives_ms is None:
        return found.due_ms == _FAR_MS and lives_ms is None
    # An older version did not note how long it lives.
    return found.headers.get(_LIFE) in (row.headers.get(_LIFE), None)


def _being_deleted(row: Row) -> StoreError:
    return StoreError(f"queue: {row.id!r:.80} is being deleted, and was not in 10 s")


def queue_row(queue: str, life: str = "") -> Row:
    """Return the row of a queue with the life that it is declared with, empty for no end.

    Raises InvalidTopic for a name that is too long.
    """
    headers = {_LIFE: life} if life else {}
    return Row(QUEUES, values.topic(topic_of(queue)), queue.encode(), headers)


def binding_row(topic: str, binding: Binding) -> Row:
    """Return the row of a binding to the exchange that has a topic."""
    what = msgspec.json.encode((binding.queue, binding.routing_key))
    id_ = hashlib.blake2b(what, digest_size=16).hexdigest()
    return Row(topic, id_, msgspec.json.encode(binding))
