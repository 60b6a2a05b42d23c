"""Finding messages by id, many at once."""

import asyncio
from collections.abc import Sequence

import numpy as np

from dwell.batch.blobs import firsts_of
from dwell.message import I64, QUEUE_ID_MARK, U32, U64, Rows, State
from dwell.store.embedded.arrivals import Arrivals
from dwell.store.embedded.distinct import are_distinct
from dwell.store.embedded.ids import Hasher
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.numbers import parse_queue_ids
from dwell.store.embedded.table import DONE
from dwell.tasks import whole


class Finder:
    """Finds the rows of messages, by callers' ids and by queue-made ids."""

    def __init__(self, machine: Machine, hasher: Hasher) -> None:
        self._machine = machine
        self._table = machine.table
        self._hasher = hasher
        self._filling: asyncio.Task[None] | None = None

    def hashes(self, topic: str, ids: Sequence[bytes]) -> tuple[U64, U32]:
        """Return the hashes of ids of a topic, and the bits that confirm them."""
        return self._hasher.hash(self._hasher.topic(topic), ids)

    def find(self, topic: str, ids: Sequence[bytes]) -> tuple[Rows, np.ndarray]:
        """Return the row of each id, and whether such a message exists."""
        rows, found = self.find_any(topic, ids)
        return rows, found & (self._table.state[rows] != DONE)

    def find_any(self, topic: str, ids: Sequence[bytes]) -> tuple[Rows, np.ndarray]:
        """Return the row of each id, and whether it has a message or the result of one."""
        number = self._machine.topics.find(topic)
        if number is None or not self._table.top or not ids:
            return np.zeros(len(ids), np.intp), np.zeros(len(ids), dtype=bool)
        made = firsts_of(ids) == ord(QUEUE_ID_MARK)
        if not made.any():
            return self._machine.known.find(*self.hashes(topic, ids))
        rows, seqs = parse_queue_ids(ids)
        table = self._table
        inside = rows < table.top
        rows = np.where(inside, rows, 0)
        found = made & inside & (table.seq[rows] == seqs) & (table.topic[rows] == number)
        found &= (table.id_bytes[rows] == 0) & (table.state[rows] != State.GONE)
        own = np.flatnonzero(~made)
        if len(own):
            rows[own], found[own] = self.find_any(topic, [ids[index] for index in own.tolist()])
        return rows, found

    def are_remembered(self, topic: str, ids: Sequence[bytes], now_ms: int) -> np.ndarray:
        """Tell for each id whether it is remembered, though no message has it."""
        memories = np.zeros(len(ids), dtype=bool)
        if not ids:
            return memories
        # Also those of a topic that was dropped as unused.
        own = np.flatnonzero(firsts_of(ids) != ord(QUEUE_ID_MARK))
        if len(own):
            hashes = self.hashes(topic, [ids[at] for at in own.tolist()])
            memories[own] = self._machine.known.are_remembered(*hashes, now_ms)
        return memories

    async def numbered(self, numbers: U64) -> tuple[Rows, np.ndarray]:
        """Return the row of the message of each number, and whether it exists."""
        machine, table = self._machine, self._table
        if not table.top:
            return np.zeros(len(numbers), np.intp), np.zeros(len(numbers), dtype=bool)
        while (arrivals := machine.arrivals) is None or not arrivals.is_whole:
            if self._filling is None or self._filling.done():
                self._filling = whole(self._fill())
            # Others wait for the same fill, so it goes on when one of them is cancelled.
            await asyncio.shield(self._filling)
        rows = arrivals.find(numbers)
        return rows, (table.seq[rows] == numbers) & table.are_messages(rows)

    async def _fill(self) -> None:
        """Make the index by number, part by part: millions of messages take most of a second."""
        arrivals = self._machine.arrivals = Arrivals(self._table)
        try:
            for _ in arrivals.fill():
                await asyncio.sleep(0)
        except BaseException:
            self._machine.arrivals = None
            raise


def first_places(hashes: U64, checks: U32) -> I64:
    """Return for each id of a batch the place of its first occurrence."""
    places = np.arange(len(hashes))
    if are_distinct(hashes):
        return places
    order = np.lexsort((checks, hashes))
    ordered, bits = hashes[order], checks[order]
    is_first = np.append(True, (ordered[1:] != ordered[:-1]) | (bits[1:] != bits[:-1]))
    places[order] = order[is_first][np.cumsum(is_first) - 1]
    return places


def waves_of(hashes: U64 | Rows) -> list[np.ndarray]:
    """Split a batch so that no id or row occurs twice in one part.

    Returns the places of each part; usually there is one.
    """
    places = np.arange(len(hashes))
    if are_distinct(hashes):
        return [places]
    order = np.argsort(hashes, kind="stable")
    again = hashes[order][1:] == hashes[order][:-1]
    before = np.full(len(hashes), -1)
    before[order[1:][again]] = order[:-1][again]
    cuts, start = [], 0
    for place in np.flatnonzero(before >= 0).tolist():
        if before[place] >= start:
            cuts.append(place)
            start = place
    return np.split(places, cuts)
