"""A Redis with queues of RQ as a source: scheduled jobs, and jobs that wait for a worker.

RQ 2 and 3 have these keys: a sorted set of scheduled jobs and a list of waiting jobs for each
queue, and a hash for each job. A job is put, and then removed if it is still where it was; RQ has
no leases that would keep a worker away in between. A job that falls due within seconds is left
until the scheduler of RQ has moved it; where none runs, it is taken some seconds after its due.

RQ does not note how its data are serialized, by default by pickle. They are decompressed and never
unpickled.
"""

import contextlib
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import redis.asyncio
from redis.exceptions import RedisError

from dwell.batch.puts import Puts, Row
from dwell.clock import Clock
from dwell.errors import InvalidInput, InvalidUrl, ServerUnreachable
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import MAX_BATCH_BYTES, MAX_BODY_BYTES, MAX_DELAY_MS, TopicSettings
from dwell.takeover.contract import Counts, Load, Stayed, topic_for
from dwell.urls import shown

#: The prefix of such addresses.
PREFIX = "rq+"
_FORM = "rq+redis://HOST:PORT/DB[?queue=NAME&queue=NAME ...]"
_QUEUES, _QUEUE, _JOB = "rq:queues", "rq:queue:", "rq:job:"
_SCHEDULED, _STARTED, _FAILED = "rq:scheduled:", "rq:wip:", "rq:failed:"
#: How long before and after its due a job is left to the scheduler, seconds.
_SOON_S = 5
_PATIENCE_S = 10.0
#: The answer for a job that has changed, and after how many changes it is left there.
_CHANGED, _MOST_LOOKS = 2, 10
#: The longest delay of a put, because the queue's clock may be behind this one.
_MOST_DELAY_MS = MAX_DELAY_MS - 24 * 3_600_000
#: How many bytes of bodies are read at once, about.
_MOST_BYTES = MAX_BATCH_BYTES // 2
#: The fields of a job that are read; the last are kept in headers.
_DATA, _REPEATS = "data", "repeats_left"
_TEXTS = ("description", "timeout", "created_at", "result_ttl", "retries_left", "meta")
#: Headers are for people, so a longer description or meta is cut.
_MOST_CHARS = 200
_PICKLE, _JSON = "application/x-python-pickle", "application/json"

#: Reads jobs, at least one, until their data fill ARGV[1] bytes: KEYS[1] is their prefix, the other
#: arguments are their ids. Returns for each a digest of its data, whether others wait for it, and
#: its fields; nothing for what is no job.
_READ = f"""
local results, size = {{}}, 0
for at = 2, #ARGV do
  local key, fields = KEYS[1] .. ARGV[at], {{}}
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then
    fields = {{'', 0, false}}
  elseif kind == 'hash' then
    size = size + redis.call('HSTRLEN', key, '{_DATA}')
    if size > tonumber(ARGV[1]) and at > 2 then break end
    fields = redis.call('HMGET', key, '{"', '".join((_DATA, _REPEATS, *_TEXTS))}')
    table.insert(fields, 1, redis.call('EXISTS', key .. ':dependents'))
    table.insert(fields, 1, redis.sha1hex(fields[2] or ''))
  end
  results[#results + 1] = fields
end
return results
"""

#: Removes jobs that are as they were: KEYS are the queue's set or list and the prefix of jobs, ARGV
#: for each job its id, its score, empty in a list, and the digest of its data. Returns for each 1
#: if it is removed, 2 if it has changed or others wait for it, and 0 if it is there no longer.
_REMOVE = f"""
local results = {{}}
for at = 1, #ARGV, 3 do
  local id, score = ARGV[at], ARGV[at + 1]
  local key, result, found = KEYS[2] .. id, 0, true
  if score ~= '' then found = redis.call('ZSCORE', KEYS[1], id) end
  if found then
    local data = redis.call('HGET', key, '{_DATA}') or ''
    if redis.sha1hex(data) ~= ARGV[at + 2] or redis.call('EXISTS', key .. ':dependents') == 1
        or (score ~= '' and tonumber(found) ~= tonumber(score)) then
      result = 2
    elseif score ~= '' then
      result = redis.call('ZREM', KEYS[1], id)
    else
      result = redis.call('LREM', KEYS[1], 1, id)
    end
    if result == 1 then redis.call('DEL', key) end
  end
  results[#results + 1] = result
end
return results
"""


