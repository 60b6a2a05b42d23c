"""Taking jobs: the most urgent of several topics, in columns for delivery."""

import asyncio
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from dwell.batch.batch import Batch
from dwell.message import I64, U32, U64
from dwell.queue import Queue
from dwell.server.beanstalk.leaseends import Held
from dwell.slices import slices

#: How many jobs are examined in each of several topics at a time.
_MOST_HEADS = 100
#: How many topics are asked for ready jobs at a time, and how many jobs of several are examined.
_MOST_LOOKS, _MOST_EXAMINED = 200, 16
#: How many bytes of bodies one connection is sent at a time, as far as known in advance.
_MOST_BYTES = 4 * 1024 * 1024
_MOST_JOBS = 1000
#: The number of topic sets whose body sizes are remembered.
_MOST_LIMITS = 1000
#: The assumed size of a body before the first body was seen.
_FIRST_BODY_BYTES = 16 * 1024


class Taken:
    """Taken jobs, in the order of delivery."""

    __slots__ = ("bodies", "held", "now_ms", "numbers")

    def __init__(
        self, numbers: Sequence[int], bodies: Sequence[bytes], held: Sequence[Held], now_ms: int
    ) -> None:
        self.numbers = numbers
        self.bodies = bodies
        self.held = held
        self.now_ms = now_ms

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, start: int, end: int) -> "Taken":
        """Return some of the jobs."""
        return Taken(
            self.numbers[start:end], self.bodies[start:end], self.held[start:end], self.now_ms
        )

    @classmethod
    def of(cls, batches: Sequence[Batch], topics: Sequence[str], now_ms: int) -> "Taken":
        """Return the jobs of one or more takes from some topics, the most urgent first."""
        topic = topics[0] if len(topics) == 1 else None
        parts = [_columns(batch, topic, now_ms) for batch in batches if len(batch)]
        if not parts:
            return cls((), (), (), now_ms)
        if len(parts) == 1:
            return parts[0]
        jobs = [
            job for part in parts for job in zip(part.numbers, part.bodies, part.held, strict=True)
        ]
        numbers, bodies, held = zip(*(jobs[place] for place in _by_urgency(batches)), strict=True)
        return cls(numbers, bodies, held, now_ms)


def _columns(batch: Batch, topic: str | None, now_ms: int) -> Taken:
    assert batch.receipts is not None, "a take gives receipts"
    data = np.ascontiguousarray(batch.receipts).tobytes()
    receipts = [data[at : at + 16] for at in range(0, len(data), 16)]
    until_ms = batch.lease_until_ms
    # Only jobs of several topics are worth looking at the topic of each.
    topics = repeat(topic) if topic else batch.topics
    held = zip(receipts, topics, (until_ms - now_ms).tolist(), until_ms.tolist(), strict=False)
    return Taken(batch.numbers.tolist(), list(batch.bodies), list(held), now_ms)


class Portion:
    """How many jobs are sent to one connection at a time: few, if bodies are large."""

    def __init__(self) -> None:
        self._largest_bytes = float(_FIRST_BODY_BYTES)

    @property
    def most(self) -> int:
        """The number of jobs."""
        return max(min(int(_MOST_BYTES / self._largest_bytes), _MOST_JOBS), 1)

    def note(self, bodies: Sequence[bytes]) -> None:
        """Learn from the bodies of taken jobs; old values fade slowly."""
        largest = max(map(len, bodies), default=0)
        self._largest_bytes = max(largest, self._largest_bytes * 0.95, 1.0)


class Portions(dict[tuple[str, ...], Portion]):
    """The limits of the topics that are taken from."""

    def __missing__(self, topics: tuple[str, ...]) -> Portion:
        if len(self) >= _MOST_LIMITS:
            self.clear()
        limit = self[topics] = Portion()
        return limit


class Heads(NamedTuple):
    """The columns that order the first messages of topics, and the places of their topics."""

    numbers: U64
    due_ms: I64
    priority: U32
    places: I64

    @classmethod
    def of(cls, batch: Batch, place: int) -> "Heads":
        """Return the columns of messages of one topic."""
        return cls(batch.numbers, batch.due_ms, batch.priority, np.full(len(batch), place))


async def take_best(queue: Queue, topics: Sequence[str], limit: int) -> list[Batch]:
    """Take the most urgent messages over all topics, without waiting."""
    if not topics:
        return []
    if len(topics) == 1:
        return [await queue.take_at_once(topics, limit)]
    limit, ready = min(limit, _MOST_HEADS), list[str]()
    for some in slices(topics, _MOST_LOOKS):
        ready += await queue.store.with_ready(some)
        # A store that knows the answer has let no other task run.
        await asyncio.sleep(0)
    if len(ready) < 2:
        return [await queue.take(topic, limit) for topic in ready]
    takes = [queue.take(topic, share) for topic, share in await _shares(queue, ready, limit)]
    done = await asyncio.gather(*takes, return_exceptions=True)
    batches = [batch for batch in done if isinstance(batch, Batch)]
    if any(map(len, batches)):
        # The messages of one topic are delivered even if another topic failed.
        return batches
    for error in done:
        if isinstance(error, BaseException):
            raise error
    # Others were faster there, but the other topics may still have something.
    return [await queue.take_at_once(ready, limit)]


async def _shares(queue: Queue, topics: Sequence[str], limit: int) -> list[tuple[str, int]]:
    """Return how many of the most urgent messages of all are in each topic that has some."""
    best: list[Heads] = []
    for places in slices(range(len(topics)), max(_MOST_EXAMINED // limit, 1)):
        found = await asyncio.gather(*(queue.peek(topics[at], limit) for at in places))
        # Only the columns that order them are kept: bodies may be a megabyte each.
        heads = [*best, *map(Heads.of, found, places)]
        first = _by_urgency(heads)[:limit]
        best = [Heads(*(np.concatenate(column)[first] for column in zip(*heads, strict=True)))]
    shares: list[int] = np.bincount(best[0].places, minlength=len(topics)).tolist()
    return [(topic, share) for topic, share in zip(topics, shares, strict=True) if share]


def _by_urgency(batches: Sequence[Batch] | Sequence[Heads]) -> list[int]:
    """Return the places of all messages of some batches, the most urgent first."""
    names = ("numbers", "due_ms", "priority")
    columns = [np.concatenate([getattr(batch, name) for batch in batches]) for name in names]
    places: list[int] = np.lexsort(columns).tolist()
    return places
