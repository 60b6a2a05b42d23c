"""Recent: the latest events of each topic, from the end of the log."""

from typing import NamedTuple

import numpy as np

from dwell.batch.events import Events
from dwell.message import I64, MAX_BATCH_MESSAGES, Kind
from dwell.queue import Queue

#: How far back it looks, and at how many events at most.
WINDOW_MS = 30_000
_MOST = MAX_BATCH_MESSAGES
_KINDS = max(Kind) + 1


class Lately(NamedTuple):
    """Of one topic: events a second by kind, and the lateness of first takes.

    The percentiles are None without a first take.
    """

    rates: tuple[float, ...]
    late_p50_ms: int | None = None
    late_p99_ms: int | None = None


NOTHING = Lately((0.0,) * _KINDS)


async def lately(queue: Queue) -> dict[str, Lately]:
    """Return the events of each topic in the last seconds; of very many, the newest part.

    The rates are computed over the time that the part covers.
    """
    end = (await queue.events(0, 1)).end_position
    page = await queue.events(max(end - _MOST, 0), _MOST)
    now_ms, events = queue.clock.now_ms(), page.events
    since_ms = now_ms - WINDOW_MS
    first = int(np.searchsorted(events.time_ms, since_ms)) if len(events) else 0
    if not first and len(events) == _MOST:
        # The part is cut: it covers less than the window.
        since_ms = int(events.time_ms[0])
    span_s = max(now_ms - since_ms, 1) / 1000
    return _by_topic(events[first:], span_s)


def _by_topic(events: Events, span_s: float) -> dict[str, Lately]:
    numbers: dict[str, int] = {}
    topics = np.fromiter(
        (numbers.setdefault(topic, len(numbers)) for topic in events.topics), np.int64, len(events)
    )
    keys = topics * _KINDS + events.kind
    counts = np.bincount(keys, minlength=len(numbers) * _KINDS).reshape(-1, _KINDS)
    is_first = (events.kind == Kind.TAKE) & (events.attempt == 1)
    from_ms = _from_ms(events)[is_first]
    late_ms = np.maximum(events.time_ms[is_first] - from_ms, 0)
    lates = _percentiles(topics[is_first], late_ms, len(numbers))
    rates = (counts / span_s).tolist()
    return {name: Lately(tuple(rates[at]), *lates[at]) for name, at in numbers.items()}


def _from_ms(events: Events) -> I64:
    """Return from when each event's lateness counts: its due, or its put if that came later."""
    from_ms = events.due_ms.copy()
    is_put = (events.kind == Kind.PUT) | (events.kind == Kind.REPLACE)
    late = np.flatnonzero(is_put & (events.due_ms < events.time_ms))
    if len(late):
        names = [(events.topics[at], events.ids[at]) for at in late.tolist()]
        put_ms = dict(zip(names, events.time_ms[late].tolist(), strict=True))
        for at in np.flatnonzero(events.kind == Kind.TAKE).tolist():
            from_ms[at] = max(from_ms[at], put_ms.get((events.topics[at], events.ids[at]), 0))
    return from_ms


def _percentiles(topics: I64, late_ms: I64, size: int) -> list[tuple[int | None, int | None]]:
    """Return p50 and p99 for each topic."""
    order = np.lexsort((late_ms, topics))
    topics, late_ms = topics[order], late_ms[order]
    starts = np.searchsorted(topics, np.arange(size))
    counts = np.bincount(topics, minlength=size)
    found: list[tuple[int | None, int | None]] = []
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        places = [start + min(count * part // 100, count - 1) for part in (50, 99)]
        found.append((int(late_ms[places[0]]), int(late_ms[places[1]])) if count else (None, None))
    return found