class _Job(NamedTuple):
    """A job: its id, its score if it is scheduled, its message, and a digest of its data.

    Without a message it stays.
    """

    id: bytes
    score: float | None
    row: Row | None = None
    digest: bytes = b""


class _Lent(NamedTuple):
    """Jobs of one queue, in its set or its list."""

    key: str
    jobs: Sequence[_Job]


class RqPlace:
    """Some queues of RQ, or all; each becomes the topic of its name, or all ``topic``.

    Jobs that run, have failed or wait for others stay, and so do jobs that repeat, that others wait
    for, or that are too large. RQ does not count arrivals and departures, so they are derived.
    """

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        parts = urlsplit(url.removeprefix(PREFIX))
        said = parse_qsl(parts.query, keep_blank_values=True)
        is_form = parts.scheme in ("redis", "rediss") and bool(parts.hostname)
        if not is_form or any(name != "queue" or not value for name, value in said):
            raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected {_FORM}")
        self._names = [value for _, value in said]
        self._topic = None if topic is None else values.topic(topic)
        self._clock = clock
        self._where = f"RQ at {parts.hostname}:{parts.port or 6379}"
        # redis-py declares the answers of all its modes at once.
        self._client: Any = redis.asyncio.Redis.from_url(
            urlunsplit(parts._replace(query="")),
            socket_timeout=_PATIENCE_S,
            socket_connect_timeout=_PATIENCE_S,
        )
        #: The keys that are left to look through, and how many jobs at the start of each stay.
        self._round: list[str] = []
        self._skipped = 0
        self._left: set[bytes] = set()
        self._stay: set[bytes] = set()
        self._changes = Counter[bytes]()
        self._is_again = False
        self._first: int | None = None
        self._came = self._gone = 0

    async def open(self) -> None:
        """Connect, and find the queues; raises ServerUnreachable or InvalidUrl."""
        with self._understood():
            if not self._names:
                keys = await self._client.smembers(_QUEUES)
                self._names = sorted(key.decode().removeprefix(_QUEUE) for key in keys)
            if not self._names:
                raise InvalidUrl(f"{self._where}: has no queues of RQ, expected some")
        for name in self._names:
            self._topic_of(name)
        self._round = self._keys()

    def _keys(self) -> list[str]:
        return [f"{prefix}{name}" for name in self._names for prefix in (_QUEUE, _SCHEDULED)]

    def _topic_of(self, name: str) -> str:
        return topic_for("queue", name, self._topic)

    async def counts(self) -> Counts:
        """Return the counts of the queues."""
        with self._understood():
            pipe = self._client.pipeline(transaction=False)
            for name in self._names:
                pipe.zcard(f"{_SCHEDULED}{name}").llen(f"{_QUEUE}{name}")
                pipe.zcard(f"{_STARTED}{name}").zcard(f"{_FAILED}{name}")
            told = await pipe.execute()
        states = [sum(told[at::4]) for at in range(4)]
        here = sum(states)
        if self._first is None:
            self._first = here
        more = here - (self._first + self._came - self._gone)
        self._came += max(more, 0)
        self._gone += max(-more, 0)
        delayed, ready, leased, dead = states
        return Counts(delayed, ready, leased, dead, self._came, self._gone)

    async def settings(self) -> dict[str, TopicSettings]:
        """Return nothing: a queue of RQ has no settings."""
        return {}

    async def lend(self, limit: int) -> Sequence[Load] | None:
        """Read jobs, queue after queue; none is taken from there."""
        with self._understood():
            while self._round:
                if loads := await self._lend_of(self._round[-1], limit):
                    self._is_again = True
                    return loads
                self._round.pop()
                self._skipped = 0
            if not self._is_again:
                return None
            # The next round has jobs that came, or fell due, in this one.
            self._is_again, self._round = False, self._keys()
            return ()

    async def _lend_of(self, key: str, limit: int) -> Sequence[Load]:
        while found := await self._read(key, limit):
            jobs = await self._jobs(found)
            free = [job for job in jobs if job.row is not None and job.id not in self._left]
            self._skipped += len(jobs) - len(free)
            if free:
                return [self._load(key, free)]
        return ()

    async def _read(self, key: str, limit: int) -> list[_Job]:
        """Return the next jobs of a queue, without their data."""
        while True:
            first, last = self._skipped, self._skipped + limit - 1
            if key.startswith(_QUEUE):
                return [_Job(id_, None) for id_ in await self._client.lrange(key, first, last)]
            found = await self._client.zrange(key, first, last, withscores=True)
            now_s = self._clock.now_ms() / 1000
            # Those that are due soon are read again in the next round.
            free = [_Job(id_, at) for id_, at in found if abs(at - now_s) > _SOON_S]
            self._is_again |= len(free) < len(found)
            self._skipped += len(found) - len(free)
            if free or not found:
                return free

    async def _jobs(self, found: Sequence[_Job]) -> list[_Job]:
        """Return jobs, as many as fit a batch; notes the jobs that stay."""
        ids = [job.id for job in found]
        told = await self._client.eval(_READ, 1, _JOB, _MOST_BYTES, *ids)
        jobs: list[_Job] = []
        size_bytes, now_ms = 0, self._clock.now_ms()
        # The answer may end early.
        for job, fields in zip(found, told, strict=False):
            if fields:
                digest, *rest = fields
                job = job._replace(row=_row_of(job, now_ms, *rest), digest=digest)
            if job.row is not None:
                size_bytes += len(job.row.body)
            elif not fields or fields[2] is not None:
                self._stay.add(job.id)
            if jobs and size_bytes > _MOST_BYTES:
                break
            jobs.append(job)
        return jobs

    def _load(self, key: str, jobs: Sequence[_Job]) -> Load:
        prefix = _QUEUE if key.startswith(_QUEUE) else _SCHEDULED
        rows = [job.row for job in jobs if job.row is not None]
        puts = Puts.of_rows(self._topic_of(key.removeprefix(prefix)), rows)
        return Load(puts, _Lent(key, jobs), is_exact=prefix is _SCHEDULED)

    async def let_go(self, load: Load, places: Sequence[int]) -> Stayed:
        """Remove jobs that are still where they were."""
        key, jobs = load.place
        given: list[object] = []
        for at in places:
            job = jobs[at]
            given += [job.id, "" if job.score is None else repr(job.score), job.digest]
        with self._understood():
            told = await self._client.eval(_REMOVE, 2, key, _JOB, *given)
        changed = [at for at, result in zip(places, told, strict=True) if result == _CHANGED]
        self._changes.update(jobs[at].id for at in changed)
        unsteady = {id_ for id_, count in self._changes.items() if count >= _MOST_LOOKS}
        self._left |= unsteady
        self._stay |= unsteady
        self._gone += told.count(1)
        return Stayed(told.count(0), changed)

    async def leave(self, load: Load, places: Sequence[int]) -> None:
        """Keep jobs there, and do not read them again."""
        self._left.update(load.place.jobs[at].id for at in places)

    async def take_back(self, load: Load, places: Sequence[int]) -> None:
        """Do nothing: they were not taken from there."""

    async def held_back(self) -> int:
        """Return how many jobs repeat, are waited for, change, or can be no messages."""
        return len(self._stay)

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        """Raise ServerUnreachable without an answer, or for keys that are not RQ's."""
        try:
            yield
        except (RedisError, OSError, UnicodeDecodeError) as error:
            reason = str(error) or type(error).__name__
            raise ServerUnreachable(f"{self._where}: {reason}") from None


