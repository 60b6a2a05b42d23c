"""An outbox as a source: rows are read, held by the queue, and then deleted, batch by batch.

A row has its own topic and options (see :mod:`dwell.relay.outbox.entry`). Everything else is shared
with brokers: the way in, dead letters, metrics, and the way out if ``--to`` names a broker.

A batch is deleted before the next is read. This keeps the order of a table with one relay, and a
single transaction open where rows are locked. Rows that the queue has and that cannot be deleted
yet are remembered: they are deleted when the database is back, so that they do not come again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from dwell.errors import DwellError
from dwell.message import MAX_BATCH_BYTES
from dwell.relay.contract import BrokerUnreachable, Lanes
from dwell.relay.outbox.entry import Entry, Reader
from dwell.relay.record import Record

_log = logging.getLogger(__name__)

#: How many bytes are read at once, with as much again for forms that are longer in the queue.
_MOST_BYTES = MAX_BATCH_BYTES // 2
#: The interval between polls of an empty table without notices, in seconds.
_POLL_S = 1.0
#: How long a read waits for rows before it returns none, so that a relay can stop.
_LOOK_S = 0.1
#: The time limit of a database before a warning, and at the end of a relay, in seconds.
_PATIENCE_S = 5.0
_END_S = 3.0
#: The pause of rows that cannot be held now, in seconds.
_REST_S = 1.0

#: Before every row: a database numbers them from 1 on, and people as they like.
_BEFORE_ALL = -(2**63)

Place = tuple[Any, ...]


class PassedOver(NamedTuple):
    """Rows that are not selected: all of some topics, as named in the table, and the first rows.

    ``to_seq`` is the number of the last of these.
    """

    topics: list[str | bytes]
    to_seq: int


class Pass:
    """A pass over a table, from its first row on, which leaves out rows that cannot be held now.

    An invalid row whose letter has no room is left behind with all rows before it, so that any
    number of them keeps no good row from leaving. The pass goes on until the first rows that can
    be held, or to the end, and then for a second, or for as long as it took to get there: at most
    about half the time goes into rows that cannot be held. Each pass gets further than the last.
    """

    def __init__(self) -> None:
        self._to_seq = _BEFORE_ALL
        self._began_s = self._ends_s = 0.0
        #: The topics without room: until when each rests, and its first row left out.
        self._topics: dict[str | bytes, tuple[float, int]] = {}

    def passed_over(self, now_s: float) -> PassedOver:
        """Return the rows that are left out of the next select."""
        if self._ends_s and now_s >= self._ends_s:
            self._to_seq, self._ends_s = _BEFORE_ALL, 0.0
        if self._to_seq == _BEFORE_ALL:
            self._began_s = now_s
        # The rows of a topic keep their order: none leaves before a row that was left behind.
        self._topics = {
            topic: (until_s, seq)
            for topic, (until_s, seq) in self._topics.items()
            if until_s > now_s or seq <= self._to_seq
        }
        return PassedOver(list(self._topics), self._to_seq)

    def defer(self, seq: int, topic: str | bytes | None, now_s: float) -> None:
        """Leave out the rows of a topic for a while; without a topic, all rows up to ``seq``."""
        if topic is None:
            self._to_seq = max(self._to_seq, seq)
        else:
            first = self._topics.get(topic, (0.0, seq))[1]
            self._topics[topic] = (now_s + _REST_S, first)

    def turn_back(self, now_s: float) -> None:
        """Note that rows could be held, or that no rows are left: the pass ends before long."""
        if self._to_seq != _BEFORE_ALL and not self._ends_s:
            self._ends_s = now_s + max(_REST_S, now_s - self._began_s)


class Rows(Protocol):
    """A table in a database. Each method raises BrokerUnreachable when it cannot be done now."""

    async def select(
        self, limit: int, most_bytes: int, but: PassedOver
    ) -> Sequence[tuple[Any, ...]]:
        """Return the first rows that no other relay has, about ``most_bytes`` at most."""

    async def delete(self, places: Sequence[Place]) -> None:
        """Delete rows durably; rows that are already gone count as done."""

    async def changed(self, seconds: float) -> bool:
        """Wait for rows written since the last select; False after the given time."""

    async def close(self) -> None:
        """Release the selected rows."""


class OutboxSource:
    """Rows of an outbox as records, in the order of insertion."""

    has_lanes = False

    def __init__(self, name: str, rows: Rows) -> None:
        self._name = name
        self._rows = rows
        self._given = 0
        self._owed: list[Place] = []
        self._pass = Pass()
        self._turn: asyncio.Task[list[Entry]] | None = None
        self._free = asyncio.Event()
        self._next_s = 0.0

    def reader(self, *, is_named: bool) -> Reader:
        """Return the reader of the records."""
        return Reader(is_named=is_named)

    async def open(self, lanes: Lanes) -> None:
        """Do nothing: the first read connects to the database."""

    async def read(self, limit: int) -> Sequence[Record]:
        """Return the next rows, after the earlier rows are deleted."""
        if self._given:
            # The queue is still being told of them.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._free.wait(), _LOOK_S)
            if self._given:
                return []
        if self._is_idle() and not await self._rows.changed(_LOOK_S):
            return []
        records = await self._patiently(limit)
        self._next_s = 0.0 if records else _now_s() + _POLL_S
        self._given = len(records)
        return records

    def _is_idle(self) -> bool:
        return self._turn is None and not self._owed and _now_s() < self._next_s

    async def _patiently(self, limit: int) -> list[Entry]:
        """Continue the work on the database; raises BrokerUnreachable while it takes too long.

        Slow work is not aborted: that would not end better.
        """
        self._next_s = 0.0
        if self._turn is None:
            self._turn = asyncio.get_running_loop().create_task(self._take_turn(limit))
        await asyncio.wait([self._turn], timeout=_PATIENCE_S)
        if not self._turn.done():
            raise BrokerUnreachable(f"{self._name}: no answer for {_PATIENCE_S:.0f} s")
        turn, self._turn = self._turn, None
        return turn.result()

    async def _take_turn(self, limit: int) -> list[Entry]:
        await self._delete()
        found = await self._rows.select(limit, _MOST_BYTES, self._pass.passed_over(_now_s()))
        if not found:
            self._pass.turn_back(_now_s())
        return [Entry.of(self._name, row) for row in found]

    async def _delete(self) -> None:
        if self._owed:
            await self._rows.delete(self._owed)
            self._owed = []

    async def done(self, records: Sequence[Record]) -> None:
        """Delete rows with the next read, because the queue has them."""
        if records:
            self._pass.turn_back(_now_s())
        self._owed = [record.place for record in records]
        self._given = 0
        self._free.set()
        self._free = asyncio.Event()

    async def defer(self, records: Sequence[Record]) -> None:
        """Skip the topics of rows without room, and invalid rows with all rows before them."""
        for record in records:
            assert isinstance(record, Entry)
            seq, _, topic, *_ = record.row
            self._pass.defer(seq, topic if record.topic else None, _now_s())

    def is_whole(self, record: Record) -> bool:
        """Tell whether no column of a row was cut when it was read."""
        assert isinstance(record, Entry)
        return record.is_whole

    def restore(self, record: Record) -> None:
        """Make a record what people see of its row."""
        assert isinstance(record, Entry)
        record.show()

    async def leave(self, records: Sequence[Record]) -> None:
        """Leave rows where they are, like rows that cannot be held now."""
        await self.defer(records)

    def comes_again(self, record: Record) -> bool:
        """Return False: without lanes it is never called."""
        return False

    def is_committed(self, lane: str, origin: str) -> bool:
        """Return False: without lanes it is never called."""
        return False

    async def close(self) -> None:
        """Delete the rows that the queue has, and release the rest, for others."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Task[Any] = self._turn or loop.create_task(self._delete())
        done, _ = await asyncio.wait([turn], timeout=_END_S)
        if not done:
            turn.cancel()
        elif isinstance(error := turn.exception(), DwellError):
            _log.warning(
                "%d rows were not deleted, and will be kept once: %s", len(self._owed), error
            )
        await self._rows.close()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
