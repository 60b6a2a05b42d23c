"""A Redis with queues of RQ as a source: scheduled jobs, and jobs that wait for a worker.

RQ 2 and 3 have these keys: a sorted set of scheduled jobs and a list of waiting jobs for each
queue, and a hash for each job.

RQ does not note how its data are serialized, by default by pickle. They are decompressed and never
unpickled.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from dwell.batch.puts import Row
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import MAX_BODY_BYTES, MAX_DELAY_MS
from dwell.takeover.hashes import Fields, HashesPlace
from dwell.takeover.jobs import Job, Part, Stays, due_of

_QUEUES, _QUEUE, _JOB = "rq:queues", "rq:queue:", "rq:job:"
_SCHEDULED, _STARTED, _FAILED = "rq:scheduled:", "rq:wip:", "rq:failed:"
#: The fields of a job that are kept in headers.
_TEXTS = (
    *("description", "timeout", "created_at", "result_ttl", "failure_ttl", "retries_left", "meta"),
    *(
        f"{when}_callback_{what}"
        for when in ("success", "failure", "stopped")
        for what in ("name", "timeout")
    ),
)
#: Headers are for people, so a longer description or meta is cut.
_MOST_CHARS = 200
_PICKLE, _JSON = "application/x-python-pickle", "application/json"


class RqPlace(HashesPlace):
    """Queues of RQ.

    Jobs that run, have failed or wait for others stay, and so do jobs that repeat, that others wait
    for, or that are too large.
    """

    SYSTEM, SCHEME = "RQ", "rq"
    TAKES_LAST = False
    FIELDS = Fields(
        marks=("data",),
        texts=("repeats_left", "ttl", *_TEXTS),
        waited="redis.call('EXISTS', key .. ':dependents')",
        has_left=True,
    )

    async def find_queues(self) -> list[str]:
        """Return the names of all queues."""
        keys = await self._client.smembers(_QUEUES)
        return sorted(key.decode().removeprefix(_QUEUE) for key in keys)

    def parts_of(self, queue: str) -> Iterator[Part]:
        """Yield the list of waiting jobs and the set of scheduled jobs."""
        topic = self.topic_of(queue)
        yield Part(f"{_QUEUE}{queue}", queue, topic, is_set=False)
        yield Part(f"{_SCHEDULED}{queue}", queue, topic, is_set=True)

    def prefix_of(self, queue: str) -> str:
        """Return the prefix of all jobs."""
        return _JOB

    async def states(self) -> Sequence[int]:
        """Return how many jobs are scheduled, wait, run, and have failed."""
        pipe = self._client.pipeline(transaction=False)
        for name in self._names:
            pipe.zcard(f"{_SCHEDULED}{name}").llen(f"{_QUEUE}{name}")
            pipe.zcard(f"{_STARTED}{name}").zcard(f"{_FAILED}{name}")
        told = await pipe.execute()
        return [sum(told[at::4]) for at in range(4)]

    def due_ms(self, part: Part, score: float) -> float:
        """Return when the scheduler moves a job to the list."""
        return score * 1000

    def row_of(self, part: Part, job: Job, now_ms: int, fields: Sequence[Any]) -> Row | None:
        """Return the message of a job."""
        if fields[2] is None:
            return None
        _, is_waited_for, data, repeats, ttl, *texts, left_ms = fields
        if is_waited_for:
            raise Stays("others wait for them")
        if repeats not in (None, b"", b"0"):
            raise Stays("they repeat")
        body = _unpacked(data)
        headers = {"content-type": _JSON if body[:1] in (b"[", b"{") else _PICKLE}
        for name, value in zip(_TEXTS, texts, strict=True):
            if value:
                text = value.decode(errors="replace")[:_MOST_CHARS]
                headers[f"rq-{name.replace('_', '-')}"] = text
        due_ms = now_ms if job.score is None else due_of(job.score * 1000, now_ms)
        expires_ms = _expires_ms(due_ms, now_ms, left_ms, None if job.score is None else ttl)
        own: dict[str, Any] = {"id": job.id.decode(), "headers": headers}
        return row_of(values.body(body), now_ms, due=due_ms, expires=expires_ms, **own)


def _expires_ms(due_ms: int, now_ms: int, left_ms: int, ttl: bytes | None) -> int | None:
    """Return when RQ forgets a job, or None; ``ttl`` is that of a scheduled job.

    It counts from the put, and again from when the scheduler moves the job to the list.
    """
    found_ms = now_ms + left_ms if left_ms >= 0 else None
    if found_ms is not None and found_ms <= due_ms:
        raise Stays("they expire before they are due")
    if ttl is not None and ttl.isdigit():
        found_ms = max(due_ms, now_ms) + int(ttl) * 1000
    return None if found_ms is None else min(found_ms, now_ms + MAX_DELAY_MS)


def _unpacked(data: bytes) -> bytes:
    """Return the data of a job; of more than a message may have, a part that is too large."""
    try:
        return zlib.decompressobj().decompress(data, MAX_BODY_BYTES + 1)
    except zlib.error:
        # Older versions did not compress them.
        return data
