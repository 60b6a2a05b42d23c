"""A Redis with queues of BullMQ as a source: delayed jobs, and jobs that wait for a worker.

BullMQ 5 and 6 have these keys for each queue, after ``bull:QUEUE:`` or another prefix: the lists
``wait`` and ``paused``, the sorted sets ``delayed`` and ``prioritized``, a hash for each job by its
id, and ``meta``, which has the version.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from dwell.batch.puts import Row
from dwell.errors import InvalidUrl
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import DEFAULT_PRIORITY, MAX_ATTEMPTS
from dwell.takeover.hashes import Fields, HashesPlace
from dwell.takeover.jobs import Job, Part, Stays, due_of

_LISTS, _DELAYED, _PRIORITIZED = ("wait", "paused"), "delayed", "prioritized"
_VERSION = re.compile(rb"bullmq:[56]\.")
#: The score of a delayed job is its due, with a counter in the bits below.
_COUNTER = 0x1000
_UNOPENED = "the version of BullMQ of their queue is unknown: name it by ?queue=, once it is opened"
#: The suffixes of keys that a job with children has, and of all keys that it may have.
_CHILDREN = ("dependencies", "processed", "failed", "unsuccessful")
_KEYS = ", ".join(f"key .. ':{name}'" for name in _CHILDREN)


def check_version(where: str, queue: str, version: bytes | None) -> None:
    """Raise InvalidUrl for a queue of another version of BullMQ."""
    if not _VERSION.match(version or b""):
        raise InvalidUrl(
            f"{where}: queue {queue!r:.80} is of {version!r:.40}, expected bullmq:5 or bullmq:6"
        )


class BullmqPlace(HashesPlace):
    """Queues of BullMQ; ``prefix`` is that of the app's queues.

    Jobs that run, have failed, are completed, have parents or children, or were made by a job
    scheduler stay.
    """

    SYSTEM, SCHEME = "BullMQ", "bullmq"
    OPTIONS = {"prefix": "bull"}  # noqa: RUF012 - as declared
    FIELDS = Fields(
        marks=("data", "name", "opts", "priority", "parentKey", "rjk", "atm"),
        texts=("timestamp",),
        waited=f"math.min(redis.call('EXISTS', {_KEYS}), 1)",
        # As BullMQ removes a job.
        forget=f"""
          local unique = redis.call('HGET', key, 'deid')
          if unique and redis.call('GET', KEYS[2] .. 'de:' .. unique) == id then
            redis.call('DEL', KEYS[2] .. 'de:' .. unique, KEYS[2] .. 'dn:' .. unique)
          end
          redis.call('DEL', key, key .. ':logs', {_KEYS})
          local most = redis.call('HGET', KEYS[2] .. 'meta', 'opts.maxLenEvents') or 10000
          redis.call('XADD', KEYS[2] .. 'events', 'MAXLEN', '~', most, '*', 'event', 'removed',
            'jobId', id, 'prev', string.sub(KEYS[1], #KEYS[2] + 1))
        """,
    )

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self._unopened: list[str] = []

    async def find_queues(self) -> list[str]:
        """Return the names of all queues; raises InvalidUrl for an unknown version."""
        prefix = f"{self._options['prefix']}:"
        found = sorted([name async for name in self.names_between(prefix, ":meta")])
        names = self._names or found
        versions = [await self._client.hget(f"{prefix}{name}:meta", "version") for name in names]
        if not self._names and any(versions):
            # No program has opened a queue that only flows have put jobs into.
            self._unopened = [n for n, one in zip(names, versions, strict=True) if one is None]
        for name, version in zip(names, versions, strict=True):
            if name not in self._unopened:
                check_version(self._where, name, version)
        return [name for name in found if name not in self._unopened]

    async def kept(self) -> dict[str, int]:
        """Return how many jobs are in queues without a version."""
        return {_UNOPENED: sum((await self._states_of(self._unopened))[:2])}

    def parts_of(self, queue: str) -> Iterator[Part]:
        """Yield the sets and lists of jobs that wait."""
        topic, prefix = self.topic_of(queue), self.prefix_of(queue)
        for name in (_PRIORITIZED, *_LISTS, _DELAYED):
            yield Part(f"{prefix}{name}", queue, topic, is_set=name not in _LISTS)

    def prefix_of(self, queue: str) -> str:
        """Return the prefix of all keys of a queue."""
        return f"{self._options['prefix']}:{queue}:"

    async def states(self) -> Sequence[int]:
        """Return how many jobs are delayed, wait, run or wait for children, and have failed."""
        return await self._states_of([*self._names, *self._unopened])

    async def _states_of(self, names: Sequence[str]) -> list[int]:
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            prefix = self.prefix_of(name)
            pipe.zcard(f"{prefix}{_DELAYED}").zcard(f"{prefix}{_PRIORITIZED}")
            pipe.llen(f"{prefix}wait").llen(f"{prefix}paused").llen(f"{prefix}active")
            pipe.zcard(f"{prefix}waiting-children").zcard(f"{prefix}failed")
        told = await pipe.execute()
        delayed, first, wait, paused, active, parents, failed = (
            sum(told[at::7]) for at in range(7)
        )
        return [delayed, first + wait + paused, active + parents, failed]

    def is_exact(self, part: Part) -> bool:
        """Tell whether the score of a job is its due."""
        return part.key.endswith(f":{_DELAYED}")

    def due_ms(self, part: Part, score: float) -> float | None:
        """Return when a worker moves a delayed job to a list."""
        return score // _COUNTER if self.is_exact(part) else None

    def row_of(self, part: Part, job: Job, now_ms: int, fields: Sequence[Any]) -> Row | None:
        """Return the message of a job."""
        if fields[2] is None:
            return None
        _, has_children, data, name, opts, priority, parent, scheduler, made, at_ms = fields
        if parent or has_children:
            raise Stays("they have a parent or children")
        if scheduler:
            raise Stays("a job scheduler made them, and makes the next one when they run")
        due_ms = None if job.score is None else self.due_ms(part, job.score)
        given: dict[str, Any] = {}
        if due_ms is not None:
            given["due"] = due_of(due_ms, now_ms)
        headers = {
            "content-type": "application/json",
            "bullmq-name": (name or b"").decode(),
            "bullmq-timestamp": (at_ms or b"").decode(),
            "bullmq-opts": (opts or b"{}").decode(),
        }
        try:
            attempts = json.loads(opts or b"{}").get("attempts") or 0
            given["priority"] = DEFAULT_PRIORITY + int(priority or 0)
            if attempts > 1:
                left = int(attempts) - int(made or 0)
                given["max_attempts"] = min(max(left, 1), MAX_ATTEMPTS)
        except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
            raise Stays("they are no jobs of BullMQ") from None
        id_ = self.id_of(part, job)
        if job.id.isdigit():
            # BullMQ counts from 1 in each queue, and again after its Redis was emptied.
            id_ = f"{id_}@{headers['bullmq-timestamp']}"
        return row_of(values.body(data), now_ms, id=id_, headers=headers, **given)
