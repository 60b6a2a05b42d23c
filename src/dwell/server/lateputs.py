"""Late puts: when messages were put whose due had passed by then, such as the rows of an import.

The lateness of their takes counts from the put: the time before is the producer's.
"""

from bisect import bisect_right, insort

import numpy as np

from dwell.message import I64, U64

#: How much before its put a message has to be due to be late by that.
_LATE_MS = 1_000
#: Puts within this time count as put together.
_TOGETHER_MS = 1_000
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
            late_ms = min(late_ms, now_ms - self._put_ms(number))
        return max(late_ms, 0)

    def many_late_ms(self, due_ms: I64, numbers: U64, now_ms: int) -> I64:
        """Return how late messages are that are taken now, each from its due or its late put."""
        late_ms: I64 = np.maximum(now_ms - due_ms, 0)
        if self._puts:
            for at in np.flatnonzero(late_ms > _LATE_MS).tolist():
                late_ms[at] = self.late_ms(int(due_ms[at]), int(numbers[at]), now_ms)
        return late_ms

    def _put_ms(self, number: int) -> int:
        """Return when a message was put late, 0 when it was not."""
        at = bisect_right(self._puts, (number, 2**64, 0)) - 1
        if at < 0 or self._puts[at][1] < number:
            return 0
        return self._puts[at][2]
