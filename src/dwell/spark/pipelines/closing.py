"""The end of the books, and their comparison with the server at that position."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

import dwell
from dwell import Stats, SyncQueue
from dwell.batch.events import KIND_WORDS
from dwell.errors import StoreError
from dwell.message import Kind
from dwell.spark.pipelines.books import Account, Books

#: How often a server in use is asked for its counts, until nothing happens meanwhile.
_TRIES = 5
_EVENTS_AT_ONCE = 10_000
#: The kinds of events after which a message is still pending.
_STILL = (Kind.TAKE, Kind.RELEASE, Kind.LAPSE, Kind.MOVE)


class Meanwhile(NamedTuple):
    """The events that happened while the server counted, of which its counts may have any part.

    ``kinds`` are all of them, ``topics`` those after which a message is in another count.
    """

    kinds: Mapping[str, int] = {}
    topics: Mapping[str, int] = {}

    @property
    def moved(self) -> int:
        """How many messages may be in another count."""
        return sum(self.topics.values())

    @property
    def events(self) -> int:
        """How many events happened."""
        return sum(self.kinds.values())


class Closing(NamedTuple):
    """The server's counts, and a position in its events that is within the time of the count.

    ``pending`` and ``dead`` are by topic. If nothing happened ``meanwhile``, they are the counts at
    exactly this position.
    """

    position: int
    totals: dict[str, int]
    pending: dict[str, int]
    dead: dict[str, int]
    meanwhile: Meanwhile = Meanwhile()


class Check(NamedTuple):
    """One line of the report: a value of the books, and the value that it must equal."""

    what: str
    books: int
    other: int
    holds: bool


def closing(url: str) -> Closing:
    """Ask the server for its counts.

    A server in use changes during a read, and a Redis counts shard after shard, and topic after
    topic. So its position is read before and after the counts: they include all events before the
    first, none behind the second, and an unknown part of those between. Without events between, the
    counts are those at this position; otherwise the least of some counts is returned. The audit
    compares only as exactly as this allows, so there are no false alarms.
    """
    with dwell.open(url) as queue:
        found = _Count.of(queue)
        for _ in range(_TRIES - 1):
            if found.begin == found.end:
                break
            found = min(found, _Count.of(queue), key=lambda one: one.end - one.begin)
        return found.closing(queue)


class _Count(NamedTuple):
    """Counts, and the positions before and after them."""

    begin: int
    stats: Stats
    end: int

    @classmethod
    def of(cls, queue: SyncQueue) -> Self:
        begin = _end(queue)
        stats = queue.stats()
        return cls(begin, stats, _end(queue))

    def closing(self, queue: SyncQueue) -> Closing:
        """Return the closing, with the events during the count."""
        total = sum(self.stats.totals.values())
        # An event that can be read is safe; a count may include one that a power cut has undone.
        if total > self.end:
            raise StoreError(
                f"the server counts {total} events and does not have the last of them: "
                "it was started anew just now; run the audit again"
            )
        topics = self.stats.topics.items()
        pending = {name: counts.delayed + counts.ready + counts.leased for name, counts in topics}
        dead = {name: counts.dead for name, counts in topics}
        # A server that counts all at one moment counted at the position that is the sum.
        position = max(total, self.begin)
        meanwhile = _between(queue, self.begin, self.end)
        return Closing(position, dict(self.stats.totals), pending, dead, meanwhile)


def _end(queue: SyncQueue) -> int:
    return queue.events(0, limit=1).end_position


def _between(queue: SyncQueue, begin: int, end: int) -> Meanwhile:
    """Return the events between two positions; raises StoreError if the server dropped them."""
    kinds, topics = Counter[str](), Counter[str]()
    while begin < end:
        page = queue.events(begin, limit=min(end - begin, _EVENTS_AT_ONCE))
        if page.first_position > begin or not len(page.events):
            raise StoreError(
                f"the server does not have its event {begin} any more, which happened while it "
                "counted; let it keep more events, or run the audit again"
            )
        for code, topic in zip(page.events.kind.tolist(), page.events.topics, strict=True):
            kinds[KIND_WORDS[code]] += 1
            if code not in _STILL:
                topics[topic] += 1
        begin = page.next_position
    return Meanwhile(kinds, topics)


def oldest(url: str) -> int:
    """Return the position of the oldest event that the server still has."""
    with dwell.open(url) as queue:
        return queue.events(0, limit=1).first_position


def absent(books: Books, closing: Closing) -> int:
    """Return how many messages are in the books and not in the server, at least."""
    moved = closing.meanwhile.topics
    return sum(
        max(account.pending - closing.pending.get(topic, 0) - moved.get(topic, 0), 0)
        + max(account.dead - closing.dead.get(topic, 0) - moved.get(topic, 0), 0)
        for topic, account in books.topics.items()
    )


def checks(books: Books, closing: Closing, begin: int) -> list[Check]:
    """Return all conditions; the books must not start after ``begin``.

    A table that has lost its start, or everything, would otherwise balance on its own. If ``begin``
    is queried after the events were read, all events from it on could be read.
    """
    first = _most("the first position, at most", books.first_position, begin)
    return [*_sums(books), first, *_faults(books), *_beside(books, closing)]


def _sums(books: Books) -> Iterator[Check]:
    total = books.total
    what = "accepted = acked + cancelled + dead + pending"
    yield Check(what, total.accepted, total.whole, total.accepted == total.whole)
    wrong = sum(account.accepted != account.whole for account in books.topics.values())
    yield _none("topics in which that does not hold", wrong)


def _faults(books: Books) -> Iterator[Check]:
    yield _none("events that the states do not allow", books.total.broken)
    yield _none("positions without an event", books.missing)
    yield _none("events that are there twice", books.repeated)
    yield _none("deliveries before the due", books.total.early)
    yield _none("deliveries while somebody had the message, or after its end", books.total.doubled)


def _beside(books: Books, closing: Closing) -> Iterator[Check]:
    """Compare the books with the server's counts, as exactly as events during these allow."""
    totals, meanwhile = closing.totals, closing.meanwhile
    gone = totals.get(str(Kind.ACK), 0) + totals.get(str(Kind.CANCEL), 0)
    pending, dead = sum(closing.pending.values()), sum(closing.dead.values())
    put = totals.get(str(Kind.PUT), 0)
    what = "the server's own: put = acked + cancelled + dead + pending"
    yield _same(what, put, gone + pending + dead, meanwhile.moved)
    yield _none("messages that the server no longer has", absent(books, closing))
    if not books.is_from_start:
        # Events before the start of the books are unknown here, and the server counts them.
        yield _most("pending, at most the server's", books.total.pending, pending, meanwhile.moved)
        yield _most("dead, at most the server's", books.total.dead, dead, meanwhile.moved)
        return
    yield _same("pending, by the server", books.total.pending, pending, meanwhile.moved)
    yield _same("dead, by the server", books.total.dead, dead, meanwhile.moved)
    for word in map(str, Kind):
        ours, theirs = books.kinds.get(word, 0), totals.get(word, 0)
        yield _same(f"events: {word}", ours, theirs, meanwhile.kinds.get(word, 0))
    yield _none("topics that differ from the server's", _different(books, closing))


def _different(books: Books, closing: Closing) -> int:
    topics = books.topics.keys() | closing.pending.keys()
    nothing = Account()
    return sum(
        max(
            abs(account.pending - closing.pending.get(t, 0)),
            abs(account.dead - closing.dead.get(t, 0)),
        )
        > closing.meanwhile.topics.get(t, 0)
        for t in topics
        for account in [books.topics.get(t, nothing)]
    )


def _none(what: str, count: int) -> Check:
    return Check(what, count, 0, count == 0)


def _same(what: str, ours: int, theirs: int, within: int) -> Check:
    return Check(what, ours, theirs, abs(ours - theirs) <= within)


def _most(what: str, ours: int, theirs: int, within: int = 0) -> Check:
    return Check(what, ours, theirs, ours <= theirs + within)