def _row_of(
    job: _Job,
    now_ms: int,
    is_waited_for: int,
    data: bytes | None,
    repeats: bytes | None = None,
    *texts: bytes | None,
) -> Row | None:
    """Return the message of a job, None for a job that stays."""
    if data is None or is_waited_for or repeats not in (None, b"", b"0"):
        return None
    body = _unpacked(data)
    headers = {"content-type": _JSON if body[:1] in (b"[", b"{") else _PICKLE}
    for name, value in zip(_TEXTS, texts, strict=True):
        if value:
            headers[f"rq-{name.replace('_', '-')}"] = value.decode(errors="replace")[:_MOST_CHARS]
    due_ms: float = now_ms if job.score is None else max(job.score * 1000, 0)
    if not due_ms <= now_ms + _MOST_DELAY_MS:
        return None
    try:
        id_ = job.id.decode()
        return row_of(values.body(body), now_ms, due=math.ceil(due_ms), id=id_, headers=headers)
    except (InvalidInput, UnicodeDecodeError):
        return None


def _unpacked(data: bytes) -> bytes:
    """Return the data of a job; of more than a message may have, a part that is too large."""
    try:
        return zlib.decompressobj().decompress(data, MAX_BODY_BYTES + 1)
    except zlib.error:
        # Older versions did not compress them.
        return data
