"""A Redis with queues of asynq as a source: pending, scheduled and retried tasks.

asynq 0.26 has these keys for each queue, after ``asynq:{QUEUE}:``: the list ``pending``, the sorted
sets ``scheduled`` and ``retry``, and for each task the hash ``t:ID``, whose ``msg`` is the message
TaskMessage of its ``asynq.proto`` in the coding of protobuf.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from dwell.batch.puts import Row
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import MAX_ATTEMPTS
from dwell.takeover.hashes import Fields, HashesPlace
from dwell.takeover.jobs import Job, Part, Stays, due_of

_QUEUES, _PENDING, _SETS = "asynq:queues", "pending", ("scheduled", "retry")
#: The numbers of the fields of a TaskMessage.
_TYPE, _PAYLOAD, _RETRY, _RETRIED, _ERROR, _TIMEOUT, _DEADLINE = 1, 2, 5, 6, 7, 8, 9
_GROUP, _HEADERS, _LAST = 14, 15, 15
#: How values are coded: a number, some bytes, or so many.
_NUMBER, _BYTES, _SIZES = 0, 2, {1: 8, 5: 4}
_GROUPED = "they are of a group, which asynq makes one task of"


class AsynqPlace(HashesPlace):
    """Queues of asynq.

    Tasks that run, are archived or completed, or are of a group stay.
    """

    SYSTEM, SCHEME = "asynq", "asynq"
    FIELDS = Fields(
        marks=("msg", "state"),
        # As asynq deletes a task.
        forget="""
          local unique = redis.call('HGET', key, 'unique_key')
          if unique and unique ~= '' and redis.call('GET', unique) == id then
            redis.call('DEL', unique)
          end
          redis.call('DEL', key)
        """,
    )

    async def find_queues(self) -> list[str]:
        """Return the names of all queues."""
        return sorted(name.decode() for name in await self._client.smembers(_QUEUES))

    def parts_of(self, queue: str) -> Iterator[Part]:
        """Yield the list of pending tasks, and the sets of those that are due later."""
        topic = self.topic_of(queue)
        yield Part(f"asynq:{{{queue}}}:{_PENDING}", queue, topic, is_set=False)
        for name in _SETS:
            yield Part(f"asynq:{{{queue}}}:{name}", queue, topic, is_set=True)

    def prefix_of(self, queue: str) -> str:
        """Return the prefix of the tasks of a queue."""
        return f"asynq:{{{queue}}}:t:"

    async def states(self) -> Sequence[int]:
        """Return how many tasks are due later, wait, run, and are archived."""
        pipe = self._client.pipeline(transaction=False)
        for name in self._names:
            prefix = f"asynq:{{{name}}}:"
            pipe.zcard(f"{prefix}scheduled").zcard(f"{prefix}retry").llen(f"{prefix}{_PENDING}")
            pipe.llen(f"{prefix}active").zcard(f"{prefix}archived")
        told = await pipe.execute()
        scheduled, retry, pending, active, archived = (sum(told[at::5]) for at in range(5))
        return [scheduled + retry, pending + await self._grouped(), active, archived]

    async def _grouped(self) -> int:
        """Return how many tasks wait for others of their groups."""
        pipe = self._client.pipeline(transaction=False)
        for name in self._names:
            for group in await self._client.smembers(f"asynq:{{{name}}}:groups"):
                pipe.zcard(f"asynq:{{{name}}}:g:".encode() + group)
        return sum(await pipe.execute())

    async def kept(self) -> dict[str, int]:
        """Return how many tasks wait for others of their groups."""
        return {_GROUPED: await self._grouped()}

    def due_ms(self, part: Part, score: float) -> float:
        """Return when a server of asynq moves a task to the list."""
        return score * 1000

    def row_of(self, part: Part, job: Job, now_ms: int, fields: Sequence[Any]) -> Row | None:
        """Return the message of a task."""
        if fields[2] is None:
            return None
        _, _, message, state = fields
        if state != part.key.rpartition(":")[2].encode():
            raise Stays("their state is not that of their list")
        told = _fields_of(message)
        if told.get(_GROUP):
            raise Stays(_GROUPED)
        given: dict[str, Any] = {}
        if job.score is not None:
            # asynq cuts the fraction of a second off, and no task may be early.
            given["due"] = due_of((job.score // 1 + 1) * 1000, now_ms)
        left = told.get(_RETRY, 0) - told.get(_RETRIED, 0)
        return row_of(
            values.body(told.get(_PAYLOAD, b"")),
            now_ms,
            id=self.id_of(part, job),
            max_attempts=min(max(left, 0) + 1, MAX_ATTEMPTS),
            headers=_headers_of(told),
            **given,
        )


def _headers_of(told: dict[int, Any]) -> dict[str, str]:
    """Return a task's own headers, and what else asynq knew; raises Stays if they share a name."""
    own = {key.decode(): value.decode() for key, value in told.get(_HEADERS, ())}
    headers = {"asynq-type": told.get(_TYPE, b"").decode()}
    if _ERROR in told:
        headers["asynq-error"] = told[_ERROR].decode(errors="replace")[:200]
    for name, number in (
        ("retried", _RETRIED),
        ("timeout-s", _TIMEOUT),
        ("deadline-s", _DEADLINE),
    ):
        if told.get(number):
            headers[f"asynq-{name}"] = str(told[number])
    if shared := sorted(own.keys() & headers.keys()):
        raise Stays(f"they have a header {shared[0]} of their own")
    return {**own, **headers}


def _fields_of(message: bytes) -> dict[int, Any]:
    """Return the fields of a TaskMessage by their numbers, the headers as pairs.

    Raises Stays for other bytes, and for fields that asynq 0.26 does not have.
    """
    found: dict[int, Any] = {}
    texts: list[Any] = []
    try:
        for number, value in _coded(message):
            if not 1 <= number <= _LAST:
                raise Stays("they have fields that asynq 0.26 does not have")
            if number == _HEADERS:
                pair = dict(_coded(value))
                found.setdefault(number, []).append((pair.get(1, b""), pair.get(2, b"")))
                texts += found[number][-1]
            else:
                found[number] = value
    except (LookupError, TypeError):
        raise Stays("they are no jobs of asynq") from None
    texts += [found.get(number, b"") for number in (_TYPE, _PAYLOAD, _ERROR)]
    counts = [found.get(number, 0) for number in (_RETRY, _RETRIED, _TIMEOUT, _DEADLINE)]
    if {type(text) for text in texts} != {bytes} or {type(count) for count in counts} != {int}:
        raise Stays("they are no jobs of asynq")
    return found


def _coded(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field; raises LookupError for other bytes."""
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        if tag & 7 == _NUMBER:
            value, at = _number(data, at)
            yield tag >> 3, value
            continue
        size, at = _number(data, at) if tag & 7 == _BYTES else (_SIZES[tag & 7], at)
        if at + size > len(data):
            raise IndexError(size)
        yield tag >> 3, data[at : at + size]
        at += size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value, shift = 0, 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise IndexError(shift)
    return value | data[at] << shift, at + 1
