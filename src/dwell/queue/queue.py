"""The queue: one asynchronous API over every store.

It checks the arguments of callers, gathers their calls into batches, keeps the time and wakes
waiting takers. The store decides what happens to messages.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Self, TypeVar, Unpack

import msgspec

from dwell.batch.batch import Batch
from dwell.batch.events import EventPage
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import Put, PutAnswer, Puts, Row, check_extra_size
from dwell.batch.stats import Stale, Stats, TopicStats
from dwell.batch.sweep import EVERY, Sweep, Wanted
from dwell.clock import Clock
from dwell.errors import IdExists, InvalidInput, StoreFull, TopicFull
from dwell.given import columns, values
from dwell.given.options import PutManyOptions, PutOptions, refuse_unknown
from dwell.given.rows import row_of
from dwell.given.values import Delay
from dwell.message import DEFAULT_PRIORITY, U8, U64, Result, State, TopicSettings
from dwell.queue.bulk import (
    Fitting,
    PutKey,
    put_fitting,
    put_joined,
    put_rows,
    puts_of,
)
from dwell.queue.counting import Counting
from dwell.queue.exports.manifest import Manifest
from dwell.queue.exports.report import Imported
from dwell.queue.gather import Gatherer
from dwell.queue.home import Home
from dwell.queue.remotetakers import RemoteTakers
from dwell.queue.retention import Retention
from dwell.queue.schedules.schedules import Schedules
from dwell.queue.searcher import RemoteSearcher, Searcher
from dwell.queue.tablecolumns import pyarrow
from dwell.queue.tables import OnBad, OnPut, TablePutter
from dwell.queue.takers import Takers, Wish
from dwell.queue.ticker import Ticker
from dwell.queue.typed import Typed
from dwell.queue.verbs import ManyTaken, Versions
from dwell.store.base import RemoteStore, Store
from dwell.tasks import finished, whole

T = TypeVar("T")

#: Errors of one put, with nothing done, that are none of those that are joined with it.
_OF_ONE_PUT = (InvalidInput, IdExists, TopicFull, StoreFull)


class Queue(Counting):
    """A delay queue over a store, for one event loop.

    Opened with ``async with``, or with :meth:`open` and :meth:`close`. Every method raises
    InvalidInput for bad arguments before anything is written, and StoreError when the store cannot
    do its work.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._puts: Gatherer[PutKey, Row, Put] = Gatherer(
            partial(put_rows, store), self._turns, _OF_ONE_PUT
        )
        self._bulk_puts: Gatherer[PutKey, Puts, PutAnswer] = Gatherer(
            partial(put_joined, store), self._turns, _OF_ONE_PUT
        )
        self._takers: Takers
        self._ticker: Ticker | None = None
        self._retention: Retention | None = None
        self._closing: asyncio.Task[None] | None = None
        if isinstance(store, RemoteStore):
            # The server of the store serves waiting takes, time and searches.
            self._takers = RemoteTakers(store, self._turns)
            self._searcher = RemoteSearcher(store)
        else:
            self._takers = Takers(store, self._turns)
            self._searcher = Searcher(store)
            self._ticker = Ticker(store, self._takers.fail)
            self._retention = Retention(store)
        self._gatherers: tuple[Gatherer[Any, Any, Any], ...] = tuple(
            part for part in vars(self).values() if isinstance(part, Gatherer)
        )

    @property
    def clock(self) -> Clock:
        """The clock of the store, which says what is due."""
        return self._store.clock

    @property
    def schedules(self) -> Schedules:
        """The schedules of the queue, which put messages repeatedly by a calendar."""
        return Schedules(self)

    def topic(self, name: str, kind: type[T]) -> Typed[T]:
        """Return a topic whose bodies are values of a type, a Struct, dataclass or Pydantic model.

        Raises InvalidTopic, and InvalidBody for a type that JSON cannot encode, or that has a part
        that JSON cannot encode, such as a plain class.
        """
        return Typed(self, name, kind)

    @property
    def store(self) -> Store:
        """The store under the queue."""
        return self._store

    def space_takes(self, spacing_ms: float) -> None:
        """Under a stream of messages, look at time and wake takers of one topic only so often.

        A server does so, where each wake is an answer over the network: a few milliseconds of
        lateness let every answer carry several messages.
        """
        self._takers.spacing.seconds = spacing_ms / 1000
        if self._ticker is not None:
            self._ticker.spacing.seconds = spacing_ms / 1000

    def would_wait(self, topics: str | Sequence[str], limit: int = 1) -> bool:
        """Tell whether a take that may wait would not be answered at once."""
        return self._takers.would_wait(values.topics(topics), limit)

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many takers wait on each topic, as it is whenever it is looked at."""
        return self._takers.waiting

    @property
    def is_open(self) -> bool:
        """Whether the queue was opened and not yet closed."""
        return self._is_open

    # --- lifetime -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store and begin to keep its time; raises StoreError.

        Raises RuntimeError when it is open already; so does :meth:`close` in another event loop.
        """
        if self._is_open:
            raise RuntimeError("the queue is open already")
        self._closing = None
        self._store.wake = self._takers.wake
        self._store.waiting = lambda: self._takers.waiting
        self._store.ended = self._watchers.ring
        self._store.watched = lambda: self._watchers.topics
        if self._ticker is not None:
            self._store.plan = self._ticker.plan
        await self._store.open()
        home = self._home = Home(asyncio.get_running_loop())
        self._turns.most = self._store.most_small
        for gatherer in self._gatherers:
            gatherer.open(home, self._store.most_joined)
        self._takers.open(home, self._store.most_joined)
        self._watchers.open(home, self._store.most_joined)
        if self._ticker is not None:
            self._ticker.start()
        if self._retention is not None:
            self._retention.start()
        self._is_open = True

    async def close(self) -> None:
        """Answer the pending calls, end every wait with StoreClosed, and close the store.

        Closing always completes: if the caller is cancelled, the cancellation is raised afterwards.
        """
        if self._is_open:
            self.check_open()
            self._is_open = False
            self._closing = whole(self._close())
        if self._closing is not None:
            await finished(self._closing)

    async def _close(self) -> None:
        if self._retention is not None:
            await self._retention.stop()
        if self._ticker is not None:
            await self._ticker.stop()
        await self._takers.close()
        await self._watchers.close()
        for gatherer in self._gatherers:
            await gatherer.close()
        await self._store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # --- put ----------------------------------------------------------------------------------

    async def put(
        self,
        topic: str,
        body: object,
        *,
        on_conflict: str = "keep",
        **options: Unpack[PutOptions],
    ) -> Put:
        """Put one message; it may be taken once it is due, now unless a time is given.

        ``body`` is bytes, text, or any value that JSON can encode. The time is ``delay`` (a span),
        ``due`` (a point in time) or ``delay_level`` (from 1). ``lease`` and ``max_attempts``
        default to the topic's settings. The smallest ``priority`` is taken first; the default is
        1024. A message that is not taken by ``expires``, or within ``ttl`` from now, is buried. If
        the ``id`` exists, ``on_conflict`` decides: ``keep``, ``replace`` or ``error`` (raises
        IdExists). Raises TopicFull if the topic is full and refuses messages.
        """
        now_ms = self._store.clock.now_ms()
        topic = values.topic(topic)
        levels_ms = await self._levels_ms(topic) if options.get("delay_level") is not None else ()
        try:
            row = row_of(values.body(body), now_ms, levels_ms, **options)
        except TypeError:
            refuse_unknown(options, PutOptions, "put")
            raise
        return await self._put_row(topic, row, values.conflict(on_conflict))

    async def put_many(
        self,
        topic: str,
        bodies: Sequence[object],
        *,
        on_conflict: str = "keep",
        **options: Unpack[PutManyOptions],
    ) -> PutAnswer:
        """Put many messages in one batch, all or none: the arguments of :meth:`put`, in columns.

        Every argument but ``ids`` may be a single value for all messages, or a sequence or array as
        long as ``bodies``. Arrays of ``due`` (int64, epoch milliseconds) cost least. Raises
        BatchTooLarge above 10000 messages or 16 MiB.
        """
        self.check_open()
        topic, on_conflict = values.topic(topic), values.conflict(on_conflict)
        levels_ms = await self._levels_ms(topic) if options.get("delay_level") is not None else ()
        try:
            puts = puts_of(topic, bodies, self._store.clock.now_ms(), levels_ms, **options)
        except TypeError:
            refuse_unknown(options, PutManyOptions, "put_many")
            raise
        if not len(puts):
            return PutAnswer.empty()
        return await self.put_puts(puts, on_conflict)

    async def put_table(
        self,
        topic: str,
        table: object,
        *,
        on_conflict: str = "keep",
        on_bad: OnBad | None = None,
        on_put: OnPut | None = None,
    ) -> Counter[Result]:
        """Put a message for each row of a table of any size; return how many had which result.

        ``table`` is any object with a stream of Arrow: a frame of Polars or pandas, a relation of
        DuckDB, a table, a data set's scanner or a reader of PyArrow. It is read batch by batch. The
        columns have the names of :meth:`put`, with ``body`` for each, or ``due_ms``, ``delay_ms``,
        ``lease_ms``, ``ttl_ms`` and ``expires_ms`` in milliseconds. ``on_bad`` is called with the
        number of each row that is not a valid message, from 0, and the reason. Without it the first
        bad row raises InvalidInput, and the rows before it stay put. ``on_put`` is called after
        each put with the counts of its results, also when the table ends early.
        """
        self.check_open()
        topic, on_conflict = values.topic(topic), values.conflict(on_conflict)
        put = partial(self.put_puts, on_conflict=on_conflict)
        putter = TablePutter(topic, put, self._store.clock, on_bad, on_put)
        return await putter.run(table, tuple(await self._levels_ms(topic)))

    async def put_export(
        self,
        folder: str | PathLike[str],
        *,
        dead: str = "keep",
        settings: bool = False,
        on_bad: OnBad | None = None,
        tell: Callable[[Imported], None] | None = None,
    ) -> Imported:
        """Put the messages of an export, of any store; return what became of them, by topic.

        Ids that exist are kept, so a repeat puts nothing twice; an id that a queue made becomes
        ``moved-...``, the same each time. Leased messages are put as pending with their due.
        ``dead`` messages stay dead (``keep``), are put as pending (``put``), or are left out
        (``skip``). With ``settings`` topics with default settings get those of the export.
        ``on_bad`` is called with the number of each row that cannot be put, from 0, and the reason;
        without it the first such row raises InvalidInput, and others stay put. ``tell`` is called
        with the counts after each few puts. Raises InvalidInput before anything is put if the
        folder is no whole export.
        """
        self.check_open()
        path = values.folder(folder, "export")
        pyarrow()
        from dwell.queue.exports.putting import Importer

        return await Importer(self, path, dead, on_bad, tell).run(settings=settings)

    async def put_puts(self, puts: Puts, on_conflict: str = "keep") -> PutAnswer:
        """Put columns whose values were checked already; this method checks nothing.

        Batches that callers give in the same turn of the event loop become one put of the store.
        """
        self.check_open()
        batch = (puts.topic, on_conflict, puts.ids is not None)
        return await self._bulk_puts.call(batch, puts, puts.size_bytes, len(puts))

    async def put_rows(
        self,
        topic: str,
        rows: Sequence[Row],
        on_conflict: str = "keep",
        counted_ms: int | None = None,
    ) -> Sequence[Put]:
        """Put rows whose values were checked already.

        This method checks only the size of headers. Either all rows have an id or no row has one.
        If ``counted_ms`` is given, the spans of the rows count from that time; they are recounted
        from this call.
        """
        self.check_open()
        if not rows:
            return ()
        if len(rows) == 1 and counted_ms is None:
            return [await self._put_row(topic, rows[0], on_conflict)]
        puts = Puts.of_rows(topic, rows)
        if counted_ms is not None:
            puts.count_anew(self._store.clock.now_ms() - counted_ms)
        return await self.put_puts(puts, on_conflict)

    def _put_row(self, topic: str, row: Row, on_conflict: str) -> "asyncio.Future[Put]":
        check_extra_size(len(row.extra))
        size_bytes = len(row.body) + len(row.extra) + len(row.id)
        return self._puts.call((topic, on_conflict, row.id != b""), row, size_bytes)

    # --- take and look ------------------------------------------------------------------------

    async def take(
        self,
        topics: str | Sequence[str],
        limit: int = 1,
        *,
        lease: Delay | None = None,
        owner: str = "",
        wait: Delay = 0,
    ) -> Batch:
        """Take at most ``limit`` due messages, topic after topic as listed.

        The taker holds them until ``lease`` ends (by default the lease of the message or its
        topic). ``wait`` is how long to wait if no message is due; the batch is empty if none falls
        due in that time. A batch holds at most 16 MiB. :meth:`held` returns the messages that
        ``owner`` holds. If the call is cancelled, it releases the messages that it had taken.
        """
        wish = Wish(values.topics(topics), values.lease_ms(lease), values.owner(owner))
        wait_ms = values.delay_ms(wait, "wait") if wait else 0
        return await self._takers.take(wish, values.limit(limit), wait_ms)

    async def take_ids(
        self,
        topic: str,
        ids: str | Sequence[str],
        *,
        lease: Delay | None = None,
        owner: str = "",
        versions: Versions | None = None,
    ) -> Batch:
        """Take messages by id if they are ready; other messages are left out of the batch.

        With the ``versions`` of a page or a sweep, messages that have changed since are left out
        too. If the call is cancelled, it releases the messages that it had taken.
        """
        topic, many = values.topic(topic), self._ids([ids] if isinstance(ids, str) else ids)
        lease_ms, owner = values.lease_ms(lease), values.owner(owner)
        if not many:
            return Batch.empty()
        seen = None if versions is None else columns.versions(versions, len(many))
        return await self._searcher.take_ids(topic, many, lease_ms, owner, seen)

    async def peek(self, topic: str, limit: int = 1) -> Batch:
        """Return the ready messages that a take would give first, and leave them as they are."""
        topic, limit = values.topic(topic), values.limit(limit)
        self.check_open()
        return await self._store.peek(topic, limit)

    async def held(self, owner: str) -> Batch:
        """Return the messages that an owner holds, with receipts, in order of due."""
        owner = values.owner(owner)
        self.check_open()
        return await self._store.held(owner)

    async def named(self, numbers: Sequence[int] | U64) -> list[tuple[str, str] | None]:
        """Return topic and id of the message of each number, or None if it does not exist."""
        self.check_open()
        return await self._store.named(columns.numbers(numbers))

    async def count_urgent(self, topic: str, priority: int = DEFAULT_PRIORITY) -> int:
        """Return how many ready messages of a topic come before messages of a priority.

        On Redis and over HTTP the count stops at 10,000.
        """
        topic, priority = values.topic(topic), values.priority(priority)
        self.check_open()
        return await self._store.count_urgent(topic, priority)

    async def taken_from(self, what: ManyTaken) -> list[str | None]:
        """Return the topic of each taken message, or None if its receipt is no longer valid."""
        return await self._store.taken_from(self._receipts(what))

    async def scan(
        self, topic: str, state: State | str, *, cursor: Cursor | None = None, limit: int = 1000
    ) -> Page:
        """Return one page of a topic's messages of one state, by due, from after ``cursor``.

        A page holds at most ``limit`` messages and about 16 MiB; its cursor leads to the next.
        """
        topic, state, limit = values.topic(topic), values.state(state), values.limit(limit)
        cursor = values.cursor(cursor)
        self.check_open()
        return await self._store.scan(topic, state, cursor, limit)

    async def clear(self, topic: str) -> int:
        """Cancel every message of a topic that is not leased; return their number.

        Leased messages stay with their takers, and the topic's settings are kept.
        """
        topic = values.topic(topic)
        self.check_open()
        return await self._searcher.clear(topic)

    async def delete_topic(self, topic: str) -> int:
        """Cancel every message of a topic that is not leased, and reset its settings.

        Returns the number of cancelled messages. A topic is listed as long as it has messages, and
        those that are leased stay with their takers. Ids of acked messages stay remembered. A put,
        also by a schedule, makes the topic again.
        """
        count = await self.clear(topic)
        await self.configure(topic, **msgspec.structs.asdict(TopicSettings()))
        return count

    async def sweep(
        self, wanted: Wanted = EVERY, *, start: int = 0, stop: int = 2**63 - 1, limit: int = 1000
    ) -> Sweep:
        """Return messages in no order, from place ``start`` to before ``stop``.

        A message that exists during the whole sweep is returned once, even if it is moved. Several
        parts can run in parallel. ``limit`` 0 returns only the number of places.
        """
        limit = values.limit(limit) if limit else 0
        start, stop = values.position(start, "start"), values.position(stop, "stop")
        wanted = values.wanted(wanted)
        self.check_open()
        return await self._store.sweep(wanted, start, stop if limit else 0, limit)

    async def export(
        self,
        folder: str | PathLike[str],
        topics: str | Sequence[str] = (),
        *,
        tell: Callable[[int], None] | None = None,
    ) -> Manifest:
        """Write the messages of some topics or all, in all states, to a new folder, as Parquet.

        A message that exists during the whole export is in it once, as it was when it was read.
        ``tell`` is called with the number of messages so far. Returns the manifest, which is
        written last. Raises InvalidInput if the folder has files, and OSError if it cannot be
        written; then nothing is left in it.
        """
        wanted = values.topics(topics) if topics else ()
        self.check_open()
        path = values.folder(folder, "to")
        pyarrow()
        from dwell.queue.exports.writing import export

        return await export(self, path, wanted, tell)

    async def events(self, position: int = 0, limit: int = 1000) -> EventPage:
        """Return at most ``limit`` events from ``position`` on, or from the oldest event kept."""
        position, limit = values.position(position), values.limit(limit)
        self.check_open()
        return await self._store.events(position, limit)

    async def stats(self) -> Stats:
        """Return the number of messages in each state, and the number of events of each kind."""
        self.check_open()
        return await self._store.stats()

    async def sizes(self, topic: str) -> list[TopicStats]:
        """Return the number of messages in each state of a topic, an entry for each shard."""
        topic = values.topic(topic)
        self.check_open()
        return await self._store.sizes(topic)

    async def find_stale(self, *, repair: bool = False, limit: int = 1000) -> list[Stale]:
        """Compare the parts of the store; return at most ``limit`` differences.

        An intact store returns an empty list. ``repair`` repairs the returned differences; this
        loses no message that has its body.
        """
        limit = values.limit(limit)
        self.check_open()
        return await self._store.find_stale(repair=bool(repair), limit=limit)

    # --- at once: calls that a port has joined and checked ---------------------------------------

    # Joining them with other calls again costs a task and a future each time: 12 % of the cost of a
    # job in a pipeline over beanstalk, and 20 % of a single one.

    def put_fitting(self, puts: Puts) -> Awaitable[Fitting]:
        """Put as many messages as fit."""
        return put_fitting(self._store, puts)

    def ask(
        self, topics: tuple[str, ...], limit: int, wait_ms: int | None
    ) -> "asyncio.Future[Batch]":
        """Return the future of a take that waits, for ever if ``wait_ms`` is None.

        Cancel it to leave; if it already has its answer, release the messages in it.
        """
        return self._takers.ask(Wish(topics, 0, ""), limit, wait_ms)

    def take_at_once(self, topics: Sequence[str], limit: int) -> Awaitable[Batch]:
        """Take at most ``limit`` messages that are due, without waiting."""
        return self._store.take(topics, limit, 0, "")

    def ack_at_once(self, receipts: U64) -> Awaitable[U8]:
        """Say that messages are done; return the codes of the results."""
        return self._store.ack(receipts)

    # --- settings -----------------------------------------------------------------------------

    async def configure(self, topic: str, **changes: Any) -> TopicSettings:
        """Change some of a topic's settings and return them all; raises InvalidSettings.

        The names and units are the fields of :class:`dwell.TopicSettings`. Other settings stay
        unchanged, even if another caller changes them at the same time.
        """
        self.check_open()
        topic, changes = values.topic(topic), values.setting_changes(changes)
        return await self._store.configure(topic, changes)

    async def settings(self, topic: str) -> TopicSettings:
        """Return the defaults for a topic's messages."""
        self.check_open()
        return await self._store.settings(values.topic(topic))
