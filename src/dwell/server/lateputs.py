"""Late puts: when messages were put whose due had passed by then, such as the rows of an import.

The lateness of their takes counts from the put: the time before is the producer's.
"""

from bisect import bisect_right, insort

import numpy as np

from dwell.message import I64, U64, Rows

#: How much before its put a message has to be due to be late by that.
_LATE_MS = 1_000
#: Puts within this time count as put together.
_TOGETHER_MS = 1_000
#: No message has a larger number.
_LAST = 2**64 - 1
_NONE: Rows = np.zeros(0, np.intp)
#: How many puts are remembered; the messages of those before count from their due.
_MOST_PUTS = 10_000


class LatePuts:
    """The late puts of one server, by the numbers of their messages."""

    def __init__(self) -> None:
        #: First number, last number, and time of each.
        self._puts: list[tuple[int, int, int]] = []
        self._last = (0, -1, 0)

    def __len__(self) -> int:
        return len(self._puts)

    def note(self, due_ms: I64, numbers: U64, now_ms: int) -> None:
        """Note messages that were just put; messages that were not created have the number 0."""
        if not len(due_ms) or int(due_ms.min()) >= now_ms - _LATE_MS:
            return
        late = numbers[(due_ms < now_ms - _LATE_MS) & (numbers > 0)]
        if not len(late):
            return
        first, last = int(late.min()), int(late.max())
        before = self._last
        if before[0] <= first <= before[1] + 1 and now_ms - before[2] <= _TOGETHER_MS:
            self._puts.remove(before)
            first, last, now_ms = before[0], max(last, before[1]), before[2]
        self._last = (first, last, now_ms)
        insort(self._puts, self._last)
        del self._puts[:-_MOST_PUTS]

    def late_ms(self, due_ms: int, number: int, now_ms: int) -> int:
        """Return how late a message is that is taken now, from its due or its late put."""
        late_ms = now_ms - due_ms
        if late_ms > _LATE_MS and self._puts:
            late_ms = min(late_ms, now_ms - self._put_of(number)[1])
        return max(late_ms, 0)

    def many_late_ms(self, due_ms: I64, numbers: U64, now_ms: int) -> I64:
        """Return how late messages are that are taken now, each from its due or its late put."""
        late_ms: I64 = np.maximum(now_ms - due_ms, 0)
        late = np.flatnonzero(late_ms > _LATE_MS) if self._puts else _NONE
        if len(late):
            late = late[np.argsort(numbers[late], kind="stable")]
            late_ms[late] = np.minimum(late_ms[late], now_ms - self._many_put_ms(numbers[late]))
        return late_ms

    def _many_put_ms(self, numbers: U64) -> I64:
        """Return when messages with ascending numbers were put late, 0 for the others.

        Messages of one put are looked up together.
        """
        found, at = np.zeros(len(numbers), np.int64), 0
        while at < len(numbers):
            last, put_ms = self._put_of(int(numbers[at]))
            stop = int(np.searchsorted(numbers, np.uint64(last), "right"))
            found[at:stop] = put_ms
            at = stop
        return found

    def _put_of(self, number: int) -> tuple[int, int]:
        """Return the last number of the put or of the gap that has a number, and when it was.

        The time of a gap is 0.
        """
        at = bisect_right(self._puts, (number, _LAST, 0))
        if at and self._puts[at - 1][1] >= number:
            return self._puts[at - 1][1:]
        return (self._puts[at][0] - 1 if at < len(self._puts) else _LAST), 0
