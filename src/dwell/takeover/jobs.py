"""Queues of another system in a Redis: its jobs are read, put, and removed if they are unchanged.

Such systems have no leases that would keep a worker away from a job while it is put. A job that
falls due within seconds is left until the other system has moved it; where no worker does, it is
taken some seconds after its due. :mod:`~dwell.takeover.hashes` has more for systems that keep a
hash for each job.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import redis.asyncio

from dwell.batch.puts import Puts, Row
from dwell.clock import Clock
from dwell.errors import InvalidInput, InvalidUrl
from dwell.given import values
from dwell.given.scopedid import scoped_id
from dwell.message import MAX_BATCH_BYTES, MAX_DELAY_MS, TopicSettings
from dwell.takeover.contract import MOST_LOOKS, UNSTEADY, Counts, Load, Stayed, Totals, topic_for
from dwell.takeover.redislink import keys_between, understood
from dwell.urls import has_host, shown

#: How long before and after its due a job is left to the other system, milliseconds.
_SOON_MS = 5_000
_PATIENCE_S = 10.0
#: The results of a removal.
REMOVED, CHANGED = 1, 2
#: The longest delay of a put, because the queue's clock may be behind this one.
_MOST_DELAY_MS = MAX_DELAY_MS - 24 * 3_600_000
#: How many names of queues an error lists.
_SHOWN = 10
#: How many bytes of jobs are read at once, about.
MOST_BYTES = MAX_BATCH_BYTES // 2


class Part(NamedTuple):
    """A list or a sorted set of a queue, or of all, and the topic for its jobs."""

    key: str
    queue: str
    topic: str
    is_set: bool


class Job(NamedTuple):
    """A job: its id, its score in a set, its message, and its mark, which every change changes.

    Without a message it stays. ``topic`` is where it goes, if its part does not say so.
    """

    id: bytes
    score: float | None
    row: Row | None = None
    mark: bytes = b""
    topic: str = ""


class Stays(Exception):
    """A job that stays where it is, and why."""


def due_of(due_ms: float, now_ms: int) -> int:
    """Return a due in whole milliseconds, never before it; raises Stays for one out of range."""
    if not due_ms <= now_ms + _MOST_DELAY_MS:
        raise Stays("their due is out of range")
    return math.ceil(max(due_ms, 0))


class _Lent(NamedTuple):
    part: Part
    jobs: Sequence[Job]


class JobsPlace(ABC):
    """Some queues, or all; each becomes the topic of its name, or all ``topic``.

    The arrivals and departures there are not counted, so they are derived. ``options`` names what
    else an address may say, with the defaults.
    """

    SYSTEM: ClassVar[str]
    SCHEME: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, str]] = {}
    #: The end of a list where workers take jobs, so that they are moved in order.
    TAKES_LAST: ClassVar[bool] = True

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        parts = urlsplit(url.removeprefix(f"{self.SCHEME}+"))
        said = parse_qsl(parts.query, keep_blank_values=True)
        options = [(name, value) for name, value in said if name != "queue"]
        self._options = {**self.OPTIONS, **dict(options)}
        # A queue that is named twice is one.
        self._names = [*dict.fromkeys(value for name, value in said if name == "queue")]
        is_form = parts.scheme in ("redis", "rediss") and has_host(url)
        is_known = all(name in self.OPTIONS for name, _ in options) and all(self._names)
        if not (is_form and is_known):
            more = "".join(f"&{name}={name.upper()}" for name in self.OPTIONS)
            form = f"{self.SCHEME}+redis://HOST:PORT/DB[?queue=NAME&queue=NAME ...{more}]"
            raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected {form}")
        self._topic = None if topic is None else values.topic(topic)
        self._clock = clock
        self._where = f"{self.SYSTEM} at {parts.hostname}:{parts.port or 6379}"
        # redis-py declares the answers of all its modes at once.
        self._client: Any = redis.asyncio.Redis.from_url(
            urlunsplit(parts._replace(query="")),
            socket_timeout=_PATIENCE_S,
            socket_connect_timeout=_PATIENCE_S,
        )
        self._parts: list[Part] = []
        #: The parts that are left to look through, and how many jobs at the start of each stay.
        self._round: list[Part] = []
        self._skipped = 0
        #: The place in a list where jobs were read last.
        self._start = 0
        #: The jobs that the queue has refused, by queue and id, and those that stay, and why.
        self._left: set[tuple[str, bytes]] = set()
        self._stay: dict[tuple[str, bytes], str] = {}
        self._examples: dict[str, str] = {}
        self._changes = Counter[tuple[str, bytes]]()
        self._is_again = False
        self._totals = Totals()

    # --- what each system says ------------------------------------------------------------------

    @abstractmethod
    async def find_queues(self) -> list[str]:
        """Return the names of all queues; raises InvalidUrl for keys of an unknown version."""

    @abstractmethod
    def parts_of(self, queue: str) -> Iterator[Part]:
        """Yield the lists and sets of a queue whose jobs wait."""

    @abstractmethod
    async def states(self) -> Sequence[int]:
        """Return how many jobs are delayed, ready, leased and dead."""

    @abstractmethod
    async def data_of(self, part: Part, jobs: Sequence[Job]) -> Sequence[Sequence[Any]]:
        """Return what is known of each job, first its mark; nothing for what is no job.

        The answer may end early, but not before its first.
        """

    @abstractmethod
    def row_of(self, part: Part, job: Job, now_ms: int, fields: Sequence[Any]) -> Row | None:
        """Return the message of a job, None without a job; raises Stays and InvalidInput."""

    @abstractmethod
    async def remove(self, part: Part, jobs: Sequence[Job]) -> Sequence[int]:
        """Remove jobs that are as they were; return REMOVED, CHANGED, or 0 for those not there."""

    def id_of(self, part: Part, job: Job) -> str:
        """Return the id of a job's message, where each queue has its own ids."""
        id_ = job.id.decode()
        return id_ if part.topic == part.queue else scoped_id(part.queue, id_)

    async def names_between(self, prefix: str, suffix: str = "") -> AsyncIterator[str]:
        """Yield what keys have between a prefix and a suffix."""
        match = keys_between(prefix, suffix)
        async for key in self._client.scan_iter(match=match, count=1_000):
            yield key.decode().removeprefix(prefix).removesuffix(suffix)

    def topic_with(self, part: Part, fields: Sequence[Any]) -> str:
        """Return the topic of a job."""
        return part.topic

    def due_ms(self, part: Part, score: float) -> float | None:
        """Return when the other system moves a job of a set, None if it does not."""
        return None

    async def parts_now(self) -> list[Part]:
        """Return the parts to look through, the first of them last."""
        return self._parts[:]

    async def kept(self) -> Mapping[str, int]:
        """Return how many jobs stay, by reason, beside those that were read."""
        return {}

    # --- the place ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and find the queues; raises ServerUnreachable or InvalidUrl."""
        with understood(self._where):
            found = await self.find_queues()
            self._names = self._names or found
            if not self._names:
                raise InvalidUrl(f"{self._where}: has no queues of {self.SYSTEM}, expected some")
            self._parts = [part for name in self._names for part in self.parts_of(name)]
            for name in {*self._names} - {*found}:
                keys = [part.key for part in self._parts if part.queue in ("", name)]
                if not await self._client.exists(*keys):
                    shown_ = ", ".join(found[:_SHOWN]) or "none"
                    raise InvalidUrl(f"queue: got {name!r:.80}, and the queues there are {shown_}")
            self._round = await self.parts_now()

    def topic_of(self, queue: str) -> str:
        """Return the topic of a queue; raises InvalidUrl for a name that is not valid."""
        return topic_for("queue", queue, self._topic)

    async def counts(self) -> Counts:
        """Return the counts of the queues."""
        with understood(self._where):
            return self._totals.counts(*await self.states())

    async def settings(self) -> dict[str, TopicSettings]:
        """Return nothing: such queues have no settings."""
        return {}

    async def lend(self, limit: int) -> Sequence[Load] | None:
        """Read jobs, queue after queue; none is taken from there."""
        with understood(self._where):
            while self._round:
                if loads := await self._lend_of(self._round[-1], limit):
                    self._is_again = True
                    return loads
                self._round.pop()
                self._skipped = 0
            if not self._is_again:
                return None
            # The next round has jobs that came, or fell due, in this one.
            self._is_again, self._round = False, await self.parts_now()
            self._stay.clear()
            return ()

    async def _lend_of(self, part: Part, limit: int) -> Sequence[Load]:
        while found := await self._read(part, limit):
            jobs = await self._jobs(part, found)
            free = [
                job for job in jobs if job.row is not None and _name(part, job) not in self._left
            ]
            self._start = self._skipped
            self._skipped += len(jobs) - len(free)
            if free:
                return self._loads(part, free)
        return ()

    def _loads(self, part: Part, jobs: Sequence[Job]) -> list[Load]:
        loads = []
        for topic in dict.fromkeys(job.topic for job in jobs):
            own = [job for job in jobs if job.topic == topic]
            puts = Puts.of_rows(topic, [job.row for job in own if job.row is not None])
            loads.append(Load(puts, _Lent(part, own), is_exact=self.is_exact(part)))
        return loads

    def is_exact(self, part: Part) -> bool:
        """Tell whether the dues of jobs are the same each time they are read."""
        return part.is_set

    async def _read(self, part: Part, limit: int) -> list[Job]:
        """Return the next jobs of a part, without their data."""
        while True:
            first, last = self._skipped, self._skipped + limit - 1
            if not part.is_set:
                return await self.listed(part.key, first, last)
            found = await self._client.zrange(part.key, first, last, withscores=True)
            now_ms = self._clock.now_ms()
            # Those that are due soon are read again in the next round.
            free = [Job(id_, at) for id_, at in found if not self._is_soon(part, at, now_ms)]
            self._is_again |= len(free) < len(found)
            self._skipped += len(found) - len(free)
            if free or not found:
                return free

    async def listed(self, key: str, first: int, last: int) -> list[Job]:
        """Return the jobs of a list between two places, from where workers take them."""
        if self.TAKES_LAST:
            first, last = -1 - last, -1 - first
        ids = await self._client.lrange(key, first, last)
        return [Job(id_, None) for id_ in (ids[::-1] if self.TAKES_LAST else ids)]

    def _is_soon(self, part: Part, score: float, now_ms: int) -> bool:
        due_ms = self.due_ms(part, score)
        return due_ms is not None and abs(due_ms - now_ms) <= _SOON_MS

    async def _jobs(self, part: Part, found: Sequence[Job]) -> list[Job]:
        """Return jobs, as many as fit a batch; notes the jobs that stay."""
        told = await self.data_of(part, found)
        jobs: list[Job] = []
        size_bytes, now_ms = 0, self._clock.now_ms()
        # The answer may end early.
        for job, fields in zip(found, told, strict=False):
            job = self._with_row(part, job, now_ms, fields)
            size_bytes += 0 if job.row is None else len(job.row.body)
            if jobs and size_bytes > MOST_BYTES:
                break
            jobs.append(job)
        return jobs

    def _with_row(self, part: Part, job: Job, now_ms: int, fields: Sequence[Any]) -> Job:
        try:
            if not fields:
                raise Stays(f"they are no jobs of {self.SYSTEM}")
            row = self.row_of(part, job, now_ms, fields)
        except Stays as stays:
            self._stay[_name(part, job)] = str(stays)
        except (InvalidInput, UnicodeError) as error:
            # One text for each field, as the texts of errors have values.
            text = str(error)[:200]
            field = "text" if isinstance(error, UnicodeError) else text.partition(":")[0]
            self._stay[_name(part, job)] = self._examples.setdefault(field, text)
        else:
            topic = part.topic if row is None else self.topic_with(part, fields)
            return job._replace(row=row, mark=fields[0], topic=topic)
        return job

    async def let_go(self, load: Load, places: Sequence[int]) -> Stayed:
        """Remove jobs that are still where they were."""
        part, jobs = load.place
        with understood(self._where):
            told = await self.remove(part, [jobs[at] for at in places])
        changed = [at for at, result in zip(places, told, strict=True) if result == CHANGED]
        self._changes.update(_name(part, jobs[at]) for at in changed)
        self._left |= self._unsteady()
        self._totals.let_go(told.count(REMOVED))
        return Stayed(told.count(0), changed)

    def _unsteady(self) -> set[tuple[str, bytes]]:
        return {name for name, count in self._changes.items() if count >= MOST_LOOKS}

    async def leave(self, load: Load, places: Sequence[int]) -> None:
        """Keep jobs there, and do not read them again."""
        part, jobs = load.place
        self._left.update(_name(part, jobs[at]) for at in places)

    async def take_back(  # noqa: B027 - they were not taken
        self, load: Load, places: Sequence[int]
    ) -> None:
        """Do nothing: they were not taken from there."""

    async def held_back(self) -> Mapping[str, int]:
        """Return how many jobs stay, by reason."""
        unsteady = dict.fromkeys(self._unsteady(), UNSTEADY)
        with understood(self._where):
            return Counter((self._stay | unsteady).values()) + Counter(await self.kept())

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()


def _name(part: Part, job: Job) -> tuple[str, bytes]:
    return part.queue, job.id
