"""A Redis with queues of RQ as a source: scheduled jobs, and jobs that wait for a worker.

RQ 2 and 3 have these keys: a sorted set of scheduled jobs and a list of waiting jobs for each
queue, and a hash for each job. RQ 3 also has a sorted set of the jobs of each queue that have just
become ready, and for each rate limit, over all queues, one of the jobs that it lets through and one
of those that it holds back.

RQ does not note how its data are serialized, by default by pickle. They are decompressed and never
unpickled.
"""

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dwell.batch.puts import Row
from dwell.calendar.epoch import from_ms
from dwell.clock import Clock
from dwell.errors import DwellError
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import MAX_BODY_BYTES, MAX_DELAY_MS
from dwell.takeover.hashes import Fields, HashesPlace
from dwell.takeover.jobs import REMOVED, Job, Part, Stays, due_of
from dwell.takeover.redislink import understood

_QUEUES, _QUEUE, _JOB = "rq:queues", "rq:queue:", "rq:job:"
_SCHEDULED, _STARTED, _FAILED = "rq:scheduled:", "rq:wip:", "rq:failed:"
_DEFERRED, _READY, _BEGINS = "rq:deferred:", "rq:ready:", ":intermediate"
#: The names of the rate limits, and what each has after its own.
_LIMITS, _LIMIT, _ALLOWED, _HELD = "rq:rl-keys", "rq:rl:", ":allowed", ":rate_limited"
#: The fields of a job that are kept in headers.
_TEXTS = (
    *("description", "timeout", "created_at", "result_ttl", "failure_ttl", "retries_left", "meta"),
    *("rate_limit_key", "rate_limit_concurrency"),
    *(
        f"{when}_callback_{what}"
        for when in ("success", "failure", "stopped")
        for what in ("name", "timeout")
    ),
)
_HEADERS = tuple(f"rq-{name.replace('_', '-')}" for name in _TEXTS)
#: Headers are for people, so a longer description or meta is cut.
_MOST_CHARS = 200
_PICKLE, _JSON = "application/x-python-pickle", "application/json"
#: How many ids of a list or a set are looked at together.
_AT_ONCE = 1_000
_WAIT_FOR_OTHERS = "they wait for other jobs of RQ"
_TWICE = "they are more than once in their list, and RQ does them as often"
_FORGOTTEN = "RQ has forgotten them, and only their ids are there"

#: Counts the jobs of some queues between two places of a set: KEYS are the set and the prefix of
#: jobs, ARGV the places and the queues.
_COUNT_OF = """
local own, count = {}, 0
for at = 3, #ARGV do own[ARGV[at]] = true end
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2])) do
  if own[redis.call('HGET', KEYS[2] .. id, 'origin') or ''] then count = count + 1 end
end
return count
"""

#: Puts the first jobs that a rate limit holds back into their lists while it has room, as RQ does:
#: KEYS are the limit, the jobs that it lets through and those that it holds back, ARGV the prefixes
#: of queues and jobs, the time in seconds and as text.
_LET_THROUGH = """
local most = tonumber(redis.call('HGET', KEYS[1], 'concurrency') or 0)
while redis.call('ZCARD', KEYS[2]) < most do
  local id = redis.call('ZPOPMIN', KEYS[3])[1]
  if not id then break end
  local key = ARGV[2] .. id
  local origin, status, is_first =
    unpack(redis.call('HMGET', key, 'origin', 'status', 'enqueue_at_front'))
  if origin and status == 'rate_limited' then
    redis.call('ZADD', KEYS[2], ARGV[3], id)
    redis.call(is_first == '1' and 'LPUSH' or 'RPUSH', ARGV[1] .. origin, id)
    redis.call('HSET', key, 'status', 'queued', 'enqueued_at', ARGV[4])
  end
end
"""

#: A job that still runs, as it was put again, keeps its slot of a rate limit until its end.
_FORGET = """
local limit = redis.call('HGET', key, 'rate_limit_key')
redis.call('DEL', key, 'rq:job::' .. id .. ':dependencies')
if limit and redis.call('EXISTS', 'rq:executions:' .. id) == 0 then
  redis.call('ZREM', 'rq:rl:' .. limit .. ':allowed', id)
end
"""


