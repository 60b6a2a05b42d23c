"""The server's time, as a client knows it: answers set it, and a clock counts on from there."""

import math

from dwell.clock.clock import RealClock, elapsed_s

#: How much two clocks may drift apart; most differ by less than 100 parts in a million.
_DRIFT = 1e-4


class ServerClock(RealClock):
    """Tells the latest time that a server can have, at most a round trip after its true time.

    So a delay that a client counts from now never ends early by the server's clock, and the clocks
    of the machines need not agree. Only quick answers set the clock; slow answers, such as to takes
    that waited, do not. An answer whose time is impossible by this clock means that the server's
    clock was set, and sets this clock however slow it was. The exception is an answer whose request
    was sent before the last answer that set the clock arrived, as its time may be older.

    The clock stands still where a quicker answer would set it back, so that what was due now when a
    call was made is due now when its request is sent. It goes back only with the server's clock.
    """

    def __init__(self) -> None:
        self._ahead_ms = 0.0
        self._unsure_s = float("inf")
        self._heard_at = 0.0
        self._least_ahead_ms = 0.0
        self._told_ms = 0

    def now_ms(self) -> int:
        """Return the server's time; this machine's before the first answer."""
        if not self._heard_at:
            return super().now_ms()
        # The server cuts off parts of a millisecond, so they are rounded up here.
        self._told_ms = max(self._told_ms, math.ceil(elapsed_s() * 1000 + self._ahead_ms))
        return self._told_ms

    def least_ms(self) -> int:
        """Return the earliest time that the server can have now."""
        if not self._heard_at:
            return super().now_ms()
        drift_ms = (elapsed_s() - self._heard_at) * _DRIFT * 1000
        return math.floor(elapsed_s() * 1000 + self._least_ahead_ms - drift_ms)

    def hear(self, server_ms: int, asked_at: float) -> None:
        """Learn the server's time at some moment since the request (by elapsed_s)."""
        now = elapsed_s()
        took_s = now - asked_at
        unsure_s = self._unsure_s + (now - self._heard_at) * _DRIFT
        early_ms = server_ms - (asked_at * 1000 + self._ahead_ms)
        was_set = early_ms > took_s * 1000 + 1 or early_ms < -unsure_s * 1000 - 1
        if was_set and asked_at < self._heard_at:
            return
        if was_set:
            self._told_ms = 0
        if took_s <= unsure_s or was_set:
            self._ahead_ms = server_ms - asked_at * 1000
            self._least_ahead_ms = server_ms - now * 1000
            self._unsure_s, self._heard_at = took_s, now
