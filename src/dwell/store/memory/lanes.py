"""Lanes and turns: which message of a key may be taken, and when it is the key's turn."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from dwell.message import State


class Message(Protocol):
    """What lanes ask of a row."""

    serial: int
    state: State
    until_ms: int

    @property
    def key(self) -> str | None:
        """The key that it was put with."""

    @property
    def is_begun(self) -> bool:
        """Whether it was taken, and is not done."""

    def order(self) -> tuple[int, int, int]:
        """Return what the messages of a topic are taken by."""


R = TypeVar("R", bound=Message)


class Lanes(Generic[R]):
    """The keys of an ordered topic.

    The front of a key is its message that was taken and is not done, or else one that stands among
    the ready ones; the others are parked until it is gone, as soon as they come to be taken.
    """

    def __init__(self, rows: Iterable[R]) -> None:
        self._fronts: dict[str, R] = {}
        self._parked: dict[str, list[tuple[int, int, int, int, R]]] = {}
        self._serials: set[int] = set()
        for row in sorted(
            (row for row in rows if row.is_begun), key=lambda row: row.until_ms, reverse=True
        ):
            if row.key is not None:
                self._fronts.setdefault(row.key, row)

    @property
    def parked(self) -> int:
        """How many ready messages nobody may take."""
        return len(self._serials)

    def entries(self) -> Iterable[tuple[int, int, int, int, R]]:
        """Yield what is parked."""
        for heap in self._parked.values():
            yield from (entry for entry in heap if entry[3] in self._serials)

    def firsts(self, rows: Iterable[R]) -> Iterator[R]:
        """Yield those of the ready rows, in their order, that may be taken."""
        seen: set[str] = set()
        for row in rows:
            key = row.key
            if key is not None:
                front = self._fronts.get(key)
                if key in seen or not (front is None or front is row or not front.is_begun):
                    continue
                seen.add(key)
            yield row

    def admit(self, row: R) -> bool:
        """Let a row that comes to be taken be the front of its key, or park it."""
        if row.key is None:
            return True
        front = self._fronts.get(row.key)
        if front is None or front is row or (not front.is_begun and row.order() < front.order()):
            self._fronts[row.key] = row
            return True
        heapq.heappush(self._parked.setdefault(row.key, []), (*row.order(), row.serial, row))
        self._serials.add(row.serial)
        return False

    def follow(self, row: R, serial: int) -> tuple[bool, R | None]:
        """Note that a row has moved, which had a serial before.

        Return whether its key has another front now, and which row that is if it was parked.
        """
        self._serials.discard(serial)
        if row.state is State.LEASED and row.key is not None:
            self._fronts[row.key] = row
        if row.key is None or self._fronts.get(row.key) is not row or row.is_begun:
            return False, None
        following = self._pop(row.key, row if row.state is State.READY else None)
        if following is not None:
            self._fronts[row.key] = following
        elif row.state is not State.READY:
            del self._fronts[row.key]
        return True, following

    def _pop(self, key: str, before: R | None) -> R | None:
        """Return the parked row of a key that comes first, if it comes before some."""
        heap = self._parked.get(key, [])
        while heap and heap[0][3] not in self._serials:
            heapq.heappop(heap)
        if heap and (before is None or heap[0][-1].order() < before.order()):
            self._serials.discard(heap[0][3])
            return heapq.heappop(heap)[-1]
        if not heap:
            self._parked.pop(key, None)
        return None


class Turns:
    """The turns of the keys of a fair topic: start-time fair queueing (Goyal, Vin, Cheng 1996).

    A message that becomes ready comes one turn after the last of its key, and not before the turn
    that was taken last: so before it there are, of each other key, about as many as of its own.
    """

    def __init__(self) -> None:
        self._now = 0
        self._last: dict[str | None, int] = {}

    def next(self, key: str | None) -> int:
        """Return the turn of a message that has become ready."""
        turn = max(self._now, self._last.get(key, -1) + 1)
        self._last[key] = turn
        return turn

    def take(self, turn: int) -> None:
        """Note that a message was taken in its turn."""
        if turn > self._now:
            self._now = turn
            if len(self._last) > 64 and self._now % 64 == 0:
                self._last = {key: last for key, last in self._last.items() if last >= turn}
