"""Retries: how long a message waits after an attempt that failed."""

from collections.abc import Sequence

from dwell.errors import DwellError

_S, _M, _H = 1_000, 60_000, 3_600_000

#: The waits before the second, third ... attempt: 15 for the usual 16 attempts.
RETRY_DELAYS_MS = (
    10 * _S,
    30 * _S,
    *(minutes * _M for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    1 * _H,
)


def retry_delay_ms(delays_ms: Sequence[int], attempt: int) -> int:
    """Return the wait after the failed attempt number ``attempt``, from 1; the last repeats."""
    return delays_ms[min(max(attempt, 1), len(delays_ms)) - 1] if delays_ms else 0


class NotNow(DwellError):
    """Raised by a handler whose message cannot be handled for ``delay_ms`` milliseconds.

    The worker tries again then, and the attempt does not count.
    """

    delay_ms = 1_000
