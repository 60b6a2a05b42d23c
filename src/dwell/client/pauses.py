"""Pauses between the tries of one request: each twice as long, and a part of it is chance."""

import random
import time

#: The first pause.
FIRST_S = 0.05
_LONGEST_S = 2.0
#: The first pause if nothing listens: a try is cheap, and a killed server is back soon. Later
#: pauses are a part of the time that the server has been away.
_KNOCK_S = 0.03
_KNOCK_PART = 0.1


class Pauses:
    """The pauses of a request, up to a number of repeats.

    If nothing listens, tries in the middle of a pause do not count.
    """

    def __init__(self, retries: int) -> None:
        self._left = retries
        self._pause_s = FIRST_S
        self._began_s = self._ends_s = time.monotonic()
        #: Whether the last try was in the middle of a pause.
        self._is_knock = False

    def next_s(self, *, is_refused: bool, after_s: float = 0.0) -> float | None:
        """Return how long to wait now, ``after_s`` at least; None when it was the last try."""
        now_s = time.monotonic()
        if not self._is_knock or now_s >= self._ends_s:
            if not self._left:
                return None
            self._left -= 1
            self._ends_s = now_s + after_s + self._pause_s * (0.5 + random.random())
            self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        left_s = self._ends_s - now_s
        knock_s = max(_KNOCK_S, _KNOCK_PART * (now_s - self._began_s)) * (0.5 + random.random())
        self._is_knock = is_refused and knock_s < left_s
        return knock_s if self._is_knock else left_s
