"""Jobs of procrastinate in PostgreSQL as a place: waiting jobs are moved.

A job is locked in a transaction while it is put, as procrastinate's workers lock it, and deleted in
the same transaction; one that ends before gives it back. It reads the tables of procrastinate 3.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec
import psycopg
from psycopg import sql

from dwell.batch.puts import Puts, Row
from dwell.clock import Clock
from dwell.errors import DwellError, InvalidInput, InvalidUrl
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import (
    DEFAULT_PRIORITY,
    MAX_BATCH_BYTES,
    MAX_BODY_BYTES,
    MAX_PRIORITY,
    TopicSettings,
)
from dwell.takeover.contract import Counts, Load, Stayed, Totals, topic_for
from dwell.takeover.entries import options_of
from dwell.takeover.postgres import options_for, understood

#: The prefix of such addresses.
PREFIX = "procrastinate+"
_OPTIONS = ("queue", "schema")
#: How many bytes of arguments are read at once, about.
_MOST_BYTES = MAX_BATCH_BYTES // 2
_MOST_CHARS = 200
#: A priority and a number that come before all jobs.
_START = (2**31 - 1, 0)

#: How long to wait for jobs that others have locked.
_PATIENCE_S = 5.0
#: Why jobs stay, beside values that no message has.
_LARGE = f"their arguments have more than {MAX_BODY_BYTES} bytes"
_ENDLESS = "their time is infinite"
_IS_LOCKED = "another connection to PostgreSQL has locked them"

_QUEUES = "SELECT DISTINCT queue_name FROM {jobs} WHERE status = 'todo' ORDER BY 1"
_COUNTS = """
SELECT status::text, coalesce(scheduled_at > now(), false), count(*) FROM {jobs}
WHERE queue_name = ANY(%s) OR %s GROUP BY 1, 2"""
_LOCK = """
SELECT id, octet_length(args::text), priority FROM {jobs}
WHERE status = 'todo' AND queue_name = %s AND (scheduled_at IS NOT NULL) = %s
AND priority <= %s AND (priority < %s OR id > %s)
ORDER BY priority DESC, id LIMIT %s FOR UPDATE SKIP LOCKED"""
_READ = """
SELECT id, task_name, priority, lock, queueing_lock, args::text, attempts,
    (extract(epoch FROM scheduled_at) * 1000)::float8,
    (SELECT extract(epoch FROM min(at))::text FROM {events} WHERE job_id = {jobs}.id)
