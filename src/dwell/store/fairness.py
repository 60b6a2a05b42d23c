"""Fairness: in which order the keys of a fair topic have their turns.

Start-time fair queueing (Goyal, Vin, Cheng 1996): a message that becomes ready comes one turn after
the last of its key, and not before the turn that has come. So before it there are, of each other
key, about as many as of its own.
"""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

#: Keys that have no turn to come which are kept.
_SPARE = 1_024


class FairTurns(Generic[Key]):
    """The turns of one topic, each of one message; it counts those of each key that have not come.

    A message keeps its turn, whatever leaves before it.
    """

    def __init__(self) -> None:
        self._now = 0
        self._last: dict[Key, int] = {}
        self._most = _SPARE
        self._standing: dict[Key, int] = {}
        #: How many takes more the turn lasts at most; not known until the first of them.
        self._takes_left: int | None = None

    def next(self, keys: Sequence[Key], numbers: Sequence[int]) -> list[int]:
        """Return the first turns of so many messages of each key that have become ready.

        Each of the others of a key has the turn after the one before it.
        """
        now, last, standing = self._now, self._last, self._standing
        firsts = [max(now, last.get(key, -1) + 1) for key in keys]
        last.update(zip(keys, map(int.__add__, firsts, (n - 1 for n in numbers)), strict=True))
        for key, number in zip(keys, numbers, strict=True):
            standing[key] = standing.get(key, 0) + number
        if len(last) > self._most:
            self._forget()
        return firsts

    def _forget(self) -> None:
        """Forget keys whose turns are over; where that leaves too many, those that are not ready.

        Takes by ids let no turn come, so turns of many keys may be to come of which nothing is.
        """
        last = {key: turn for key, turn in self._last.items() if turn >= self._now}
        if len(last) > 2 * len(self._standing) + _SPARE:
            last = {key: last[key] for key in self._standing if key in last}
        self._last, self._most = last, 2 * len(last) + _SPARE

    def take(self, turn: int, keys: Sequence[Key], numbers: Sequence[int]) -> None:
        """Note that so many messages of each key were taken, the last of them in a turn.

        Where a turn lasts for more takes than there were keys when it came, the next one comes, or
        else ever new keys would go before what waits for it.
        """
        number, waiting = sum(numbers), len(self._standing)
        left = (waiting if self._takes_left is None else self._takes_left) - number
        if turn > self._now:
            self._now, left = turn, waiting - number
        elif left < 0:
            self._now, left = self._now + 1, waiting - number
        self._takes_left = left
        self.leave(keys, numbers)

    def leave(self, keys: Sequence[Key], numbers: Sequence[int]) -> None:
        """Note that messages were taken out of turn: their turns are used, but have not come."""
        standing = self._standing
        for key, number in zip(keys, numbers, strict=True):
            left = standing.pop(key, 0) - number
            if left > 0:
                standing[key] = left
        if not standing:
            # Nobody waits, so nobody has had more than others.
            self._takes_left, self._last = None, {}

    def give_back(self, keys: Sequence[Key], turns: Sequence[Sequence[int]]) -> None:
        """Note that messages of each key left otherwise than by a take, with turns, last first.

        The last turns of a key are its next ones again. Where all of it has left, so are those
        that were given back before.
        """
        last = self._last
        for key, given in zip(keys, turns, strict=True):
            if key not in last:
                continue
            for turn in given:
                last[key] -= turn == last[key]
            if self._standing.get(key) == len(given):
                last[key] = min(last[key], self._now)
        self.leave(keys, list(map(len, turns)))
