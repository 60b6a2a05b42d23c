"""Fairness: the order in which the keys of a fair topic get their turns.

Start-time fair queueing (Goyal, Vin, Cheng 1996): a new ready message comes one turn after the last
of its key, and not before the current turn. So before it there are about as many messages of each
other key as of its own.
"""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

#: How many keys without future turns are kept.
_SPARE = 1_024
#: How many keys are looked at, beside those of new messages, before others go on.
_LOOKED_AT = 1_024


class FairTurns(Generic[Key]):
    """The turns of one topic, one for each message; it counts the future turns of each key.

    A message keeps its turn, even if others leave before it.
    """

    def __init__(self) -> None:
        self._now = 0
        self._last: dict[Key, int] = {}
        # While keys are forgotten: those not yet looked at.
        self._unseen: dict[Key, int] = {}
        self._most = _SPARE
        self._standing: dict[Key, int] = {}
        #: How many more takes the turn lasts at most; not known until the first of them.
        self._takes_left: int | None = None

    def next(self, keys: Sequence[Key], numbers: Sequence[int]) -> list[int]:
        """Return the first turn for each key with newly ready messages, ``numbers`` of each.

        Each further message of a key has the turn after the previous message.
        """
        if self._unseen or len(self._last) > self._most:
            self._forget(keys, 2 * len(keys) + _LOOKED_AT)
        now, last, standing = self._now, self._last, self._standing
        firsts = [max(now, last.get(key, -1) + 1) for key in keys]
        last.update(zip(keys, map(int.__add__, firsts, (n - 1 for n in numbers)), strict=True))
        for key, number in zip(keys, numbers, strict=True):
            standing[key] = standing.get(key, 0) + number
        return firsts

    def _forget(self, kept: Sequence[Key], most: int) -> None:
        """Drop keys whose turns are over; if too many remain, also keys without ready messages.

        Takes by id advance no turn, so many keys may have future turns without messages. At most
        ``most`` are looked at, more than new ones come: so it comes to an end, in parts that hold
        up nobody. ``kept`` are not dropped.
        """
        if not self._unseen:
            self._unseen, self._last = self._last, {}
        self._look_at(kept)
        unseen, last = self._unseen, self._last
        many, standing = 2 * len(self._standing) + _SPARE, self._standing
        for _ in range(min(most, len(unseen))):
            key, turn = unseen.popitem()
            if turn >= self._now and (len(last) < many or key in standing):
                last[key] = turn
        if not unseen:
            self._most = 2 * len(last) + _SPARE

    def _look_at(self, keys: Sequence[Key]) -> None:
        """Have the last turns of some keys at hand, while keys are forgotten."""
        if self._unseen:
            for key in keys:
                if (turn := self._unseen.pop(key, None)) is not None:
                    self._last[key] = turn

    def free(self, most: int) -> int:
        """Free at most ``most`` keys; return how many."""
        freed = 0
        for keys in (self._unseen, self._last, self._standing):
            while keys and freed < most:
                keys.popitem()
                freed += 1
        return freed

    def take(self, turn: int, keys: Sequence[Key], numbers: Sequence[int]) -> None:
        """Note that messages of each key were taken, ``numbers`` of each, the last in a turn.

        When a turn lasts for more takes than there were keys at its start, the next turn starts;
        otherwise new keys would always go before the waiting messages.
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
            # No message waits, so no key has had more than its share.
            self._takes_left, self._last, self._unseen = None, {}, {}

    def give_back(self, keys: Sequence[Key], turns: Sequence[Sequence[int]]) -> None:
        """Note that messages of each key left without a take, with their turns, last first.

        The last turns of a key become its next turns again. Once all messages of a key have left,
        turns given back earlier are free again, too.
        """
        self._look_at(keys)
        last = self._last
        for key, given in zip(keys, turns, strict=True):
            if key not in last:
                continue
            for turn in given:
                last[key] -= turn == last[key]
            if self._standing.get(key) == len(given):
                last[key] = min(last[key], self._now)
        self.leave(keys, list(map(len, turns)))
