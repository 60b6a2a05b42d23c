"""The way in: records of a source become messages that are held until they are due."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from dwell.batch.blobs import Sized
from dwell.batch.puts import Puts
from dwell.errors import DwellError, InvalidInput, StoreClosed
from dwell.message import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, Result
from dwell.queue import Queue
from dwell.relay.contract import BrokerUnreachable, Reader, Source
from dwell.relay.dead import DeadLetters
from dwell.relay.record import Record
from dwell.relay.rules import Cancelled, Held
from dwell.relay.tally import Tally

_log = logging.getLogger(__name__)

#: How long to wait before what could not be done is tried again, seconds.
_AGAIN_S = 0.5

#: How much is put at once, with as much again for headers.
_MOST_BYTES = MAX_BATCH_BYTES // 2

Step = list[Held] | list[Cancelled]
TopicOf = Callable[[Held | Cancelled], str]


class Intake:
    """Reads a source batch by batch; each is held, then committed, while the next is read.

    ``topic_of`` says which topic holds a record, ``topics`` which there are: a message that
    somebody cancels may be in any.
    """

    def __init__(
        self,
        source: Source,
        queue: Queue,
        rules: Reader,
        dead: DeadLetters,
        tally: Tally,
        *,
        topic_of: TopicOf,
        topics: Callable[[], Awaitable[Iterable[str]]],
        limit: int = 5_000,
    ) -> None:
        self._source = source
        self._queue = queue
        self._rules = rules
        self._dead = dead
        self._tally = tally
        self._topic_of = topic_of
        self._topics = topics
        self._limit = limit
        self._holding: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def run(self) -> None:
        """Read until stopped; raises StoreClosed."""
        while not self._is_stopping:
            try:
                records = await self._source.read(self._limit)
            except BrokerUnreachable as error:
                if self._tally.is_news("source", error):
                    _log.warning("%s; trying again", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            self._tally.trouble.pop("source", None)
            try:
                await self.idle()
            except DwellError:
                if not self._is_stopping:
                    raise
                # What is not held is not committed, and comes again.
                return
            if records and not self._is_stopping:
                self._tally.read += len(records)
                self._holding = asyncio.get_running_loop().create_task(self._hold(records))

    def stop(self) -> None:
        """Read nothing more."""
        self._is_stopping = True

    async def idle(self) -> None:
        """Return when all that was read is held; raises StoreClosed, or what it was to wait for."""
        if self._holding is not None:
            await asyncio.wait([self._holding])
            self._holding.result()

    async def _hold(self, records: Sequence[Record]) -> None:
        good = await self._sorted(records)
        for topic, step in self._steps(good):
            await self._patiently(topic, step)
        await self._source.done(records)
        self._tally.settled += len(records)

    async def _sorted(self, records: Sequence[Record]) -> list[Held | Cancelled]:
        """Return what becomes of the records; those that say no time or target are dead letters."""
        now_ms = self._queue.clock.now_ms()
        read, good, bad = self._rules.read, list[Held | Cancelled](), list[tuple[Record, str]]()
        for record in records:
            try:
                good.append(read(record, now_ms))
            except InvalidInput as error:
                bad.append((record, str(error)))
        if bad:
            self._tally.dead["source"] += len(bad)
            await self._dead.send_surely(bad)
        return good

    def _steps(self, good: list[Held | Cancelled]) -> list[tuple[str, Step]]:
        """Return what is to be done in each topic: a cancel comes after what came before it."""
        steps: dict[str, list[Step]] = {}
        for one in good:
            mine = steps.setdefault(self._topic_of(one), [])
            if not mine or type(mine[-1][0]) is not type(one):
                mine.append([])
            mine[-1].append(one)  # type: ignore[arg-type]
        return [(topic, step) for topic, mine in steps.items() for step in mine]

    async def _patiently(self, topic: str, step: Step) -> None:
        """Do a step, however long the queue cannot: what is not held is not committed."""
        while True:
            try:
                if isinstance(step[0], Cancelled):
                    await self._cancel(topic, [one.id for one in step])
                else:
                    await self._put(topic, step)
            except StoreClosed:
                raise
            except InvalidInput as error:
                await self._isolate(topic, step, str(error))
                return
            except DwellError as error:
                if self._is_stopping:
                    raise
                if self._tally.is_news("queue", error):
                    _log.warning("%d records wait to be held: %s", len(step), error)
                await asyncio.sleep(_AGAIN_S)
            else:
                self._tally.trouble.pop("queue", None)
                return

    async def _isolate(self, topic: str, step: Step, reason: str) -> None:
        """Find by halves which records the queue refuses for good; those are dead letters.

        What was put with the first try is known by its id when it is put again.
        """
        half = len(step) // 2
        if half:
            await self._patiently(topic, step[:half])
            await self._patiently(topic, step[half:])
            return
        self._tally.dead["source"] += 1
        await self._dead.send_surely([(step[0].record, reason)])

    async def _put(self, topic: str, held: Sequence[Held]) -> None:
        for part in _chunks(held):
            answer = await self._queue.put_puts(_puts(topic, part))
            for code, count in enumerate(np.bincount(answer.results).tolist()):
                if count:
                    self._tally.held[str(Result(code))] += count

    async def _cancel(self, topic: str, ids: list[str]) -> None:
        left = await self._cancel_in(topic, list(dict.fromkeys(ids)))
        for other in await self._topics() if left else ():
            if left and other != topic:
                left = await self._cancel_in(other, left)
        self._tally.held["unknown"] += len(left)

    async def _cancel_in(self, topic: str, ids: list[str]) -> list[str]:
        """Cancel messages of a topic; return the ids that it does not know."""
        unknown: list[str] = []
        for first in range(0, len(ids), MAX_BATCH_MESSAGES):
            part = ids[first : first + MAX_BATCH_MESSAGES]
            results = await self._queue.cancel(topic, part)
            self._tally.held["cancelled"] += results.count(Result.CANCELLED)
            self._tally.held["too late"] += results.count(Result.LEASED)
            told = zip(part, results, strict=True)
            unknown += [id_ for id_, result in told if result is Result.UNKNOWN]
        return unknown


def _chunks(held: Sequence[Held]) -> Iterator[Sequence[Held]]:
    """Cut what is to be put into batches that a queue takes."""
    ends = list(accumulate([len(one.record.body or b"") for one in held]))
    if ends[-1] <= _MOST_BYTES and len(held) <= MAX_BATCH_MESSAGES:
        yield held
        return
    first, before = 0, 0
    for at, end in enumerate(ends):
        if end - before > _MOST_BYTES or at - first >= MAX_BATCH_MESSAGES:
            yield held[first:at]
            first, before = at, ends[at - 1]
    yield held[first:]


def _puts(topic: str, held: Sequence[Held]) -> Puts:
    return Puts(
        topic=topic,
        bodies=Sized([one.record.body or b"" for one in held]),
        due_ms=np.array([one.due_ms for one in held], dtype=np.int64),
        priority=np.array([one.priority for one in held], dtype=np.uint32),
        lease_ms=np.array([one.lease_ms for one in held], dtype=np.uint32),
        max_attempts=np.array([one.max_attempts for one in held], dtype=np.uint16),
        expires_ms=np.array([one.expires_ms for one in held], dtype=np.int64),
        ids=Sized([one.record.id.encode() for one in held]),
        extras=Sized([one.extra for one in held]),
    )
