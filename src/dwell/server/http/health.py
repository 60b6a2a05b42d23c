"""Health: how the server and its store are, in figures and words for people."""

import math
import resource
from pathlib import Path

from dwell.errors import DwellError
from dwell.histogram import Histogram
from dwell.server.http.answer import Answer
from dwell.server.http.call import Call
from dwell.server.http.schemas.board import HealthAnswer, Timing


async def health(call: Call) -> Answer:
    """Say how the server and its store are: journal, snapshot, disk, and how long syncs take."""
    return call.answer(await health_of(call))


async def health_of(call: Call) -> HealthAnswer:
    """Return how the server and its store are; a store that has failed says less."""
    call.allow(None)
    service, told = call.service, dict[str, int | str]()
    problem = service.problem()
    try:
        told = await call.queue.store.condition()
    except DwellError as error:
        problem = problem or f"{type(error).__name__}: {error}"
    timings = {"lateness": service.lateness, **call.queue.store.timings}
    return HealthAnswer(
        problem,
        service.started_ms,
        service.in_flight.requests,
        len(call.waits),
        service.board.watchers,
        service.in_flight.refused,
        _memory_bytes(),
        told,
        {name: _timing(timing) for name, timing in timings.items()},
    )


def _timing(histogram: Histogram) -> Timing:
    count = sum(histogram.counts)
    mean_ms = round(1000 * histogram.sum / count, 3) if count else None
    return Timing(count, mean_ms, _ms(histogram.percentile(0.5)), _ms(histogram.percentile(0.99)))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else round(1000 * seconds, 3)


def _memory_bytes() -> int:
    """Return how much memory the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
