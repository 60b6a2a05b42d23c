"""The books: what the server noted, message by message, held against what is there and was told."""

from collections import Counter
from dataclasses import dataclass, field

from bench.soak.tally import TOPICS, Tally
from dwell.message import Kind
from dwell.queue import Queue

_PAGE = 10_000


@dataclass(slots=True)
class Books:
    """What the events of a store say. ``live`` are the messages that are not gone."""

    counts: Counter[Kind] = field(default_factory=Counter)
    live: set[tuple[str, str]] = field(default_factory=set)
    early: int = 0
    twice: int = 0
    first_position: int = 0

    async def read(self, queue: Queue) -> None:
        """Follow all events from the first one on."""
        position = 0
        while (page := await queue.events(position, _PAGE)).events:
            self.first_position = page.first_position
            for event in page.events:
                name = (event.topic, event.id)
                self.counts[event.kind] += 1
                if event.kind is Kind.PUT:
                    self.twice += name in self.live
                    self.live.add(name)
                elif event.kind in (Kind.ACK, Kind.CANCEL):
                    self.twice += name not in self.live
                    self.live.discard(name)
                elif event.kind is Kind.TAKE:
                    self.early += event.time_ms < event.due_ms
            position = page.next_position


async def audit(queue: Queue, tally: Tally) -> list[str]:
    """Return a line for each of the sums, those that are wrong marked as such."""
    books = Books()
    await books.read(queue)
    # Time goes on moving messages: in this order none of them can slip through.
    there: set[tuple[str, str]] = set()
    for state in ("leased", "delayed", "ready"):
        there |= await _names(queue, state)
    dead = await _names(queue, "dead")
    pending = len(there - dead)
    accepted, counts = books.counts[Kind.PUT], books.counts
    acked, cancelled = counts[Kind.ACK], counts[Kind.CANCEL]
    told = tally.acked + tally.cancelled + tally.deleted
    return [
        _line("accepted = acked + cancelled + dead + pending", accepted,
              acked + cancelled + len(dead) + pending),
        _line("live by the events = there", len(books.live), len(dead) + pending),
        _line("accepted = told to those who put", accepted, tally.created),
        _line("acked + cancelled = told to those who did", acked + cancelled, told),
        _line("taken before the due = 0", books.early, 0),
        _line("put or ended twice = 0", books.twice, 0),
        _line("events dropped = 0", books.first_position, 0),
    ]  # fmt: skip


async def _names(queue: Queue, state: str) -> set[tuple[str, str]]:
    return {
        (topic, id_)
        for topic in TOPICS
        async for page in queue.pages(topic, state, limit=_PAGE)
        for id_ in page.ids
    }


def _line(text: str, one: int, other: int) -> str:
    return f"{'ok   ' if one == other else 'WRONG'} {text}: {one:,} {other:,}"
