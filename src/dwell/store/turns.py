"""Turns: in which order the keys of a fair topic have theirs.

Start-time fair queueing (Goyal, Vin, Cheng 1996): a message that becomes ready comes one turn after
the last of its key, and not before the turn that has come. So before it there are, of each other
key, about as many as of its own.
"""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

#: Keys that have no turn to come which are kept.
_SPARE = 1_024


class Turns(Generic[Key]):
    """The turns of one topic; it counts the messages that have one and are still ready."""

    def __init__(self) -> None:
        self._now = 0
        self._last: dict[Key, int] = {}
        self._most = _SPARE
        self._ready = 0
        #: After how many takes the next turn comes by itself; not known until the first of them.
        self._takes_left: int | None = None

    def next(self, keys: Sequence[Key], numbers: Sequence[int]) -> list[int]:
        """Return the first turns of so many messages of each key that have become ready.

        Each of the others of a key has the turn after the one before it.
        """
        now, last = self._now, self._last
        firsts = [max(now, last.get(key, -1) + 1) for key in keys]
        last.update(zip(keys, map(int.__add__, firsts, (n - 1 for n in numbers)), strict=True))
        self._ready += sum(numbers)
        if len(last) > self._most:
            self._last = {key: turn for key, turn in last.items() if turn >= now}
            self._most = 2 * len(self._last) + _SPARE
        return firsts

    def take(self, turn: int, number: int = 1) -> None:
        """Note that so many messages were taken, the last of them in a turn.

        Where a turn lasts for as many takes as messages were ready when it came, the next one
        comes, or else ever new keys would go before what waits for it.
        """
        left = (self._ready if self._takes_left is None else self._takes_left) - number
        if turn > self._now:
            self._now, left = turn, self._ready - number
        elif left <= 0:
            self._now, left = self._now + 1, self._ready - number
        self._takes_left = left
        self.leave(number)

    def leave(self, number: int = 1) -> None:
        """Note that messages were taken out of turn: their turns are used, but have not come."""
        self._ready -= number
        if self._ready <= 0:
            # Nobody waits, so nobody has had more than others.
            self._ready, self._takes_left, self._last = 0, None, {}

    def give_back(self, keys: Sequence[Key], numbers: Sequence[int]) -> None:
        """Note that so many messages of each key left otherwise than by a take."""
        last = self._last
        for key, number in zip(keys, numbers, strict=True):
            if key in last:
                last[key] -= number
        self.leave(sum(numbers))
