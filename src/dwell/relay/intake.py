"""The way in: records of a source become messages that are held until they are due."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate

from dwell.batch.blobs import Sized
from dwell.batch.puts import PUT_ARRAYS, Puts
from dwell.batch.results import counts_of
from dwell.batch.schema import arrays_from
from dwell.errors import DwellError, Forbidden, InvalidId, InvalidInput, StoreFull, TopicFull
from dwell.message import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, MAX_ID_BYTES, Result
from dwell.queue import Queue
from dwell.relay.contract import ForgetfulSource, Reader, Source
from dwell.relay.dead import DeadLetters
from dwell.relay.patience import patiently
from dwell.relay.record import Record
from dwell.relay.rules import Cancelled, Held
from dwell.relay.tally import Tally

_log = logging.getLogger(__name__)

#: How many bytes are put at once, with as much again for headers.
_MOST_BYTES = MAX_BATCH_BYTES // 2

#: How many bytes of an id an error shows.
_SHOWN = 40

Step = list[Held] | list[Cancelled]
TopicOf = Callable[[Held | Cancelled], str]


class Intake:
    """Reads a source batch by batch; each is held, then committed, while the next is read.

    ``topic_of`` returns the topic that holds a record, ``topics`` all such topics: a message to be
    cancelled may be in any.
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
        self._forgetful = source if isinstance(source, ForgetfulSource) else None
        #: The records of this read that stay in the source, because no letter can have all of them.
        self._unkept: list[Record] = []
        self._queue = queue
        self._rules = rules
        self._dead = dead
        self._tally = tally
        self._topic_of = topic_of
        self._topics = topics
        self._limit = limit
        self._holding: asyncio.Task[None] | None = None
        #: The origins of records that are held although an earlier record of their lane is not.
        self._ahead: set[str] = set()
        #: The lanes whose records wait, by the trouble that they wait for.
        self._waiting: dict[str, set[str]] = {}
        self._is_stopping = False

    async def run(self) -> None:
        """Read until stopped; raises StoreClosed."""
        while not self._is_stopping:
            try:
                records = await patiently(
                    lambda: self._source.read(self._limit),
                    self._tally,
                    "source",
                    is_over=lambda: self._is_stopping,
                )
                await self.idle()
            except DwellError:
                if not self._is_stopping:
                    raise
                # Records that are not held are not committed, and come again.
                return
            if self._source.has_lanes:
                records = [one for one in records if not self._source.comes_again(one)]
            if records and not self._is_stopping:
                self._tally.read += len(records)
                self._holding = asyncio.get_running_loop().create_task(self._hold(records))

    def stop(self) -> None:
        """Stop reading."""
        self._is_stopping = True

    async def idle(self) -> None:
        """Return when all read records are held; raises StoreClosed, or the task's error."""
        if self._holding is not None:
            await asyncio.wait([self._holding])
            self._holding.result()

    def forget(self, lanes: Collection[str]) -> None:
        """Drop the troubles of closed lanes, once records that were read of them are held."""
        if self._holding is None or self._holding.done():
            self._forget(lanes)
        else:
            self._holding.add_done_callback(lambda _: self._forget(lanes))

    def _forget(self, lanes: Collection[str]) -> None:
        for who, waiting in list(self._waiting.items()):
            waiting.difference_update(lanes)
            if not waiting:
                self._pass(who)

    def _wait(self, who: str, why: object, held: Step) -> bool:
        """Note a trouble that records wait for; tell whether it is new."""
        self._waiting.setdefault(who, set()).update(one.record.lane for one in held)
        return self._tally.is_news(who, why)

    def _pass(self, who: str) -> None:
        """Note that a trouble has passed."""
        self._waiting.pop(who, None)
        self._tally.trouble.pop(who, None)

    async def _hold(self, records: Sequence[Record]) -> None:
        fresh = (
            [one for one in records if one.origin not in self._ahead] if self._ahead else records
        )
        good, left = await self._sorted(fresh)
        full: set[str] = set()
        for topic, step in self._steps(good):
            rest = step if topic in full else await self._done(topic, step)
            if rest:
                full.add(topic)
                left += [one.record for one in rest]
        if self._unkept and self._forgetful is not None:
            unkept = set(map(id, self._unkept))
            records = [one for one in records if id(one) not in unkept]
            self._tally.read -= len(unkept)
            await self._forgetful.leave(self._unkept)
            self._unkept = []
        if left:
            records = await self._defer(records, left)
        await self._source.done(records)
        self._ahead.difference_update([one.origin for one in records] if self._ahead else ())
        self._tally.settled += len(records)

    async def _defer(self, records: Sequence[Record], left: Sequence[Record]) -> list[Record]:
        """Defer the rest of some records, and the records after it in its lane; return the others.

        Later records that are held already are noted, so that they are not held twice.
        """
        waiting, lanes = set(map(id, left)), set[str]()
        good, deferred = list[Record](), list[Record]()
        for record in records:
            is_left = id(record) in waiting
            if is_left and record.lane:
                lanes.add(record.lane)
            if not is_left and record.lane not in lanes:
                good.append(record)
                continue
            deferred.append(record)
            if not is_left:
                self._ahead.add(record.origin)
        self._tally.read -= len(deferred)
        await self._source.defer(deferred)
        return good

    async def _sorted(
        self, records: Sequence[Record]
    ) -> tuple[list[Held | Cancelled], list[Record]]:
        """Return the decisions for records, and the records that must come again.

        Unreadable records, and records without a due or target, become dead letters.
        """
        now_ms = self._queue.clock.now_ms()
        read, good, bad = self._rules.read, list[Held | Cancelled](), list[tuple[Record, str]]()
        for record in records:
            try:
                good.append(read(record, now_ms))
            except InvalidInput as error:
                bad.append((record, str(error)))
            except Exception as error:
                # No record, whatever its content, may block the others.
                _log.exception("%s: cannot be read", record.origin)
                bad.append((record, f"record: cannot be read: {type(error).__name__}: {error}"))
        return good, await self._buried(bad)

    async def _buried(self, bad: Sequence[tuple[Record, str]]) -> list[Record]:
        """Make dead letters of records; return the records whose letters cannot be kept now.

        Those that have to be left in the source are noted.
        """
        if not bad:
            return []
        unkept = list[tuple[Record, str]]()
        if (source := self._forgetful) is not None:
            unkept = [one for one in bad if not source.is_whole(one[0])]
            bad = [one for one in bad if source.is_whole(one[0])]
        left, refused = await self._dead.send(bad)
        self._tally.dead["source"] += len(bad) - len(left) - len(refused)
        self._note_unkept([*unkept, *refused])
        return left

    def _note_unkept(self, unkept: Sequence[tuple[Record, str]]) -> None:
        """Note records that stay in the source; count and log each once."""
        for record, reason in unkept:
            self._unkept.append(record)
            if self._tally.is_unkept(record.origin):
                _log.error(
                    "%s: stays there, as no dead letter can have all of it: %.1000s",
                    record.origin,
                    reason,
                )

    def _steps(self, good: list[Held | Cancelled]) -> list[tuple[str, Step]]:
        """Return the steps for each topic: a cancel comes after the records before it."""
        steps: dict[str, list[Step]] = {}
        for one in good:
            mine = steps.setdefault(self._topic_of(one), [])
            if not mine or type(mine[-1][0]) is not type(one):
                mine.append([])
            mine[-1].append(one)  # type: ignore[arg-type]
        return [(topic, step) for topic, mine in steps.items() for step in mine]

    async def _done(self, topic: str, step: Step) -> Step:
        """Do a step, retrying while the queue cannot; return the records that have to wait."""
        try:
            return await patiently(
                lambda: self._try(topic, step),
                self._tally,
                "queue",
                is_over=lambda: self._is_stopping,
            )
        except InvalidInput as error:
            return await self._isolate(topic, step, str(error))

    async def _try(self, topic: str, step: Step) -> Step:
        who = f"access to {topic}"
        left: Step = []
        try:
            if isinstance(step[0], Cancelled):
                await self._cancel(topic, step)
            else:
                left = await self._put(topic, step)
        except (Forbidden, StoreFull) as error:
            # A record may name any topic, and must not hold up those of others: that the quota of a
            # token has no room may be so for new topics only.
            if self._wait(who, error, step):
                _log.warning("%s: %d records wait, and come again: %s", topic, len(step), error)
            return step
        self._pass(who)
        return left

    async def _isolate(self, topic: str, step: Step, reason: str) -> Step:
        """Find by halves which records the queue refuses for good; they become dead letters.

        Records put by the first attempt are recognised by their ids in the second.
        """
        half = len(step) // 2
        if not half:
            record = step[0].record
            if self._forgetful is not None:
                self._forgetful.restore(record)
            return step if await self._buried([(record, reason)]) else []
        left = await self._done(topic, step[:half])
        return [*left, *step[half:]] if left else await self._done(topic, step[half:])

    async def _put(self, topic: str, held: Sequence[Held]) -> list[Held]:
        """Put records; return those without room in the topic."""
        left: list[Held] = []
        for part in chunks_of(held):
            left += part if left else await self._put_part(topic, part)
        who = f"topic {topic}"
        if not left:
            self._pass(who)
            return left
        self._tally.held["no room"] += len(left)
        if self._wait(who, f"{topic}: is full", left):
            _log.warning("%s: is full: %d records wait, and come again", topic, len(left))
        return left

    async def _put_part(self, topic: str, held: Sequence[Held]) -> Sequence[Held]:
        """Put records in order while there is room; return the others."""
        try:
            answer = await self._queue.put_puts(puts_of(topic, held))
        except TopicFull:
            half = len(held) // 2
            if not half:
                return held
            left = await self._put_part(topic, held[:half])
            return [*left, *held[half:]] if left else await self._put_part(topic, held[half:])
        for result, count in counts_of(answer.results).items():
            self._tally.held[str(result)] += count
        return []

    async def _cancel(self, topic: str, step: Sequence[Cancelled]) -> None:
        or_ids = {one.id: one.or_id for one in step}
        left = await self._cancel_in(topic, list(or_ids))
        if not left:
            return
        every = [other for other in await self._topics() if other != topic]
        # A record of another source may have the same id of its producer.
        siblings = [other for other in every if _source(other) == _source(topic)]
        left = await self._cancel_in_others(siblings, left)
        places = [or_id for id_ in left if (or_id := or_ids[id_])]
        unknown = len(left) - len(places)
        # A place with the mark of its source's life is unique.
        places = await self._cancel_in_others([topic, *every], places)
        self._tally.held["unknown"] += unknown + len(places)

    async def _cancel_in_others(self, topics: Sequence[str], ids: list[str]) -> list[str]:
        """Cancel messages in any of some topics; return the ids that none knows."""
        for topic in topics if ids else ():
            if not (ids := await self._cancel_in(topic, ids)):
                break
        return ids

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


def _source(topic: str) -> str:
    """Return what all topics for the partitions of one source begin with."""
    return topic.rpartition("-")[0]


def chunks_of(held: Sequence[Held]) -> Iterator[Sequence[Held]]:
    """Split records into batches of a size that a queue accepts."""
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


def puts_of(topic: str, held: Sequence[Held]) -> Puts:
    """Return records as a batch; raises InvalidId for an id that is too long, as of a place."""
    ids = [one.record.id.encode() for one in held]
    if too_long := next((id_ for id_ in ids if len(id_) > MAX_ID_BYTES), None):
        size = f"{len(too_long)} bytes ({too_long[:_SHOWN]!r}...)"
        raise InvalidId(f"id: got {size}, expected at most {MAX_ID_BYTES}")
    return Puts(
        topic=topic,
        bodies=Sized([one.record.body or b"" for one in held]),
        ids=Sized(ids),
        extras=Sized([one.extra for one in held]),
        **arrays_from(held, PUT_ARRAYS),
    )
