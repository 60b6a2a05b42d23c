"""The store contract: transitions, in batches.

A store is a state machine over messages (:mod:`dwell.message` has its arrows). One call carries
many messages; what a call returns is already as safe as the store promises. The queue above has
validated every value, so a store checks only what depends on its state.

Rules that every store keeps, proved by :mod:`dwell.testing`:

* a message that was accepted is in exactly one state until it is gone; none is taken early;
* the order of taking within a topic is priority, then due, then arrival; a store of several shards
  keeps it within each of them, and messages of one key are in one shard;
* a receipt is good until the message is acked, released, buried, or its lease ends; after that it
  answers ``stale`` and changes nothing;
* every verb first does what :meth:`Store.tick` would do now, so that it sees no lease that has
  ended and no message that has expired;
* arrival is the order of creation; release, lease end, kick, reschedule and replace keep it.
  Release, kick, reschedule and replace set the due; a lease that ends leaves it as it was, and so
  does a release that neither counts nor delays;
* replace starts the message anew (attempt 0, no last_error) with everything that the put says;
* a waiting message whose ``expires_ms`` is at or before now is dead, with last_error "expired";
  one whose last lease ended is dead, with last_error "lease ended";
* no verb lets a message fall due when it will have expired: kick and reschedule clear an expiry
  that is not after the new due, and a release for which it is buries the message, with last_error
  "expired" unless the release has an error of its own;
* ``lease_ms`` 0 and ``max_attempts`` 0 of a message mean what its topic's
  settings say when it matters;
* ids that the queue made are not remembered; ids of the caller's are, for the topic's remember_ms
  after the ack, and only ``on_conflict="keep"`` looks at that;
* a message that the disk has damaged stops no other: take, take_ids, peek, held, scan and sweep
  leave it out;
* what take, take_ids, peek, scan and sweep answer with is not much more than MAX_BATCH_BYTES, if
  it is not one message: fewer are given than there are, and the next call goes on;
* the settings ``rate``, ``most_leased``, ``ordered`` and ``fair`` bound what ``take`` and
  ``take_ids`` give; what they hold back is ready. Of an ordered topic, a message that was taken
  holds back the others of its key until it is gone or dead; else the first of them by the order
  of taking may be taken, and ``peek`` shows no other;
* verbs by id answer the truth for each id, in the order the ids were given. An id that stands
  twice in one batch is treated as in two batches, one after the other. With ``versions``, one for
  each id, a message that changed since a scan gave its version is left alone: it counts as
  unknown, or as leased when it is.

All arrays are NumPy arrays of one dimension and of the batch's length, unless a shape is given.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.changed import Changed
from dwell.batch.events import EventPage
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import PutAnswer, Puts
from dwell.batch.selection import Selection
from dwell.batch.spans import Spans
from dwell.batch.stats import ALL_TOPICS, Holder, Stale, Stats, TopicStats
from dwell.batch.sweep import Sweep, Wanted
from dwell.clock import Clock
from dwell.errors import StoreDamaged
from dwell.histogram import Histogram
from dwell.message import (
    I64,
    MAX_BATCH_MESSAGES,
    U8,
    U64,
    Message,
    Result,
    State,
    TopicSettings,
)

#: What a release is told of its messages: one delay in milliseconds for all or one for each, None
#: for the topic's own; and one error for all or one for each, None to keep what there is.
Delays: TypeAlias = int | I64 | None
Errors: TypeAlias = str | Sequence[str | None] | None

#: How many messages a store cancels in one part of a clear, if it has no way of its own.
_CLEARED = 1_000


class Store(ABC):
    """What keeps the messages. Every verb is a batch; the docstrings say only what is special.

    ``wake(topic, count)`` is called when ``count`` more messages of a topic can be taken, and
    ``plan()`` when the next deadline may have come nearer. The queue sets both before ``open``, and
    ``waiting``.
    """

    clock: Clock
    #: The number that stands in the upper half of the first word of each receipt of this store.
    number: int = 0
    #: Whether several instances may have the store open at once, also in one process.
    is_shared: bool = False
    #: What only those know who can read the store, of an open one; the same for all its instances.
    secret: bytes = b""
    #: Whether put, ack, release, bury, cancel, kick and reschedule are told call numbers, a repeat
    #: of which answers what was done the first time (:mod:`dwell.batch.calls`): put as a column,
    #: the others as ``calls``, one for each message, 0 for one without.
    keeps_calls: bool = False
    #: Whether :meth:`stored_bytes` tells.
    counts_bytes: bool = False
    #: How many messages of several callers are worth one call.
    most_joined: int = MAX_BATCH_MESSAGES
    #: How many small calls are worth having under way at a time.
    most_small: int = 10_000
    #: How long things took, by what they are called in the metrics, in seconds.
    timings: Mapping[str, Histogram] = MappingProxyType({})
    wake: Callable[[str, int], None] = staticmethod(lambda topic, count: None)
    plan: Callable[[], None] = staticmethod(lambda: None)
    #: Returns the topics that somebody waits for, for a store that other instances share.
    waiting: Callable[[], Collection[str]] = staticmethod(tuple)

    async def is_made(self) -> bool:
        """Tell, before it is opened, whether the store is there; nothing is written.

        Raises StoreError.
        """
        return True

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready; raises StoreError."""

    @abstractmethod
    async def close(self) -> None:
        """Write down what is unwritten and let go of everything."""

    def check(self) -> None:  # noqa: B027 - a store that cannot break has nothing to say
        """Raise the StoreError that a verb would meet, when the store is known to be broken."""

    async def condition(self) -> dict[str, int | str]:
        """Return what can be said of the files or engines under the store, units last in names."""
        return {}

    @abstractmethod
    def ready(self, topic: str) -> int:
        """Return how many messages of a topic could be taken after the last verb or tick."""

    @abstractmethod
    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages; ``on_conflict`` is ``keep``, ``replace`` or ``error``.

        A message with a version replaces only what has that version, and is not put otherwise: it
        answers ``unknown``, or ``leased`` where the other is.

        ``error`` raises IdExists, and a full topic with ``on_full=refuse`` raises TopicFull; then
        nothing of the batch was put. A store of several shards, each of which refuses by itself,
        raises PartlyPut when only some did.
        """

    @abstractmethod
    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease at most ``limit`` ready messages, topic after topic as listed.

        ``lease_ms`` 0 means each message's own, or else its topic's. Answers at once, even if
        with none. A paused topic gives none.
        """

    @abstractmethod
    async def take_ids(
        self,
        topic: str,
        ids: Sequence[bytes],
        lease_ms: int,
        owner: str,
        versions: U64 | None = None,
    ) -> Batch:
        """Lease those of some messages that are ready, in the order of their ids here.

        The others are left out; a paused topic gives none.
        """

    @abstractmethod
    async def peek(self, topic: str, limit: int) -> Batch:
        """Return the ready messages that a take would give first, and leave them as they are.

        A paused topic shows what it would give.
        """

    @abstractmethod
    async def held(self, owner: str) -> Batch:
        """Return again what ``owner`` holds under lease, with receipts, in order of due."""

    @abstractmethod
    async def held_page(self, owner: str, cursor: Cursor | None, limit: int) -> Page:
        """Return at most ``limit`` messages that ``owner`` holds, or some more, after ``cursor``.

        What is held during all of it is given once. A page is in order of due; what one page has
        may be due before what an earlier one had. A page without messages may have a cursor.
        """

    @abstractmethod
    async def ack(self, receipts: U64) -> U8:
        """Forget messages that are done: ``acked`` or ``stale``."""

    @abstractmethod
    async def release(
        self,
        receipts: U64,
        delay_ms: Delays,
        error: Errors,
        *,
        counted: bool,
        priority: int | None = None,
    ) -> U8:
        """Give messages back: ``released``, ``buried`` (attempts used up, or expired) or ``stale``.

        The due becomes now + ``delay_ms``, one for all or one for each; None takes the topic's
        retry delay for the attempt.
        ``counted=False`` gives the attempt back, so that it never buries; with a delay of 0 the due
        stays too, so that the message is as it was before the take. ``error``, one for all or one
        for each, is kept as ``last_error``, ``priority`` as the message's own; None keeps the one
        there is.
        """

    @abstractmethod
    async def touch(self, receipts: U64, lease_ms: int) -> U8:
        """Let leases end ``lease_ms`` from now: ``touched`` or ``stale``.

        0 means each message's own lease or its topic's, whatever it was taken with.
        """

    @abstractmethod
    async def bury(self, receipts: U64, reason: str | None, *, priority: int | None = None) -> U8:
        """Set messages aside as dead: ``buried`` or ``stale``."""

    @abstractmethod
    async def kick(
        self, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None = None
    ) -> U8:
        """Bring dead messages back, each with a due of its own: ``kicked`` or ``unknown``.

        A due that has passed becomes now. Their attempts count from 0 again.
        """

    @abstractmethod
    async def cancel(self, topic: str, ids: Sequence[bytes], versions: U64 | None = None) -> U8:
        """Forget messages that nobody has taken: ``cancelled``, ``leased`` or ``unknown``."""

    @abstractmethod
    async def reschedule(
        self, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None = None
    ) -> U8:
        """Change when messages fall due: ``moved``, ``leased`` or ``unknown`` (also when dead)."""

    async def outcomes(self, calls: U64) -> U8:
        """Return what was done for repeated calls the first time, 0 where nothing was."""
        return np.zeros(len(calls), np.uint8)

    @abstractmethod
    async def get(
        self, topic: str, ids: Sequence[bytes]
    ) -> "Sequence[Message | StoreDamaged | None]":
        """Return each message (without receipts), or None where the id is unknown.

        In the place of one that the disk has damaged stands the error that names it.
        """

    @abstractmethod
    async def named(self, numbers: U64) -> list[tuple[str, str] | None]:
        """Return topic and id of the message of each number, or None where there is none."""

    async def versions(self, numbers: U64) -> U64 | None:
        """Return the version of the message of each number, 0 where there is none.

        None is from a store that finds messages by id only: then a verb that follows changes
        whatever has the id by then.
        """
        return None

    @abstractmethod
    async def taken_from(self, receipts: U64) -> list[str | None]:
        """Return the topic of the message of each receipt, or None where that is no longer good."""

    @abstractmethod
    async def scan(self, topic: str, state: State, cursor: Cursor | None, limit: int) -> Page:
        """Return messages of one state, ordered by due, then arrival, from after ``cursor``."""

    @abstractmethod
    async def sweep(self, wanted: Wanted, start: int, stop: int, limit: int) -> Sweep:
        """Return at most ``limit`` messages whose places are from ``start`` to before ``stop``.

        A message keeps its place, a number from 0 on, until it is gone. So what is there during all
        of a sweep is given once, and parts of one can run side by side. An answer may hold fewer
        than ``limit`` messages, or none, and yet not be the last.
        """

    async def clear_part(self, topic: str, place: int) -> tuple[int, int | None]:
        """Cancel messages of a topic that nobody has taken, some from a place on.

        Returns how many, and the place to go on with, None after the last. Each message that is
        there during all of it is cancelled, whatever comes and goes.
        """
        wanted = Wanted(topics=(topic,), states=(State.DELAYED, State.READY, State.DEAD))
        sweep = await self.sweep(wanted, place, 2**63 - 1, _CLEARED)
        ids = [id_.encode() for id_ in sweep.messages.ids]
        results = await self.cancel(topic, ids) if ids else np.zeros(0, np.uint8)
        return int(np.count_nonzero(results == Result.CANCELLED)), sweep.next_place

    @abstractmethod
    async def events(self, position: int, limit: int) -> EventPage:
        """Return at most ``limit`` events from ``position`` on."""

    @abstractmethod
    async def stats(self) -> Stats:
        """Return the counts."""

    async def stored_bytes(self) -> dict[str, int]:
        """Return how many bytes the messages of each topic have: ids of callers, extras, bodies.

        It lets others have their turn, so what comes or goes meanwhile may count or not. A store
        that does not count them says so by ``counts_bytes``.
        """
        raise NotImplementedError

    async def count_urgent(self, topic: str, priority: int) -> int:
        """Return how many ready messages of a topic come before those of a priority.

        A store that has to look at the messages for that may stop at MAX_BATCH_MESSAGES.
        """
        if (await self.settings(topic)).ordered:
            # A peek shows one of each key.
            page = await self.scan(topic, State.READY, None, MAX_BATCH_MESSAGES)
            found = page.messages
        else:
            found = await self.peek(topic, MAX_BATCH_MESSAGES)
        return int((found.priority < priority).sum())

    async def sizes(self, topic: str) -> list[TopicStats]:
        """Return the counts of one topic, an entry for each shard that the store has."""
        return [(await self.stats()).topics.get(topic, TopicStats())]

    @abstractmethod
    async def count_due(self, topics: Sequence[str], spans: Spans) -> I64:
        """Return how many delayed messages fall due in each span; no topics means all.

        It lets others have their turn, so what is moved meanwhile may count twice or not at all.
        """

    @abstractmethod
    async def oldest_ready(self) -> dict[str, int]:
        """Return since when, by topic, the message that waits longest for a taker has been due.

        Topics without a ready message are left out.
        """

    @abstractmethod
    async def holders(self, limit: int, prefixes: tuple[str, ...] = ALL_TOPICS) -> list[Holder]:
        """Return who has messages under lease, those with the most first, at most ``limit``.

        Only topics count whose names begin as one of ``prefixes`` says.
        """

    async def find_stale(self, *, repair: bool = False, limit: int = 1000) -> list[Stale]:
        """Compare the parts of the store; return at most ``limit`` things that only some know.

        With ``repair`` those are put right: of a message whose body is there nothing is lost, it
        stands again where its state says; what has no body, or is no message, is forgotten.
        """
        return []

    @abstractmethod
    async def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        """Change some of a topic's settings, by name, and return all that hold then.

        The others stay as they are when the change is made, whoever else changes them.
        """

    @abstractmethod
    async def settings(self, topic: str) -> TopicSettings:
        """Return what holds for a topic."""

    @abstractmethod
    async def tick(self, now_ms: int) -> int | None:
        """End leases, bury what expired, make ready what is due; return the next deadline.

        The deadline is after ``now_ms``, and never later than the next thing that time does; it may
        come before it, and None means that nothing waits for time.
        """


