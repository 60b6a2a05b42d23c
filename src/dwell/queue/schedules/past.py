"""Past runs: the messages that a schedule has put, and what became of them, by the event log."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from dwell.batch.events import Event, Events
from dwell.message import Kind
from dwell.queue.carrier import Carrier
from dwell.queue.lookback import pages_before
from dwell.queue.schedules.schedule import Schedule, moment_of

#: The meanings of a last event; after all others a message waits for a taker.
_ENDS = {
    Kind.TAKE: "leased",
    Kind.ACK: "done",
    Kind.CANCEL: "cancelled",
    Kind.BURY: "dead",
    Kind.EXHAUST: "dead",
    Kind.EXPIRE: "dead",
}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a schedule: its moment, when it was put, and its last event.

    ``state`` is ``waiting``, ``leased``, ``done``, ``dead`` or ``cancelled``; ``last`` is the word
    of the last event, which came at ``last_ms``. All moments are epoch milliseconds.
    """

    id: str
    moment_ms: int
    put_ms: int
    state: str
    last: str
    last_ms: int
    attempt: int


class PastRuns(NamedTuple):
    """Runs, the latest put first. They are all that were asked for, or kept, if ``is_whole``."""

    runs: list[Run]
    is_whole: bool


async def past_runs(queue: Carrier, schedule: Schedule, count: int, most_s: float) -> PastRuns:
    """Return the last runs of a schedule; a search ends after ``most_s`` seconds."""
    ends_s = time.monotonic() + most_s
    latest: dict[str, Event] = {}
    runs: dict[str, Run] = {}
    async for _, events, is_first in pages_before(queue.events):
        for event, moment_ms in _of(schedule, events):
            last = latest.setdefault(event.id, event)
            if event.kind is Kind.PUT and event.id not in runs:
                runs[event.id] = _run(event, moment_ms, last)
                if len(runs) == count:
                    return PastRuns([*runs.values()], True)
        if not is_first and time.monotonic() >= ends_s:
            return PastRuns([*runs.values()], False)
    return PastRuns([*runs.values()], True)


def _of(schedule: Schedule, events: Events) -> Iterator[tuple[Event, int]]:
    """Yield the events of messages of a schedule with their moments, the latest first."""
    begin, topics = f"{schedule.name}@", events.topics
    places = [at for at, id_ in enumerate(events.ids) if id_.startswith(begin)]
    for at in reversed([at for at in places if topics[at] == schedule.topic]):
        event = events[at]
        if (moment_ms := moment_of(event.id[len(begin) :])) is not None:
            yield event, moment_ms


def _run(put: Event, moment_ms: int, last: Event) -> Run:
    return Run(
        id=put.id,
        moment_ms=moment_ms,
        put_ms=put.time_ms,
        state=_ENDS.get(last.kind, "waiting"),
        last=str(last.kind),
        last_ms=last.time_ms,
        attempt=last.attempt,
    )