class RqPlace(HashesPlace):
    """Queues of RQ.

    Jobs that run, have failed or wait for others stay, and so do jobs that repeat, that others wait
    for, that are more than once in a list, or that are too large.

    A job leaves the slot of its rate limit when it is removed. Those that the limit holds back are
    moved, too, so it lets the next ones through only in the end, if any stay.
    """

    SYSTEM, SCHEME = "RQ", "rq"
    TAKES_LAST = False
    FIELDS = Fields(
        marks=("data",),
        texts=("repeats_left", "ttl", "origin", "status", *_TEXTS),
        waited="redis.call('EXISTS', key .. ':dependents')",
        forget=_FORGET,
        has_left=True,
    )

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        super().__init__(url, clock, topic)
        #: The rate limits, and hashes of the ids that are in a list more than once.
        self._limits: list[bytes] = []
        self._twice: set[int] = set()
        self._has_removed = False

    async def find_queues(self) -> list[str]:
        """Return the names of all queues."""
        keys = await self._client.smembers(_QUEUES)
        return sorted(key.decode().removeprefix(_QUEUE) for key in keys)

    def parts_of(self, queue: str) -> Iterator[Part]:
        """Yield the list of waiting jobs, and the sets of scheduled and of ready jobs."""
        topic = self.topic_of(queue)
        yield Part(f"{_READY}{queue}", queue, topic, is_set=True)
        yield Part(f"{_QUEUE}{queue}", queue, topic, is_set=False)
        yield Part(f"{_SCHEDULED}{queue}", queue, topic, is_set=True)

    async def parts_now(self) -> list[Part]:
        """Return those that rate limits hold back, and behind them those of queues."""
        self._limits = sorted(await self._client.smembers(_LIMITS))
        self._twice = {
            one for part in self._parts if not part.is_set for one in await self._doubles(part.key)
        }
        held = [Part(_of(limit, _HELD), "", "", is_set=True) for limit in self._limits]
        return [*held, *self._parts]

    async def _doubles(self, key: str) -> set[int]:
        """Return hashes of the ids that are in a list more than once."""
        found, first = [np.zeros(0, np.int64)], 0
        while ids := await self._client.lrange(key, first, first + _AT_ONCE - 1):
            found.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
            first += len(ids)
        hashes = np.sort(np.concatenate(found))
        return set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())

    def prefix_of(self, queue: str) -> str:
        """Return the prefix of all jobs."""
        return _JOB

    async def states(self) -> Sequence[int]:
        """Return how many jobs are scheduled or deferred, wait, run, and have failed."""
        pipe = self._client.pipeline(transaction=False)
        for name in self._names:
            pipe.zcard(f"{_SCHEDULED}{name}").zcard(f"{_DEFERRED}{name}")
            pipe.llen(f"{_QUEUE}{name}").zcard(f"{_READY}{name}")
            pipe.zcard(f"{_STARTED}{name}").llen(f"{_QUEUE}{name}{_BEGINS}")
            pipe.zcard(f"{_FAILED}{name}")
        told = await pipe.execute()
        scheduled, deferred, waits, ready, runs, begins, failed = (
            sum(told[at::7]) for at in range(7)
        )
        return [scheduled + deferred, waits + ready + await self._held(), runs + begins, failed]

    async def _held(self) -> int:
        """Return how many jobs of the queues are held back by rate limits."""
        count = 0
        for limit in await self._client.smembers(_LIMITS):
            key = _of(limit, _HELD)
            for first in range(0, await self._client.zcard(key), _AT_ONCE):
                given = (first, first + _AT_ONCE - 1, *self._names)
                count += await self._client.eval(_COUNT_OF, 2, key, _JOB, *given)
        return count

    async def kept(self) -> Mapping[str, int]:
        """Return how many jobs wait for others."""
        pipe = self._client.pipeline(transaction=False)
        for name in self._names:
            pipe.zcard(f"{_DEFERRED}{name}")
        return {_WAIT_FOR_OTHERS: sum(await pipe.execute())}

    async def remove(self, part: Part, jobs: Sequence[Job]) -> Sequence[int]:
        """Remove jobs with their hashes."""
        told = await super().remove(part, jobs)
        self._has_removed = self._has_removed or REMOVED in told
        return told

    async def close(self) -> None:
        """Let rate limits fill the slots that jobs have left, and disconnect."""
        now_ms = self._clock.now_ms()
        text = from_ms(now_ms).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        # If it fails, workers of RQ do the same once in a while.
        with contextlib.suppress(DwellError), understood(self._where):
            for limit in self._limits if self._has_removed else ():
                keys = [_of(limit, what) for what in ("", _ALLOWED, _HELD)]
                given = (_QUEUE, _JOB, now_ms / 1000, text)
                await self._client.eval(_LET_THROUGH, 3, *keys, *given)
        await super().close()

    def due_ms(self, part: Part, score: float) -> float | None:
        """Return when the scheduler moves a job to the list."""
        return score * 1000 if _is_scheduled(part) else None

    def is_exact(self, part: Part) -> bool:
        """Tell whether the dues of jobs are the same each time they are read."""
        return _is_scheduled(part)

    def topic_with(self, part: Part, fields: Sequence[Any]) -> str:
        """Return the topic of a job's queue."""
        return part.topic or self.topic_of(fields[5].decode())

    def row_of(self, part: Part, job: Job, now_ms: int, fields: Sequence[Any]) -> Row | None:
        """Return the message of a job."""
        if fields[2] is None:
            if part.queue:
                raise Stays(_FORGOTTEN)
            return None
        _, is_waited_for, data, repeats, ttl, origin, status, *texts, left_ms = fields
        if not part.queue and (status != b"rate_limited" or origin.decode() not in self._names):
            return None
        if not part.is_set and hash(job.id) in self._twice:
            raise Stays(_TWICE)
        if is_waited_for:
            raise Stays("others wait for them")
        if repeats not in (None, b"", b"0"):
            raise Stays("they repeat")
        body = _unpacked(data)
        headers = {"content-type": _JSON if body[:1] in (b"[", b"{") else _PICKLE}
        for name, value in zip(_HEADERS, texts, strict=True):
            if value:
                headers[name] = value.decode(errors="replace")[:_MOST_CHARS]
        score_ms = None if job.score is None else self.due_ms(part, job.score)
        due_ms = now_ms if score_ms is None else due_of(score_ms, now_ms)
        expires_ms = _expires_ms(due_ms, now_ms, left_ms, None if score_ms is None else ttl)
        own: dict[str, Any] = {"id": job.id.decode(), "headers": headers}
        return row_of(values.body(body), now_ms, due=due_ms, expires=expires_ms, **own)


def _is_scheduled(part: Part) -> bool:
    return part.key.startswith(_SCHEDULED)


def _of(limit: bytes, what: str) -> str:
    """Return a key of a rate limit."""
    return f"{_LIMIT}{limit.decode()}{what}"


def _expires_ms(due_ms: int, now_ms: int, left_ms: int, ttl: bytes | None) -> int | None:
    """Return when RQ forgets a job, or None; ``ttl`` is that of a scheduled job.

    It counts from the put, and again from when the scheduler moves the job to the list.
    """
    found_ms = now_ms + left_ms if left_ms >= 0 else None
    if found_ms is not None and found_ms <= due_ms:
        raise Stays("they expire before they are due")
    if ttl is not None and ttl.isdigit():
        # Python reads no number of thousands of digits.
        found_ms = max(due_ms, now_ms) + int(ttl[:15]) * 1000
    return None if found_ms is None else min(found_ms, now_ms + MAX_DELAY_MS)


def _unpacked(data: bytes) -> bytes:
    """Return the data of a job; of more than a message may have, a part that is too large."""
    try:
        return zlib.decompressobj().decompress(data, MAX_BODY_BYTES + 1)
    except zlib.error:
        # Older versions did not compress them.
        return data
