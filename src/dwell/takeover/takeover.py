"""The takeover itself: lends, puts and lets go until nothing waits, with a balanced count."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from dwell.batch.page import Cursor
from dwell.batch.results import counts_of
from dwell.errors import DwellError, InvalidInput, TopicFull
from dwell.message import U8, Message, Result, State, TopicSettings, decode_extra
from dwell.queue import Queue
from dwell.takeover.contract import Counts, Load, Place

_AGAIN_S = 0.2
_LIMIT = 1_000
#: How many messages, each with its body, are read together.
_LOOK = 100
#: Behind every message of one due.
_LAST_ARRIVAL = 2**63 - 1
_MOVED = (Result.CREATED, Result.KEPT)


@dataclass
class Report:
    """The result of a takeover: found, moved and left messages.

    ``put`` counts the queue's answers: ``created``, ``kept`` if an earlier takeover had put the
    message, or ``dead`` for an invalid message. ``elsewhere`` counts messages that other takers
    there had got by then. ``others`` stay there, because the queue has other messages of their ids;
    so do ``refused`` messages, the last of them for ``reason``, and messages that the place could
    not lend, counted ``by_reason``. ``again`` counts messages that the place had given out before,
    which may be in the queue twice. ``is_whole`` tells that nothing else is left to move.
    """

    found: Counts | None = None
    left: Counts | None = None
    put: Counter[str] = field(default_factory=Counter)
    elsewhere: int = 0
    others: int = 0
    refused: int = 0
    reason: str = ""
    by_reason: Counter[str] = field(default_factory=Counter)
    again: int = 0
    is_whole: bool = False

    @property
    def held_back(self) -> int:
        """How many messages the place could not lend."""
        return self.by_reason.total()

    @property
    def moved(self) -> int:
        """How many messages are in the queue and no longer there."""
        return self.put["created"] + self.put["kept"] + self.put["dead"] - self.elsewhere

    @property
    def came(self) -> int:
        """How many messages came there during the takeover."""
        return 0 if self.found is None or self.left is None else self.left.came - self.found.came

    @property
    def gone(self) -> int:
        """How many other messages finished there during the takeover."""
        if self.found is None or self.left is None:
            return 0
        return self.left.gone - self.found.gone - self.moved

    @property
    def balances(self) -> bool:
        """Tell whether the first count and arrivals equal the messages left, moved or finished."""
        if self.found is None or self.left is None:
            return True
        return self.gone >= 0 and (
            self.found.here + self.came == self.left.here + self.moved + self.gone
        )


class Takeover:
    """Moves waiting messages of a place into an open queue; ``tell`` is called after each batch."""

    def __init__(self, place: Place, queue: Queue, tell: Callable[[Report], None]) -> None:
        self._place = place
        self._queue = queue
        self._tell = tell
        self._is_stopping = False
        self.report = Report()

    def stop(self) -> None:
        """Stop moving; work in progress is finished."""
        self._is_stopping = True

    async def run(self, *, dry_run: bool = False) -> Report:
        """Move until nothing waits; raises DwellError, with the progress in the report.

        With ``dry_run`` the place is only counted.
        """
        report = self.report
        try:
            await self._place.open()
            report.found = await self._place.counts()
            if not dry_run:
                await self._settle()
                try:
                    await self._move()
                finally:
                    report.left = await self._place.counts()
        finally:
            await self._place.close()
        return report

    async def _settle(self) -> None:
        """Copy the settings of topics there, where the topics have none here.

        Only settings that differ from the defaults are set, because others may set some at the same
        time.
        """
        plain = TopicSettings()
        defaults = msgspec.structs.asdict(plain)
        for topic, settings in (await self._place.settings()).items():
            given = msgspec.structs.asdict(settings).items()
            own = {name: value for name, value in given if value != defaults[name]}
            if own and await self._queue.settings(topic) == plain:
                await self._queue.configure(topic, **own)

    async def _move(self) -> None:
        while not self._is_stopping:
            loads = await self._place.lend(_LIMIT)
            if loads is None:
                self.report.by_reason += Counter(await self._place.held_back())
                self.report.is_whole = not self.report.held_back
                return
            if not loads:
                await asyncio.sleep(_AGAIN_S)
            for load in loads:
                await self._take_over(load)
                self._tell(self.report)

    async def _take_over(self, load: Load) -> None:
        everything = range(len(load.puts))
        results = np.full(len(load.puts), Result.UNKNOWN, np.uint8)
        try:
            refused = await self._put(load, everything, results)
        except DwellError:
            await self._place.take_back(load, everything)
            raise
        dropped = np.flatnonzero(results == Result.DROPPED).tolist()
        if dropped:
            self.report.reason = f"topic: {load.puts.topic} is full and drops what comes"
            refused += dropped
        others = await self._others(load, results)
        self.report.others += len(others)
        self.report.refused += len(refused)
        stay = [*others, *refused]
        for result, count in counts_of(np.delete(results, stay)).items():
            self.report.put["dead" if load.is_dead else str(result)] += count
        self.report.again += len({*load.again}.difference(stay))
        if stay:
            await self._place.leave(load, stay)
        is_put = np.isin(results, _MOVED)
        is_put[stay] = False
        places = np.flatnonzero(is_put).tolist()
        if places:
            await self._let_go(load, places, results)

    async def _put(self, load: Load, places: Sequence[int], results: U8) -> list[int]:
        """Put messages of a load at some places; return the places that the queue refuses.

        A batch is refused as a whole, so an invalid message is found by halves, and so is the room
        that a topic has left.
        """
        puts = load.puts
        if len(places) < len(puts):
            puts = puts.picked(np.array(places))
        try:
            results[list(places)] = (await self._queue.put_puts(puts)).results
        except (InvalidInput, TopicFull) as error:
            half = len(places) // 2
            if not half:
                self.report.reason = str(error)
                return list(places)
            first = await self._put(load, places[:half], results)
            if first and isinstance(error, TopicFull):
                return [*first, *places[half:]]
            return [*first, *await self._put(load, places[half:], results)]
        return []

    async def _let_go(self, load: Load, places: Sequence[int], results: U8) -> None:
        """Let messages go; if one changed there, cancel its copy here.

        It is lent again in its changed version. A copy that was taken or changed here stays.
        """
        stayed = await self._place.let_go(load, places)
        self.report.elsewhere += stayed.elsewhere
        for at in stayed.changed:
            if await self._is_withdrawn(load, at):
                self.report.put[str(Result(int(results[at])))] -= 1
            else:
                self.report.elsewhere += 1

    async def _is_withdrawn(self, load: Load, at: int) -> bool:
        """Cancel a message of a load here if it is unchanged since its put; tell whether it was."""
        puts = load.puts
        assert puts.ids is not None
        id_, due_ms = puts.ids[at], int(puts.due_ms[at])
        cursor: Cursor | None = Cursor(due_ms - 1, _LAST_ARRIVAL)
        while cursor is not None and cursor.due_ms <= due_ms:
            page = await self._queue.scan(puts.topic, State.DELAYED, cursor=cursor, limit=_LOOK)
            found = page.messages
            for place in np.flatnonzero(found.due_ms == due_ms)[: len(page.versions)].tolist():
                if found.ids[place].encode() == id_ and _is_same(load, at, found[place]):
                    seen = page.versions[place : place + 1]
                    ids = [id_.decode()]
                    done = await self._queue.cancel(puts.topic, ids, versions=seen)
                    return done[0] is Result.CANCELLED
            cursor = page.cursor
        return False

    async def _others(self, load: Load, results: U8) -> list[int]:
        """Return the places of messages whose ids belong to other messages here.

        A remembered id without a message counts as a message that was put and done.
        """
        kept = np.flatnonzero(results == Result.KEPT).tolist()
        ids = load.puts.ids
        if not kept or ids is None:
            return []
        others: list[int] = []
        for first in range(0, len(kept), _LOOK):
            part = kept[first : first + _LOOK]
            found = await self._queue.get(load.puts.topic, [ids[at].decode() for at in part])
            pairs = zip(part, found, strict=True)
            others += [at for at, one in pairs if one is not None and not _is_same(load, at, one)]
        return others


def _is_same(load: Load, at: int, found: Message) -> bool:
    """Tell whether a message was put before from this load.

    A worker may have changed its due by a retry. Then it counts as another, as messages of one id
    may differ in their dues alone.
    """
    puts = load.puts
    extra = decode_extra(puts.extras[at] if puts.extras else b"")
    is_its_due = not load.is_exact or found.due_ms == int(puts.due_ms[at])
    said = (bytes(puts.bodies[at]), extra.key, load.lasting(extra.headers))
    return is_its_due and said == (found.body, found.key, load.lasting(found.headers))
