"""The intake of a channel: takes messages ahead, keeps their leases, and acks them.

Its methods are called by the thread of the channel; its tasks run in the loop of the link, and all
their calls of the store are for many messages at once.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dwell.batch.batch import Batch
from dwell.batch.results import Results
from dwell.celery.envelope import kept_publish_of
from dwell.celery.link import Link
from dwell.errors import AccessDenied, DiskFull, InvalidInput, StoreClosed, StoreFailed, StoreFull
from dwell.message import MAX_BATCH_MESSAGES, Message, Result
from dwell.queue.foreign import each_of_its_own
from dwell.slices import slices

_log = logging.getLogger(__name__)

_WAIT = "1h"
_BACKOFF_S = 1.0
#: How many messages to take at once, and to have ready, for consumers without a prefetch count.
_AHEAD = 1_000
#: Messages beyond the prefetch count wait here only as far as they were handled in so short a time
#: lately, seconds; they are given back when none was delivered for as long as the second.
_SPAN_S, _STUCK_S = 0.05, 1.0
#: Leases are extended at this part of them.
_OFTEN = 3
#: How long the last acks may take when a channel is closed, seconds.
_LAST_S = 5.0
#: Errors after which no take will be answered.
_FINAL = (StoreClosed, StoreFailed, AccessDenied, InvalidInput)


@dataclass(frozen=True, slots=True)
class Consumed:
    """A topic that is consumed; with ``no_ack`` its messages are acked as they are taken."""

    queue: str
    no_ack: bool


class Intake:
    """Takes for one channel, and delivers at most as many messages as it may hold unacked.

    ``ready`` is called, in another thread, when there is something to deliver or an error to raise.
    ``lease_s`` is how long a message stays held after this process has ended.
    """

    def __init__(self, link: Link, lease_s: float, owner: str, ready: Callable[[], None]) -> None:
        self._link = link
        self._queue = link.queue
        self._lease_s = lease_s
        self._owner = owner
        self._ready = ready
        self._topics: dict[str, Consumed] = {}
        #: How many messages may be held unacked, 0 for no limit.
        self.prefetch = 0
        self._buffer: deque[tuple[Consumed, Message]] = deque()
        #: The receipts of the messages that are held.
        self._held: dict[str, None] = {}
        #: The receipts to ack, each with what its ack keeps.
        self._acked: deque[tuple[str, str]] = deque()
        self._trouble: BaseException | None = None
        self._changed = asyncio.Event()
        #: The receipts of those of them that were delivered, in this order, each with what its ack
        #: keeps.
        self._out: dict[str, str] = {}
        #: How many messages were settled, and how many at an earlier time in seconds; how many to
        #: take beyond the prefetch count; how many were delivered.
        self._settled, self._since = 0, (0, 0.0)
        self._ahead = self._delivered = 0
        self._is_short = self._is_full = self._will_flush = self._is_closed = False
        self._turn = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._flushing: asyncio.Task[None] | None = None

    # --- called by the channel's thread -------------------------------------------------------

    def consume(self, topic: str, consumed: Consumed) -> None:
        """Begin to take the messages of a topic."""
        self._topics = self._topics | {topic: consumed}
        self._link.run(self._start)

    def cancel(self, topic: str) -> None:
        """Stop taking messages of a topic, and give back messages that were not delivered."""
        self._topics = {name: known for name, known in self._topics.items() if name != topic}
        self._link.run(self._drop, topic)

    def limit(self, prefetch: int) -> None:
        """Change how many messages may be held."""
        self.prefetch = prefetch
        self._ring()

    def next(self) -> tuple[Consumed, Message] | None:
        """Return a message to deliver, or None; raises the error that has ended the takes."""
        # Said first, so that an ack in another thread either sees it or is counted.
        self._is_full = True
        self._is_full = bool(self.prefetch) and self.held >= self.prefetch
        while True:
            try:
                found = self._buffer.popleft()
            except IndexError:
                if self._trouble is not None:
                    raise self._trouble from None
                return None
            if found[0].no_ack:
                break
            if self._is_full:
                self._buffer.appendleft(found)
                return None
            tag = str(found[1].receipt)
            # Said first, so that a loss in another thread either sees it or is seen.
            self._out[tag] = kept_publish_of(found[1])
            if tag in self._held:
                break
            # Its lease has ended, and another consumer may have it.
            self._out.pop(tag, None)
        self._delivered += 1
        if not self._buffer:
            self._fill()
        return found

    @property
    def has_more(self) -> bool:
        """Whether there is something to deliver or an error to raise."""
        return (bool(self._buffer) and not self._is_full) or self._trouble is not None

    @property
    def held(self) -> int:
        """How many messages were delivered and are not settled."""
        return len(self._out)

    def take_one(self, topic: str, *, no_ack: bool) -> Message | None:
        """Return a message of a topic that is ready now, or None."""
        return self._link.run(self._take_one, topic, no_ack)

    def ack(self, tag: str) -> None:
        """Report a message as done; the store hears of it soon."""
        kept = self._out.get(tag, "")
        if not self._let_go(tag):
            return
        self._acked.append((tag, kept))
        if not self._will_flush:
            self._will_flush = True
            self._soon(self._begin_flush)

    def ack_until(self, tag: str) -> None:
        """Report a message and all that were delivered before it as done.

        Does nothing for a message that is not held: what was delivered before it is not known.
        """
        delivered = list(self._out)
        if tag in delivered:
            for earlier in delivered[: delivered.index(tag) + 1]:
                self.ack(earlier)

    def requeue(self, tag: str) -> None:
        """Give a message back, to be taken again behind the waiting messages."""
        if self._let_go(tag):
            self._link.run(self._settle, self._queue.release, tag)

    def reject(self, tag: str, reason: str = "rejected") -> None:
        """Set a message aside as dead."""
        if self._let_go(tag):
            self._link.run(self._settle, self._queue.bury, tag, reason=reason)

    def restore(self) -> None:
        """Give back everything that is held."""
        self._link.run(self._give_back_all)

    def close(self) -> None:
        """Say the last acks, give back everything else, and end."""
        if not self._is_closed:
            self._is_closed = True
            if not self._link.is_elsewhere:
                self._link.run(self._stop)

    def _let_go(self, tag: str) -> bool:
        """Hold a message no longer; tell whether it was held."""
        try:
            del self._held[tag]
        except KeyError:
            return False
        self._out.pop(tag, None)
        self._settled += 1
        if self._is_worth_a_take(self._room()):
            self._fill()
        if self._is_full:
            self._is_full = False
            self._ready()
        return True

    def _fill(self) -> None:
        """Begin to take if there was no room before; a take that goes on is left alone."""
        if self._is_short:
            self._is_short = False
            self._ring()

    def _ring(self) -> None:
        self._soon(self._changed.set)

    def _soon(self, function: Callable[[], object]) -> None:
        if not self._link.is_elsewhere:
            self._link.loop.call_soon_threadsafe(function)

    # --- in the loop: taking ------------------------------------------------------------------

    async def _start(self) -> None:
        self._changed.set()
        if not self._tasks:
            works = (self._pump(), self._keep(), self._look())
            self._tasks = [asyncio.create_task(work) for work in works]

    def _room(self) -> int:
        if self.prefetch:
            return self.prefetch + self._ahead - len(self._held)
        return _AHEAD - len(self._buffer)

    def _is_worth_a_take(self, room: int) -> bool:
        """Tell whether to take so many: few only when there is nothing else to deliver."""
        return room > 0 and (not self._buffer or room * 2 >= self.prefetch + self._ahead)

    def _wish(self) -> tuple[tuple[str, ...], int]:
        """Return the topics to take from now, and how many messages."""
        self._measure()
        # Said first, so that an ack in another thread either sees it or is counted.
        self._is_short = True
        room = min(self._room(), _AHEAD)
        self._is_short = is_short = not self._is_worth_a_take(room)
        topics = [name for name, known in self._topics.items() if known.no_ack or not is_short]
        if not topics:
            return (), 0
        # The first of them would be preferred for ever.
        self._turn = (self._turn + 1) % len(topics)
        limit = _AHEAD if is_short else room
        return (*topics[self._turn :], *topics[: self._turn]), limit

    def _measure(self) -> None:
        """Choose how far to take ahead, by how many messages were settled lately."""
        settled, now_s = self._settled, asyncio.get_running_loop().time()
        before, since_s = self._since
        if now_s - since_s >= _SPAN_S:
            rate = (settled - before) / (now_s - since_s)
            self._ahead, self._since = min(int(rate * _SPAN_S), _AHEAD), (settled, now_s)

    async def _look(self) -> None:
        """Give messages beyond the prefetch count back when the work takes longer than before."""
        while True:
            before = self._delivered
            await asyncio.sleep(_STUCK_S)
            if self._delivered != before or not self.prefetch:
                continue
            self._ahead = 0
            left: list[str] = []
            self._since = (self._settled, asyncio.get_running_loop().time())
            while self._buffer and len(self._held) - len(left) > self.prefetch:
                item = self._buffer.pop()
                if item[0].no_ack:
                    self._buffer.append(item)
                    break
                left.append(str(item[1].receipt))
            if left:
                await self._give_back(left)

    async def _pump(self) -> None:
        while True:
            self._changed.clear()
            topics, limit = self._wish()
            if not topics:
                await self._changed.wait()
                continue
            try:
                batch = await self._taken(topics, limit)
                if batch is not None and len(batch):
                    await self._accept(batch)
            except _FINAL as error:
                self._trouble = error
                self._ready()
                return
            except Exception as error:
                _log.warning("%s: could not take: %s", ", ".join(topics), error)
                await asyncio.sleep(_BACKOFF_S)

    async def _taken(self, topics: Sequence[str], limit: int) -> Batch | None:
        """Return what was taken, or None if another take is wanted first."""
        taking = asyncio.ensure_future(
            self._queue.take(topics, limit, lease=self._lease_s, owner=self._owner, wait=_WAIT)
        )
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([taking, changed], return_when=asyncio.FIRST_COMPLETED)
            return await _ended(taking)
        except asyncio.CancelledError:
            if (batch := await _ended(taking)) is not None and len(batch):
                await self._queue.release(batch, counted=False)
            raise
        finally:
            changed.cancel()

    async def _accept(self, batch: Batch) -> None:
        known = self._topics
        parts: dict[bool | None, list[Message]] = {None: [], False: [], True: []}
        for message in batch:
            consumed = known.get(message.topic)
            parts[None if consumed is None else consumed.no_ack].append(message)
        # Held messages are delivered even if a call fails; the leases of the others end then.
        self._held.update((str(message.receipt), None) for message in parts[False])
        self._buffer.extend((known[message.topic], message) for message in parts[False])
        self._ready()
        if parts[None]:
            await self._queue.release(parts[None], counted=False)
        if parts[True]:
            await self._ack(map(_ack_of, parts[True]))
            self._buffer.extend((known[message.topic], message) for message in parts[True])
            self._ready()

    async def _take_one(self, topic: str, no_ack: bool) -> Message | None:
        await self._start()
        batch = await self._queue.take(topic, 1, lease=self._lease_s, owner=self._owner)
        if not len(batch):
            return None
        if no_ack:
            await self._ack(map(_ack_of, batch))
        else:
            tag, kept = _ack_of(batch[0])
            self._held[tag], self._out[tag] = None, kept
        return batch[0]

    # --- in the loop: leases, acks, the end -----------------------------------------------------

    async def _keep(self) -> None:
        """Extend the leases of all that is held, however long the work takes."""
        while True:
            await asyncio.sleep(self._lease_s / _OFTEN)
            for part in slices(list(self._held), MAX_BATCH_MESSAGES):
                try:
                    results = await each_of_its_own(self._queue.touch, part, lease=self._lease_s)
                except Exception as error:
                    _log.warning("could not extend %d leases: %s", len(part), error)
                    continue
                self._lose(
                    [
                        tag
                        for tag, result in zip(part, results, strict=True)
                        if result is Result.STALE and tag in self._held
                    ]
                )

    def _lose(self, tags: Sequence[str]) -> None:
        self._forget(tags)
        if tags:
            _log.warning(
                "the leases of %d messages have ended: they are delivered again", len(tags)
            )

    def _begin_flush(self) -> None:
        self._will_flush = False
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        """Send acks to the store, in the batches that they form."""
        while self._acked:
            size = min(len(self._acked), MAX_BATCH_MESSAGES)
            await self._say([self._acked.popleft() for _ in range(size)])

    async def _say(self, acks: Sequence[tuple[str, str]]) -> None:
        while True:
            try:
                results = await self._ack(acks)
            except (StoreClosed, StoreFailed, AccessDenied) as error:
                _log.error("could not ack %d messages: %s", len(acks), error)
                return
            except Exception as error:
                _log.warning("could not ack %d messages yet: %s", len(acks), error)
                await asyncio.sleep(_BACKOFF_S)
            else:
                if late := sum(result is Result.STALE for result in results):
                    _log.warning("%d acks came after the leases had ended", late)
                return

    async def _ack(self, acks: Iterable[tuple[str, str]]) -> list[Result]:
        """Ack messages, each with what its ack keeps, if there is room for that."""
        kept = dict(acks)

        async def ack(tags: Sequence[str]) -> Results:
            results = [kept[tag].encode() or None for tag in tags]
            if any(results):
                with contextlib.suppress(StoreFull, DiskFull):
                    return await self._queue.ack(tags, results=results)
            return await self._queue.ack(tags)

        return await each_of_its_own(ack, list(kept))

    async def _settle(self, verb: Callable[..., Awaitable[Any]], tag: str, **words: Any) -> None:
        """Give a message back or set it aside; another store may be in the place of its own."""
        (result,) = await each_of_its_own(verb, [tag], **words)
        if result is Result.STALE:
            _log.warning("a message was refused after its lease had ended")

    async def _drop(self, topic: str) -> None:
        self._changed.set()
        items = [self._buffer.popleft() for _ in range(len(self._buffer))]
        self._buffer.extend(item for item in items if item[1].topic != topic)
        left = [
            str(message.receipt)
            for consumed, message in items
            if message.topic == topic and not consumed.no_ack
        ]
        await self._give_back(left)

    async def _give_back(self, tags: Sequence[str]) -> None:
        """Give messages back to their old places, as if they had not been taken."""
        self._forget(tags)
        try:
            await each_of_its_own(self._queue.release, tags, counted=False)
        except Exception as error:
            _log.warning("%d messages come again when their leases end: %s", len(tags), error)

    def _forget(self, tags: Sequence[str]) -> None:
        for tag in tags:
            self._held.pop(tag, None)
            self._out.pop(tag, None)
        self._changed.set()
        if self._is_full:
            self._is_full = False
            self._ready()

    async def _give_back_all(self) -> None:
        self._buffer.clear()
        await self._give_back(list(self._held))

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._begin_flush()
        assert self._flushing is not None
        await asyncio.wait([self._flushing], timeout=_LAST_S)
        self._flushing.cancel()
        await self._give_back_all()


def _ack_of(message: Message) -> tuple[str, str]:
    return str(message.receipt), kept_publish_of(message)


async def _ended(taking: "asyncio.Future[Batch]") -> Batch | None:
    """End a take; return what it has taken, None if it has released that."""
    if not taking.done():
        taking.cancel()
        await asyncio.wait([taking])
    return None if taking.cancelled() else taking.result()