class RemoteStore(Store):
    """A store that another process keeps: its takes can wait, and it keeps its own time.

    ``wake`` and ``plan`` are never called, and ``tick`` is not needed.
    """

    is_shared = True
    #: While one batch travels, the next is made: a single large one would have both ends wait.
    most_joined = 8000

    @abstractmethod
    async def take_waiting(
        self, topics: Sequence[str], limit: int, lease_ms: int, owner: str, wait_ms: int
    ) -> Batch:
        """Lease messages as ``take`` does, but wait so long for the first one.

        When the call is cancelled, what it would have given is given back.
        """

    @abstractmethod
    async def find(
        self, topic: str, which: Selection, state: State, cursor: Cursor | None, limit: int
    ) -> Page:
        """Return at most ``limit`` messages of one state that match, from after ``cursor``.

        There may be more as long as the page has a cursor, even when it has no messages.
        """

    @abstractmethod
    async def take_where(
        self, topic: str, which: Selection, limit: int, lease_ms: int, owner: str
    ) -> Batch:
        """Lease at most ``limit`` ready messages that match.

        When the call is cancelled, what it would have given is given back.
        """

    @abstractmethod
    async def change(
        self, topic: str, verb: str, which: Selection, limit: int, words: Mapping[str, Any]
    ) -> Changed:
        """Do a verb to at most ``limit`` messages that match; ``words`` say how."""

    @abstractmethod
    async def clear(self, topic: str) -> int:
        """Cancel every message of a topic that nobody has taken; return how many."""

    def ready(self, topic: str) -> int:
        """Return 0: what is ready is known where the messages are."""
        return 0

    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease at most ``limit`` ready messages, without waiting."""
        return await self.take_waiting(topics, limit, lease_ms, owner, 0)
