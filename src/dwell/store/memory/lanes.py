"""Lanes: which message of a key may be taken next, in topics that are ordered or fair."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from dwell.message import State, TopicSettings
from dwell.store.fairness import FairTurns

#: How many outdated parked entries may be kept.
_SPARE = 64


class Message(Protocol):
    """The fields of a row that lanes read or set.

    ``place`` is the number of its valid entry, 0 while it is not ready; ``turn`` is -1 without a
    turn.
    """

    state: State
    place: int
    turn: int

    @property
    def key(self) -> str | None:
        """The key of its put."""

    @property
    def is_begun(self) -> bool:
        """Whether it was taken, and is not done."""

    def order(self) -> tuple[int, int, int]:
        """Return the sort key of a topic's messages."""


R = TypeVar("R", bound=Message)


class Lane(Generic[R]):
    """One key: its messages that were taken and are not done, its front, and its parked rows."""

    __slots__ = ("begun", "is_held", "key", "parked", "standing")

    def __init__(self, key: str | None, *, is_held: bool) -> None:
        self.key = key
        #: Whether one message is taken at a time.
        self.is_held = is_held
        self.begun: dict[R, None] = {}
        self.standing: R | None = None
        self.parked: list[tuple[int, int, int, int, int, R]] = []

    def may_stand(self, row: R) -> bool:
        """Tell whether no taken message holds a row back."""
        if not self.begun:
            return True
        if any(begun.state is State.LEASED for begun in self.begun):
            return False
        # Several wait for a retry, because they were taken before the topic was ordered.
        return row is min(self.begun, key=lambda begun: begun.order())


class Lanes(Generic[R]):
    """The keys of a topic; one ready message of each key may be taken.

    The others are parked until it is gone. In an ordered topic no message of a key may be taken
    either while one was taken and is not done; messages without a key have no lane there, except
    for their turns if it is fair too.
    """

    def __init__(self, settings: TopicSettings, rows: Iterable[R], numbers: Iterator[int]) -> None:
        self._is_ordered = settings.ordered
        self._turns: FairTurns[str | None] | None = FairTurns() if settings.fair else None
        self._numbers = numbers
        self._lanes: dict[str | None, Lane[R]] = {}
        self._waiting = self._entries = 0
        #: How many ready messages cannot be taken.
        self.parked = 0
        for row in rows:
            if row.is_begun and (lane := self._lane(row.key)) is not None and lane.is_held:
                lane.begun[row] = None

    @property
    def are_fair(self) -> bool:
        """Whether keys take turns."""
        return self._turns is not None

    def _lane(self, key: str | None) -> Lane[R] | None:
        lane = self._lanes.get(key)
        if lane is None and (key is not None or self._turns is not None):
            is_held = self._is_ordered and key is not None
            lane = self._lanes[key] = Lane(key, is_held=is_held)
        return lane

    # --- taking ---------------------------------------------------------------------------------

    def may_go(self, row: R) -> bool:
        """Tell whether a ready row may be taken by its id."""
        lane = self._lanes.get(row.key)
        return lane is None or not lane.is_held or lane.standing is row

    def spend_turn(self, row: R, *, by_id: bool) -> None:
        """Note that a row was taken."""
        if self._turns is not None and row.turn >= 0:
            if by_id:
                self._turns.leave((row.key,), (1,))
            else:
                self._turns.take(row.turn, (row.key,), (1,))
            row.turn = -1

    def behind(self, row: R, limit: int) -> list[R]:
        """Return the messages that may be taken right behind a front, in order."""
        lane = self._lanes.get(row.key)
        if lane is None or lane.is_held:
            return []
        good = (entry for entry in lane.parked if entry[-1].place == entry[-2])
        return [entry[-1] for entry in heapq.nsmallest(limit, good)]

    def entries(self) -> Iterator[R]:
        """Yield the parked rows."""
        for lane in self._lanes.values():
            yield from (row for *_, place, row in lane.parked if row.place == place)

    # --- what changes ---------------------------------------------------------------------------

    def follow(self, row: R) -> tuple[bool, R | None]:
        """Note that a row has moved.

        Return whether its key was opened for another, and the new front, if there is one.
        """
        lane = self._lane(row.key)
        if lane is None:
            row.place = next(self._numbers) if row.state is State.READY else 0
            return False, row if row.place else None
        turn = self._leave(lane, row)
        if lane.is_held:
            lane.begun.pop(row, None)
            if row.is_begun:
                lane.begun[row] = None
        if row.state is State.READY:
            self._park(lane, row)
        following = self._settle(lane, turn)
        if lane.standing is None and not lane.begun:
            # The remaining entries of the lane are outdated.
            self._entries -= len(lane.parked)
            del self._lanes[lane.key]
        return lane.is_held and following not in (None, row), following

    def _leave(self, lane: Lane[R], row: R) -> int:
        """Remove a moving row from its lane, parked or front; return the turn that it freed."""
        if not row.place:
            return -1
        row.place = 0
        if lane.standing is not row:
            self._count(lane, -1)
            return -1
        lane.standing = None
        if row.state is State.LEASED:
            return -1
        turn, row.turn = row.turn, -1
        return turn

    def _settle(self, lane: Lane[R], turn: int) -> R | None:
        """Make the first of a lane its front, in a turn if one is free; return it if it is new."""
        best = self._first(lane)
        if best is not lane.standing:
            if lane.standing is not None:
                turn, lane.standing.turn = lane.standing.turn, -1
                self._park(lane, lane.standing)
            lane.standing = best
            if best is not None:
                # It is the first of the parked entries.
                heapq.heappop(lane.parked)
                self._entries -= 1
                self._count(lane, -1)
                turn, best.turn = -1, self._turn(lane, turn)
        else:
            best = None
        if turn >= 0 and self._turns is not None:
            self._turns.give_back((lane.key,), ((turn,),))
        return best

    def _first(self, lane: Lane[R]) -> R | None:
        """Return the row that is to be the front of a lane."""
        parked, best = lane.parked, lane.standing
        while parked and parked[0][-1].place != parked[0][-2]:
            heapq.heappop(parked)
            self._entries -= 1
        if parked and (best is None or parked[0] < self._entry(lane, best)):
            best = parked[0][-1]
        return best if best is not None and lane.may_stand(best) else None

    def _turn(self, lane: Lane[R], free: int) -> int:
        if self._turns is None or free >= 0:
            return free
        return self._turns.next((lane.key,), (1,))[0]

    def _park(self, lane: Lane[R], row: R) -> None:
        row.place = next(self._numbers)
        heapq.heappush(lane.parked, self._entry(lane, row))
        self._entries += 1
        self._count(lane, 1)
        if self._entries > 2 * self._waiting + _SPARE:
            self._throw_away()

    def _entry(self, lane: Lane[R], row: R) -> tuple[int, int, int, int, int, R]:
        """Return the sort key of a row in its lane: taken rows first, or by time of readiness."""
        if lane.is_held:
            return (not row.is_begun, *row.order(), row.place, row)
        return 0, 0, 0, 0, row.place, row

    def _count(self, lane: Lane[R], more: int) -> None:
        self._waiting += more
        self.parked += more * lane.is_held

    def _throw_away(self) -> None:
        """Drop the entries of rows that have moved since, because they keep bodies in memory."""
        for lane in self._lanes.values():
            lane.parked = [entry for entry in lane.parked if entry[-1].place == entry[-2]]
            heapq.heapify(lane.parked)
        self._entries = self._waiting
