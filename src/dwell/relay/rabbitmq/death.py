"""The ``x-death`` header that RabbitMQ writes for an expired message, written here in its place.

One entry a queue and reason, the latest first, with a count.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

_REASON = "expired"
_MOST_COUNT = 2**63 - 1


def expired(
    headers: dict[str, Any], *, queue: str, exchange: str, routing_key: str, after_ms: int
) -> dict[str, Any]:
    """Return the headers of a message that will have expired in a queue after a time."""
    found = headers.get("x-death")
    deaths = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    before = next((one for one in deaths if _is_same(one, queue)), None)
    if before is not None:
        count = before.get("count")
        # The sender may have written any number there.
        times = min(count + 1, _MOST_COUNT) if isinstance(count, int) else 1
        again = {**before, "count": times}
        return {**headers, "x-death": [again, *(one for one in deaths if one is not before)]}
    entry = {
        "count": 1,
        "reason": _REASON,
        "queue": queue,
        "time": datetime.now(UTC) + timedelta(milliseconds=after_ms),
        "exchange": exchange,
        "routing-keys": [routing_key],
        "original-expiration": str(after_ms),
    }
    first = {
        "x-first-death-exchange": exchange,
        "x-first-death-queue": queue,
        "x-first-death-reason": _REASON,
    }
    return {**headers, **({} if deaths else first), "x-death": [entry, *deaths]}


def _is_same(entry: dict[str, Any], queue: str) -> bool:
    return entry.get("queue") == queue and entry.get("reason") == _REASON
