"""The end of the books, and their comparison with the server at that position."""

from collections.abc import Iterator
from typing import NamedTuple

import dwell
from dwell.errors import StoreError
from dwell.message import Kind
from dwell.spark.pipelines.books import Account, Books


class Closing(NamedTuple):
    """The server's counts at one moment, which is also a position in its events.

    ``pending`` and ``dead`` are by topic.
    """

    position: int
    totals: dict[str, int]
    pending: dict[str, int]
    dead: dict[str, int]


class Check(NamedTuple):
    """One line of the report: a value of the books, and the value that it must equal."""

    what: str
    books: int
    other: int
    holds: bool


def closing(url: str) -> Closing:
    """Ask the server for its counts.

    A server in use changes during a read. But it returns all counts at once, and events are
    numbered from 0 without a gap: their total is the position of the counts. So the counts are read
    first, then all events up to that position, and later events wait for the next run. Both
    describe the same moment, so there are no false alarms.
    """
    with dwell.open(url) as queue:
        stats = queue.stats()
        position = sum(stats.totals.values())
        # Counts may include events that a power cut would undo; an event that can be read is safe.
        if position and queue.events(position - 1, limit=1).next_position < position:
            raise StoreError(
                f"the server counts {position} events and does not have the last of them: "
                "it was started anew just now; run the audit again"
            )
    topics = stats.topics.items()
    pending = {name: counts.delayed + counts.ready + counts.leased for name, counts in topics}
    return Closing(position, dict(stats.totals), pending, {n: c.dead for n, c in topics})


def oldest(url: str) -> int:
    """Return the position of the oldest event that the server still has."""
    with dwell.open(url) as queue:
        return queue.events(0, limit=1).first_position


def absent(books: Books, closing: Closing) -> int:
    """Return how many messages are in the books and not in the server."""
    return sum(
        max(account.pending - closing.pending.get(topic, 0), 0)
        + max(account.dead - closing.dead.get(topic, 0), 0)
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
    """Compare the books with the server's counts at the same position."""
    totals = closing.totals
    gone = totals.get(str(Kind.ACK), 0) + totals.get(str(Kind.CANCEL), 0)
    pending, dead = sum(closing.pending.values()), sum(closing.dead.values())
    put = totals.get(str(Kind.PUT), 0)
    what = "the server's own: put = acked + cancelled + dead + pending"
    yield Check(what, put, gone + pending + dead, put == gone + pending + dead)
    yield _none("messages that the server no longer has", absent(books, closing))
    if not books.is_from_start:
        # Events before the start of the books are unknown here, and the server counts them.
        yield _most("pending, at most the server's", books.total.pending, pending)
        yield _most("dead, at most the server's", books.total.dead, dead)
        return
    yield _same("pending, by the server", books.total.pending, pending)
    yield _same("dead, by the server", books.total.dead, dead)
    for kind in Kind:
        yield _same(f"events: {kind}", books.kinds.get(str(kind), 0), totals.get(str(kind), 0))
    yield _none("topics that differ from the server's", _different(books, closing))


def _different(books: Books, closing: Closing) -> int:
    topics = books.topics.keys() | closing.pending.keys()
    nothing = Account()
    return sum(
        (account.pending, account.dead) != (closing.pending.get(t, 0), closing.dead.get(t, 0))
        for t in topics
        for account in [books.topics.get(t, nothing)]
    )


def _none(what: str, count: int) -> Check:
    return Check(what, count, 0, count == 0)


def _same(what: str, ours: int, theirs: int) -> Check:
    return Check(what, ours, theirs, ours == theirs)


def _most(what: str, ours: int, theirs: int) -> Check:
    return Check(what, ours, theirs, ours <= theirs)
