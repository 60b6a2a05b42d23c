"""Delays that grow, for retries: a formula in place of a list."""

import numpy as np

from dwell.errors import InvalidTime
from dwell.given import values
from dwell.given.values import Delay

#: More delays than any retry needs; a factor near 1 would give them without end.
_MOST = 1_000


def exponential(base: Delay, factor: float = 2.0, cap: Delay = "1h") -> tuple[str, ...]:
    """Return delays that begin with ``base`` and grow by a factor until they reach ``cap``.

    They are spans, for the ``retry`` of a worker's handler, or the ``retry_delays_ms`` of a topic;
    the last one repeats there. Raises InvalidTime for a base of 0, a cap below it, and a
    factor that is no number above 1 or takes more than 1000 steps.
    """
    first_ms, most_ms = values.positive_ms(base, "base"), values.delay_ms(cap, "cap")
    if most_ms < first_ms:
        raise values.refusal(InvalidTime, "cap", cap, "a span not below the base")
    is_number = isinstance(factor, int | float | np.integer | np.floating)
    if not is_number or isinstance(factor, bool) or not factor > 0:
        raise values.refusal(InvalidTime, "factor", factor, "a number above 1")
    # A factor that is larger reaches the cap at once as well.
    factor = float(min(factor, most_ms + 1))
    delays_ms, delay_ms = list[int](), float(first_ms)
    while delay_ms < most_ms and len(delays_ms) < _MOST:
        delays_ms.append(round(delay_ms))
        delay_ms *= factor
    if len(delays_ms) == _MOST:
        allowed = f"one that reaches the cap in fewer than {_MOST} steps"
        raise values.refusal(InvalidTime, "factor", factor, allowed)
    return tuple(f"{one}ms" for one in (*delays_ms, most_ms))
