"""The store contract: transitions, in batches.

A store is a state machine over messages (:mod:`dwell.message` has its arrows). One call carries
many messages; a result is as safe as the store promises when the call returns. The queue above has
validated every value, so a store checks only conditions that depend on its state.

Rules that every store keeps, proved by :mod:`dwell.testing`:

* an accepted message is in exactly one state until it is gone; no message is taken early;
* the order of taking within a topic is priority, then due, then arrival; a store of several shards
  keeps it within each of them, and messages of one key are in one shard;
* a receipt is good until the message is acked, released, buried, or its lease ends; after that it
  answers ``stale`` and changes nothing;
* every verb first does what :meth:`Store.tick` would do now, so that it sees no lease that has
  ended and no message that has expired;
* arrival is the order of creation; release, lease end, kick, reschedule and replace keep it.
  Release, kick, reschedule and replace set the due; a lease end does not change it, and neither
  does a release that neither counts nor delays;
* replace resets the message (attempt 0, no last_error) and takes all values from the put;
* a waiting message whose ``expires_ms`` is at or before now is dead, with last_error "expired"; a
  message whose last lease ended is dead, with last_error "lease ended";
* no verb lets a message fall due when it will have expired: kick and reschedule clear an expiry
  that is not after the new due, and a release with a due after the expiry buries the message, with
  last_error "expired" unless the release has an error of its own;
* ``lease_ms`` 0 and ``max_attempts`` 0 of a message stand for its topic's settings at the time
  when they matter;
* ids that the queue made are not remembered; callers' ids are, for the topic's remember_ms after
  the ack, and only ``on_conflict="keep"`` checks that;
* a result that an ack gives is kept for the topic's remember_ms after the ack, also for an id that
  the queue made, and until a message is put with the id; a topic that remembers nothing keeps none;
* a damaged message stops no other: take, take_ids, peek, held, scan and sweep leave it out;
* an answer of take, take_ids, peek, scan and sweep is not much larger than MAX_BATCH_BYTES, unless
  it is a single message: it has fewer messages than exist, and the next call continues;
* the settings ``rate``, ``most_leased``, ``ordered`` and ``fair`` limit the messages that ``take``
  and ``take_ids`` return; the others stay ready. In an ordered topic, a message that was taken
  holds back the others of its key until it is gone or dead; without such a message the first by the
  order of taking may be taken, and ``peek`` shows no other;
* verbs by id answer for each id, in the order of the ids. An id that is repeated in a batch is
  treated as in two batches, one after the other. With ``versions``, one for each id, a message that
  changed since a scan returned its version is left alone: it counts as unknown, or as leased when
  it is.

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
from dwell.batch.outcome import Outcome
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import PutAnswer, Puts
from dwell.batch.selection import Selection
from dwell.batch.spans import Spans
from dwell.batch.stats import ALL_TOPICS, Holder, Stale, Stats, TopicStats
from dwell.batch.sweep import Sweep, Wanted
from dwell.clock import Clock
from dwell.errors import DwellError, StoreDamaged
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

#: The arguments of a release for its messages: one delay in milliseconds for all or one for each,
#: None for the topic's own; and one error for all or one for each, None to keep the present error.
Delays: TypeAlias = int | I64 | None
Errors: TypeAlias = str | Sequence[str | None] | None
#: The results that an ack keeps: one for each message or None, or None for all.
AckResults: TypeAlias = Sequence[bytes | None] | None

#: How many messages a store without a method of its own cancels in one part of a clear.
_CLEARED = 1_000


class Store(ABC):
    """A store of messages. Every verb is a batch; the docstrings describe only the specifics.

    ``wake(topic, count)`` is called when ``count`` more messages of a topic can be taken,
    ``plan()`` when the next deadline may have come nearer, and ``ended(topic)`` when messages of a
    topic in ``watched()`` may have become done, dead or cancelled. The queue sets all of them
    before ``open``, and ``waiting``.
    """

    clock: Clock
    #: The number in the upper half of the first word of each receipt of this store.
    number: int = 0
    #: Whether several instances may have the store open at once, also in one process.
    is_shared: bool = False
    #: A secret of an open store, known only to processes that can read it; the same for all its
    #: instances.
    secret: bytes = b""
    #: Whether put, ack, release, bury, cancel, kick and reschedule take call numbers, so that a
    #: repeat returns the first results (:mod:`dwell.batch.calls`): put as a column, the others as
    #: ``calls``, one for each message, 0 for a message without one. Its takes have ``calls``, too:
    #: a number for each message in the order of the answer, for :meth:`undo_takes`.
    keeps_calls: bool = False
    #: Whether :meth:`take_ids` takes a ``limit``, so that many ids of which few may be taken need
    #: one call.
    limits_ids: bool = False
    #: Whether messages of one topic and id can be several, each with another key.
    parts_ids: bool = False
    #: Whether :meth:`stored_bytes` counts.
    counts_bytes: bool = False
    #: How many messages of several callers are joined into one call at most.
    most_joined: int = MAX_BATCH_MESSAGES
    #: The topics that one take returns messages of, at most.
    most_topics: int = 1 << 31
    #: How many small calls may be in progress at a time.
    most_small: int = 10_000
    #: Durations in seconds, by their names in the metrics.
    timings: Mapping[str, Histogram] = MappingProxyType({})
    wake: Callable[[str, int], None] = staticmethod(lambda topic, count: None)
    plan: Callable[[], None] = staticmethod(lambda: None)
    #: Returns the topics with waiting takers, for a store that other instances share.
    waiting: Callable[[], Collection[str]] = staticmethod(tuple)
    ended: Callable[[str], None] = staticmethod(lambda topic: None)
    #: Returns the topics whose messages' outcomes are waited for.
    watched: Callable[[], Collection[str]] = staticmethod(tuple)
    #: How long an end may go untold, so that who waits looks again; 0 if each is told.
    untold_ms: int = 0

    async def is_made(self) -> bool:
        """Tell, before it is opened, whether the store exists; writes nothing.

        Raises StoreError.
        """
        return True

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready; raises StoreError."""

    @abstractmethod
    async def close(self) -> None:
        """Write unwritten data and release everything."""

    def check(self) -> None:  # noqa: B027 - a store that cannot break has nothing to say
        """Raise the StoreError that a verb would meet, if the store is known to be broken."""

    async def condition(self) -> dict[str, int | str]:
        """Return facts about the files or engines of the store, units last in names."""
        return {}

    def away_of_receipt(self, receipt: bytes) -> int:
        """Return a number of the part of the store that a receipt needs, if it is away; else 0."""
        return 0

    def away_of_id(self, id_: bytes) -> int:
        """Return a number of the part of the store that an id needs, if it is away; else 0."""
        return 0

    @abstractmethod
    def ready(self, topic: str) -> int:
        """Return how many messages of a topic could be taken after the last verb or tick."""

    async def with_ready(self, topics: Sequence[str]) -> list[str]:
        """Return the topics with messages that could be taken now, in the given order.

        A store that does not know may return others, too.
        """
        return list(topics)

    @abstractmethod
    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages; ``on_conflict`` is ``keep``, ``replace`` or ``error``.

        A message with a version replaces only a message with that version, and is not put
        otherwise: it answers ``unknown``, or ``leased`` if the other is.

        ``error`` raises IdExists, and a full topic with ``on_full=refuse`` raises TopicFull; then
        nothing of the batch was put. A store of several shards, which can each refuse, raises
        PartlyPut when only some did.
        """

    @abstractmethod
    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease at most ``limit`` ready messages, topic after topic as listed.

        ``lease_ms`` 0 means each message's own, or else its topic's. Answers at once, even without
        messages. A paused topic gives none.
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
        """Lease some messages by id, if they are ready, in the order of the ids.

        The others are left out; a paused topic gives none. A store with ``limits_ids`` also takes
        ``limit``, how many it leases at most: the first that may be taken.
        """

    @abstractmethod
    async def peek(self, topic: str, limit: int) -> Batch:
        """Return the ready messages that a take would give first, without taking them.

        A paused topic shows the messages that it would give.
        """

    @abstractmethod
    async def held(self, owner: str) -> Batch:
        """Return again the messages that ``owner`` holds, with receipts, in order of due."""

    @abstractmethod
    async def held_page(self, owner: str, cursor: Cursor | None, limit: int) -> Page:
        """Return at most ``limit`` messages that ``owner`` holds, or some more, after ``cursor``.

        A message held during all pages is given once. A page is in order of due; a later page may
        have messages due before an earlier page's. A page without messages may have a cursor.
        """

    @abstractmethod
    async def ack(self, receipts: U64, results: AckResults = None, then: Puts | None = None) -> U8:
        """Delete messages that are done: ``acked`` or ``stale``.

        ``results``, one for each message or None, are kept for :meth:`results`. ``then`` is one
        message beside the ack of one: if that counts, it is put in the same step, before the ack,
        and kept where its id exists; a stale receipt puts nothing. Raises TopicFull, and
        InvalidInput if it has topic and id of the acked message, which would keep it out, or if
        the store cannot do both in one step; then neither is done.
        """

    @abstractmethod
    async def results(self, topic: str, ids: Sequence[bytes]) -> "Sequence[Outcome | DwellError]":
        """Return the outcome of each message, never ``gone``.

        An id without a message, a result or a memory is ``unknown``. A remembered id without a
        result is ``done``. A damaged result is represented by the error that names it, and over
        HTTP each by whatever error it has met.
        """

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
        """Give messages back: ``released``, ``buried`` (no attempts left, or expired) or ``stale``.

        The due becomes now + ``delay_ms``, one for all or one for each; None takes the topic's
        retry delay for the attempt. ``counted=False`` gives the attempt back, so that it never
        buries; with a delay of 0 the due stays too, so that the message is as it was before the
        take. ``error``, one for all or one for each, is kept as ``last_error``, ``priority`` as the
        message's own; None keeps the present value.
        """

    @abstractmethod
    async def touch(self, receipts: U64, lease_ms: int) -> U8:
        """Move the ends of leases to ``lease_ms`` from now: ``touched`` or ``stale``.

        0 means each message's own lease or its topic's, not the lease of the take.
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
        """Delete messages that are not leased: ``cancelled``, ``leased`` or ``unknown``."""

    @abstractmethod
    async def reschedule(
        self, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None = None
    ) -> U8:
        """Change when messages fall due: ``moved``, ``leased`` or ``unknown`` (also when dead)."""

    async def outcomes(self, calls: U64) -> U8:
        """Return the first results of repeated calls, 0 for calls without one."""
        return np.zeros(len(calls), np.uint8)

    async def undo_takes(self, calls: U64) -> int:
        """Release what the takes of some call numbers have leased, as if it were never taken.

        Leases that ended, or belong to a later take, stay as they are. Returns how many messages
        were released.
        """
        return 0

    @abstractmethod
    async def get(
        self, topic: str, ids: Sequence[bytes]
    ) -> "Sequence[Message | StoreDamaged | None]":
        """Return each message (without receipts), or None where the id is unknown.

        A damaged message is represented by the error that names it.
        """

    @abstractmethod
    async def named(self, numbers: U64) -> list[tuple[str, str] | None]:
        """Return topic and id of the message of each number, None without a message."""

    async def versions(self, numbers: U64) -> U64 | None:
        """Return the version of the message of each number, 0 without a message.

        None is the answer of a store that finds messages by id only: then a following verb changes
        the message that has the id at that time.
        """
        return None

    @abstractmethod
    async def taken_from(self, receipts: U64) -> list[str | None]:
        """Return the topic of the message of each receipt, None for a stale receipt."""

    @abstractmethod
    async def scan(self, topic: str, state: State, cursor: Cursor | None, limit: int) -> Page:
        """Return messages of one state after ``cursor``, ordered by due, then arrival."""

    @abstractmethod
    async def sweep(self, wanted: Wanted, start: int, stop: int, limit: int) -> Sweep:
        """Return at most ``limit`` messages with places from ``start`` to before ``stop``.

        A message keeps its place, a number from 0 on, until it is gone. So a message present during
        all of a sweep is given once, and parts of a sweep can run in parallel. An answer may hold
        fewer than ``limit`` messages, or none, and yet not be the last.
        """

    async def clear_part(self, topic: str, place: int) -> tuple[int, int | None]:
        """Cancel a part of a topic's messages that are not leased, from a place on.

        Returns how many, and the place to continue at, None after the last. Each message present
        during all parts is cancelled, even if others come and go.
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

        Other tasks run during the count, so messages that come or go then may count or not. A store
        that does not count them has ``counts_bytes`` False.
        """
        raise NotImplementedError

    async def count_urgent(self, topic: str, priority: int) -> int:
        """Return how many ready messages of a topic precede the given priority.

        A store that must read the messages for this may stop at MAX_BATCH_MESSAGES.
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

        Other tasks run during the count, so messages moved then may count twice or not at all.
        """

    @abstractmethod
    async def oldest_ready(self) -> dict[str, int]:
        """Return the due of the ready message that has waited longest, by topic.

        Topics without a ready message are left out.
        """

    @abstractmethod
    async def holders(self, limit: int, prefixes: tuple[str, ...] = ALL_TOPICS) -> list[Holder]:
        """Return the owners with messages under lease, most messages first, at most ``limit``.

        Only topics whose names start with one of ``prefixes`` count. Other tasks run during the
        count, so messages taken or ended then may count or not.
        """

    async def find_stale(self, *, repair: bool = False, limit: int = 1000) -> list[Stale]:
        """Compare the parts of the store; return at most ``limit`` entries that some parts lack.

        With ``repair`` those are repaired: a message with a body is restored according to its
        state; an entry without a body or message is deleted.
        """
        return []

    @abstractmethod
    async def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        """Change some of a topic's settings, by name, and return all of them.

        The others keep their values of that moment, even under concurrent changes.
        """

    @abstractmethod
    async def settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic."""

    async def dead_retentions(self) -> dict[str, int]:
        """Return the ``keep_dead_ms`` of each topic that sets it; the queue cancels by it."""
        topics = (await self.stats()).topics
        kept = {topic: (await self.settings(topic)).keep_dead_ms for topic in topics}
        return {topic: keep_ms for topic, keep_ms in kept.items() if keep_ms}

    @abstractmethod
    async def tick(self, now_ms: int) -> int | None:
        """End leases, bury expired messages, make due messages ready; return the next deadline.

        The deadline is after ``now_ms``, and never later than the next change by time; it may come
        before that, and None means that nothing waits for time.
        """


class RemoteStore(Store):
    """A store in another process: its takes can wait, and it keeps its own time.

    ``wake`` and ``plan`` are never called, and ``tick`` is not needed.
    """

    is_shared = True
    #: While one batch travels, the next is made: a single large batch would make both ends wait.
    most_joined = 8000

    @abstractmethod
    async def take_waiting(
        self, topics: Sequence[str], limit: int, lease_ms: int, owner: str, wait_ms: int
    ) -> Batch:
        """Lease messages as ``take`` does, but wait up to ``wait_ms`` for the first.

        When the call is cancelled, the messages it would have returned are given back.
        """

    @abstractmethod
    async def result_waiting(self, topic: str, id_: bytes, wait_ms: int) -> Outcome:
        """Return the outcome of a message, once it is over or ``wait_ms`` have gone by."""

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

        When the call is cancelled, the messages it would have returned are given back.
        """

    @abstractmethod
    async def change(
        self, topic: str, verb: str, which: Selection, limit: int, words: Mapping[str, Any]
    ) -> Changed:
        """Do a verb to at most ``limit`` messages that match; ``words`` say how."""

    @abstractmethod
    async def clear(self, topic: str) -> int:
        """Cancel every message of a topic that is not leased; return how many."""

    def ready(self, topic: str) -> int:
        """Return 0: only the other process knows the count."""
        return 0

    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease at most ``limit`` ready messages, without waiting."""
        return await self.take_waiting(topics, limit, lease_ms, owner, 0)