FROM {jobs} WHERE id = ANY(%s) ORDER BY priority DESC, id"""
_LOCKED = """
WITH free AS MATERIALIZED (
    SELECT id FROM {jobs} WHERE status = 'todo' AND (queue_name = ANY(%s) OR %s)
    AND NOT id = ANY(%s) FOR UPDATE SKIP LOCKED
)
SELECT count(*) FROM {jobs} WHERE status = 'todo' AND (queue_name = ANY(%s) OR %s)
AND NOT id = ANY(%s) AND id NOT IN (SELECT id FROM free)"""
_DELETE = "DELETE FROM {jobs} WHERE id = ANY(%s)"


class _Job(NamedTuple):
    """A row of a read."""

    id: int
    task: str
    priority: int
    lock: str | None
    queueing_lock: str | None
    args: str
    attempts: int
    due_ms: float | None
    #: When its first event was, the same each time; None where no events are kept.
    since: str | None


class Procrastinate:
    """The queues of an address, or all; each becomes the topic of its name, or all ``topic``.

    Jobs that run or have failed stay. PostgreSQL counts no arrivals and departures, so they are
    derived.
    """

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        plain = url.removeprefix(PREFIX)
        rest, own = options_of(plain, _OPTIONS)
        said = parse_qsl(urlsplit(plain).query)
        self._names = [value for name, value in said if name == "queue"]
        self._is_all = not self._names
        self._options = options_for(rest)
        self._where = f"PostgreSQL at {self._options.get('host', 'localhost')}"
        names = [own["schema"]] if "schema" in own else []
        self._jobs = sql.Identifier(*names, "procrastinate_jobs")
        self._events = sql.Identifier(*names, "procrastinate_events")
        self._topic = None if topic is None else values.topic(topic)
        self._clock = clock
        self._link: psycopg.AsyncConnection[Any] | None = None
        #: The queues that are left to read, each with its unscheduled and its scheduled jobs.
        self._round: list[tuple[str, bool]] = []
        #: The priority and the number of the job that was locked last.
        self._last = _START
        self._is_again = False
        self._left: set[int] = set()
        #: Why jobs stay, and an example for each field.
        self._stay: dict[int, str] = {}
        self._examples: dict[str, str] = {}
        #: How many jobs others have locked, and when jobs were lent last.
        self._locked, self._lent_s = 0, time.monotonic()
        self._totals = Totals()

    async def open(self) -> None:
        """Connect, and find the queues; raises ServerUnreachable or InvalidUrl."""
        with understood(self._where):
            self._link = await psycopg.AsyncConnection.connect(**self._options)
        try:
            await self._rows(_LOCK, "", False, 0, 0, 0, 0)
            await self._rows(_READ, [])
        except DwellError as error:
            raise InvalidUrl(f"from: expected the tables of procrastinate 3: {error}") from None
        self._round = await self._queues()
        self._lent_s = time.monotonic()

    async def _queues(self) -> list[tuple[str, bool]]:
        names = self._names
        if self._is_all:
            names = [name for (name,) in await self._rows(_QUEUES)]
        for name in names:
            self._topic_of(name)
        await self._end()
        return [(name, is_scheduled) for name in names for is_scheduled in (False, True)]

    def _topic_of(self, name: str) -> str:
        return topic_for("queue", name, self._topic)

    async def _rows(self, query: str, *given: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query in the current transaction; raises ServerUnreachable."""
        with understood(self._where):
            cursor = await self._opened.execute(self._filled(query), given)
            return await cursor.fetchall()

    def _filled(self, query: str) -> sql.Composed:
        return sql.SQL(query).format(jobs=self._jobs, events=self._events)

    @property
    def _opened(self) -> "psycopg.AsyncConnection[Any]":
        assert self._link is not None
        return self._link

    async def _end(self) -> None:
        """End a transaction that has changed nothing, and unlock its jobs."""
        with understood(self._where):
            await self._opened.rollback()

    async def counts(self) -> Counts:
        """Return the counts of the queues."""
        await self._end()
        found = {
            (status, is_later): count
            for status, is_later, count in await self._rows(_COUNTS, self._names, self._is_all)
        }
        await self._end()
        delayed, ready = found.get(("todo", True), 0), found.get(("todo", False), 0)
        doing, failed = (
            sum(count for (one, _), count in found.items() if one == status)
            for status in ("doing", "failed")
        )
        return self._totals.counts(delayed, ready, doing, failed)

    async def settings(self) -> dict[str, TopicSettings]:
        """Return nothing: a queue of procrastinate has no settings."""
        return {}

    async def lend(self, limit: int) -> Sequence[Load] | None:
        """Lock jobs of one queue, until they are let go or others are lent."""
        await self._end()
        while self._round:
            if load := await self._lend_of(*self._round[-1], limit):
                self._is_again = True
                self._lent_s = time.monotonic()
                return [load]
            self._round.pop()
            self._last = _START
        if not self._is_again and await self._is_done():
            return None
        # The next round has jobs that came, or were tried again, in this one.
        self._is_again, self._round = False, await self._queues()
        return ()

    async def _is_done(self) -> bool:
        """Tell whether no job may be unlocked soon: a worker locks one only while it begins."""
        given = (self._names, self._is_all, [*self._left, *self._stay])
        ((self._locked,),) = await self._rows(_LOCKED, *given, *given)
        await self._end()
        return not self._locked or time.monotonic() - self._lent_s >= _PATIENCE_S

    async def _lend_of(self, queue: str, is_scheduled: bool, limit: int) -> Load | None:
        while True:
            priority, last = self._last
            given = (queue, is_scheduled, priority, priority, last, limit)
            locked = await self._rows(_LOCK, *given)
            if not locked:
                return None
            ids = self._picked(locked)
            jobs = [_Job(*row) for row in await self._rows(_READ, ids)]
            now_ms = self._clock.now_ms()
            rows = {job.id: row for job in jobs if (row := self._row(job, now_ms)) is not None}
            if rows:
                puts = Puts.of_rows(self._topic_of(queue), list(rows.values()))
                return Load(puts, list(rows), is_exact=is_scheduled)
            await self._end()

    def _row(self, job: _Job, now_ms: int) -> Row | None:
        """Return the message of a job, None for a job that stays, and note why."""
        if job.due_ms is not None and not math.isfinite(job.due_ms):
            self._stay[job.id] = _ENDLESS
            return None
        try:
            return _row_of(job, now_ms)
        except InvalidInput as error:
            # One text for each field, as the texts of errors have values.
            text = str(error)[:_MOST_CHARS]
            field = text.partition(":")[0]
            self._stay[job.id] = self._examples.setdefault(field, f"{text} (such as job {job.id})")
            return None

    def _picked(self, locked: Sequence[tuple[int, int, int]]) -> list[int]:
        """Return as many jobs as fit a batch; jobs that are too large stay."""
        ids: list[int] = []
        total_bytes = 0
        for id_, size_bytes, priority in locked:
            if size_bytes > MAX_BODY_BYTES:
                self._stay[id_] = _LARGE
            elif not (id_ in self._left or id_ in self._stay):
                if ids and total_bytes + size_bytes > _MOST_BYTES:
                    break
                ids.append(id_)
                total_bytes += size_bytes
            self._last = (priority, id_)
        return ids

    async def let_go(self, load: Load, places: Sequence[int]) -> Stayed:
        """Delete jobs that are locked, for good."""
        ids = [load.place[at] for at in places]
        with understood(self._where):
            cursor = await self._opened.execute(self._filled(_DELETE), (ids,))
            await self._opened.commit()
        self._totals.let_go(cursor.rowcount)
        return Stayed(len(ids) - cursor.rowcount)

    async def leave(self, load: Load, places: Sequence[int]) -> None:
        """Keep jobs there, and do not lock them again."""
        self._left.update(load.place[at] for at in places)

    async def take_back(self, load: Load, places: Sequence[int]) -> None:
        """Unlock jobs."""
        await self._end()

    async def held_back(self) -> Mapping[str, int]:
        """Return how many jobs stay, by reason."""
        return Counter({**Counter(self._stay.values()), _IS_LOCKED: self._locked})

    async def close(self) -> None:
        """Disconnect; what is locked is given back."""
        if self._link is not None:
            await self._link.close()


def _digest_of(job: _Job) -> str:
    """Return what tells a job from another of its number, as in tables that were made anew."""
    told = repr((job.task, job.args, job.since)).encode("utf-8", "backslashreplace")
    return blake2b(told, digest_size=8).hexdigest()


def _row_of(job: _Job, now_ms: int) -> Row:
    """Return the message of a job; raises InvalidInput."""
    headers = {"content-type": "application/json", "procrastinate-task": job.task}
    if job.queueing_lock is not None:
        headers["procrastinate-queueing-lock"] = job.queueing_lock
    if job.attempts:
        headers["procrastinate-attempts"] = str(job.attempts)
    body = {"task": job.task, "args": msgspec.Raw(job.args.encode())}
    return row_of(
        values.body(body),
        now_ms,
        due=now_ms if job.due_ms is None else max(math.ceil(job.due_ms), 0),
        id=f"procrastinate-{job.id}-{_digest_of(job)}",
        priority=min(max(DEFAULT_PRIORITY - job.priority, 0), MAX_PRIORITY),
        key=job.lock,
        headers=headers,
    )
