"""The books of the flights job: each message through the event log, beside the data set."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

import dwell
from dwell import Kind
from examples.flights.plan import Flights
from examples.flights.replay import TOPIC, fails_once, has_no_address

_PAGE = 10_000
_CAUGHT_UP_MS = 20


class Outage(NamedTuple):
    """When the process was killed, and when it was at work again (epoch milliseconds)."""

    down_ms: int
    up_ms: int


class Check(NamedTuple):
    """One line of the books: what the queue says, what the data set says."""

    what: str
    queue: int
    data: int

    @property
    def holds(self) -> bool:
        """Whether both say the same."""
        return self.queue == self.data


@dataclass(slots=True)
class Books:
    """What became of everything.

    ``again`` counts the deliveries beyond the first by their reason; ``late_ms`` holds the
    lateness of each first delivery, ``outage_ms`` of those that were late because the process was
    down: from the kill until the worker has caught up.
    """

    accepted: int = 0
    acked: int = 0
    cancelled: int = 0
    dead: int = 0
    pending: int = 0
    moved: int = 0
    lost: int = 0
    early: int = 0
    deliveries: int = 0
    unexplained: int = 0
    again: Counter[str] = field(default_factory=Counter)
    late_ms: list[int] = field(default_factory=list)
    outage_ms: list[int] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    outage: Outage | None = None
    is_behind: bool = False

    @property
    def is_balanced(self) -> bool:
        """Whether nothing is lost, early or unexplained, and the data set agrees."""
        whole = self.acked + self.cancelled + self.dead + self.pending
        faults = self.lost + self.early + self.unexplained
        return self.accepted == whole and not faults and all(c.holds for c in self.checks)


class _Life:
    """What the events said so far of one message."""

    __slots__ = ("end", "freed_ms", "since", "taken_ms", "takes")

    def __init__(self) -> None:
        self.end: Kind | None = None
        self.since = Kind.PUT
        self.takes = 0
        self.taken_ms = 0
        self.freed_ms = 0


def audit(store: Path, flights: Flights, outage: Outage | None) -> Books:
    """Read the event log of a store and balance the books."""
    books = Books(outage=outage)
    lives: dict[str, _Life] = {}
    moved: set[str] = set()
    with dwell.open(store) as queue:
        counts = queue.stats().topics[TOPIC]
        books.pending = counts.delayed + counts.ready + counts.leased
        page = queue.events(0, limit=_PAGE)
        while len(page.events):
            for event in page.events:
                _enter(books, lives.setdefault(event.id, _Life()), event)
                if event.kind == Kind.MOVE:
                    moved.add(event.id)
            page = queue.events(page.next_position, limit=_PAGE)
    _close(books, lives, moved, flights)
    return books


def _enter(books: Books, life: _Life, event: dwell.Event) -> None:
    """Enter one event into the books."""
    kind = event.kind
    if kind == Kind.PUT:
        books.accepted += 1
    elif kind == Kind.TAKE:
        _enter_take(books, life, event)
    elif kind in (Kind.ACK, Kind.CANCEL, Kind.BURY, Kind.EXHAUST, Kind.EXPIRE):
        life.end = kind
    life.since = kind


def _enter_take(books: Books, life: _Life, event: dwell.Event) -> None:
    books.deliveries += 1
    late_ms = event.time_ms - event.due_ms
    books.early += late_ms < 0
    if life.takes:
        books.again[_reason(life, books.outage)] += 1
    else:
        is_late = _is_behind(books, event, late_ms)
        (books.outage_ms if is_late else books.late_ms).append(late_ms)
    life.takes += 1
    life.taken_ms = event.time_ms


def _is_behind(books: Books, event: dwell.Event, late_ms: int) -> bool:
    """Tell whether the worker is still at what fell due while the process was down."""
    if books.outage and not books.is_behind and not books.outage_ms:
        books.is_behind = event.time_ms > books.outage.down_ms
    if late_ms < _CAUGHT_UP_MS:
        books.is_behind = False
    return books.is_behind


def _reason(life: _Life, outage: Outage | None) -> str:
    """Return why a message is delivered again: what ended the delivery before."""
    if life.since == Kind.RELEASE:
        return "retry: the handler failed"
    if life.since == Kind.LAPSE and outage and life.taken_ms <= outage.down_ms:
        return "crash: the process was killed while it held the message"
    if life.since == Kind.LAPSE:
        return "lease ended while the handler was at work"
    return "unexplained"


def _close(books: Books, lives: dict[str, _Life], moved: set[str], flights: Flights) -> None:
    ends = Counter(life.end for life in lives.values())
    books.acked, books.cancelled = ends[Kind.ACK], ends[Kind.CANCEL]
    books.dead = ends[Kind.BURY] + ends[Kind.EXHAUST] + ends[Kind.EXPIRE]
    books.moved = len(moved)
    books.unexplained = books.again["unexplained"]
    books.lost = len(set(flights.ids) - lives.keys()) + ends[None] - books.pending
    flying = [name for name, gone in zip(flights.ids, flights.cancelled, strict=True) if not gone]
    buried = sum(map(has_no_address, flying))
    failing = sum(fails_once(name) and not has_no_address(name) for name in flying)
    books.checks = [
        Check("accepted = flights", books.accepted, len(flights)),
        Check("cancelled = flights that never left", books.cancelled, int(flights.cancelled.sum())),
        Check(
            "moved = flights 15 minutes late or more", books.moved, int((flights.delay > 0).sum())
        ),
        Check("dead = reminders without an address", books.dead, buried),
        Check("acked = all others", books.acked, len(flying) - buried),
        Check("retries = handlers that failed", books.again["retry: the handler failed"], failing),
    ]


def percentile(values: list[int], part: float) -> int:
    """Return a percentile; 0 of nothing."""
    return int(np.percentile(values, part)) if values else 0
