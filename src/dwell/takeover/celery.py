"""A Redis that was the broker of Celery as a source: its lists, and unacked messages.

kombu 5.6 and 5.7 have these keys, each after the global prefix: a list for each queue and priority;
the set ``_kombu.binding.EXCHANGE`` of queues for each exchange; and what workers hold unacked in
the hash ``unacked``, with the time when they got it in the sorted set ``unacked_index``. A worker
holds a task with an ETA unacked in its memory until then.

A message becomes what :mod:`dwell.celery` would have put, so that workers of the same app get it
from Dwell. Bodies are not deserialized.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError

from dwell.batch.puts import Row
from dwell.celery.envelope import sealed
from dwell.celery.names import topic_of
from dwell.errors import InvalidUrl
from dwell.given import values
from dwell.given.rows import row_of
from dwell.given.scopedid import scoped_id
from dwell.message import DEFAULT_PRIORITY, MAX_ATTEMPTS
from dwell.takeover.jobs import MOST_BYTES, Job, JobsPlace, Part, Stays
from dwell.takeover.lists import REMOVED, removed_all

_BINDINGS, _UNACKED, _INDEX = "_kombu.binding.", "unacked", "unacked_index"
#: Between the parts of a key or a binding.
_SEP = "\x06\x16"
#: The priorities that kombu may have lists for; the first has the plain name.
_STEPS = range(10)
#: The exchanges of events and of remote control, whose messages are for running programs.
_EVENTS, _CONTROL = "celeryev", ".pidbox"
#: The errors of reading what is no message of kombu.
_ODD = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
#: How many messages a script reads from a list at a time.
_CHUNK = 50

#: Reads a list from its end, at least one message, until they fill ARGV[1] bytes: KEYS[1] is the
#: list, ARGV[2] and ARGV[3] are how many to skip and to read.
_READ_LIST = f"""
local results, size = {{}}, 0
local skipped, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
for first = skipped, skipped + limit - 1, {_CHUNK} do
  local last = math.min(first + {_CHUNK}, skipped + limit) - 1
  local values = redis.call('LRANGE', KEYS[1], -1 - last, -1 - first)
  if #values == 0 then break end
  for at = #values, 1, -1 do
    size = size + #values[at]
    if size > tonumber(ARGV[1]) and #results > 0 then return results end
    results[#results + 1] = values[at]
  end
end
return results
"""

#: Reads fields of the hash KEYS[1], at least one, until they fill ARGV[1] bytes.
_READ_HASH = """
local results, size = {}, 0
for at = 2, #ARGV do
  size = size + redis.call('HSTRLEN', KEYS[1], ARGV[at])
  if size > tonumber(ARGV[1]) and at > 2 then break end
  results[#results + 1] = redis.call('HGET', KEYS[1], ARGV[at]) or ''
end
return results
"""

#: Removes messages from the list KEYS[1]: ARGV are the place of the read, and the messages. Returns
#: for each how many were there.
_REMOVE_LISTED = f"""
{REMOVED}
local start = tonumber(table.remove(ARGV, 1))
return removed(KEYS[1], -1, start, ARGV, false, function() return true end)
"""

#: Removes unacked messages that are as they were: KEYS are the index and the hash, ARGV for each
#: message its tag, its score and its digest. Returns for each 1 if it is removed, 2 if it has
#: changed, 0 if it is there no longer.
_REMOVE_UNACKED = """
local results = {}
for at = 1, #ARGV, 3 do
  local tag, result = ARGV[at], 0
  local score, value = redis.call('ZSCORE', KEYS[1], tag), redis.call('HGET', KEYS[2], tag)
  if score and value then
    result = 2
    if tonumber(score) == tonumber(ARGV[at + 1]) and redis.sha1hex(value) == ARGV[at + 2] then
      redis.call('HDEL', KEYS[2], tag)
      result = redis.call('ZREM', KEYS[1], tag)
    end
  end
  results[#results + 1] = result
end
return results
"""


class _Binding(NamedTuple):
    routing_key: str
    pattern: str
    queue: str


class CeleryPlace(JobsPlace):
    """Queues of Celery.

    ``global_keyprefix`` and ``visibility_timeout``, in seconds, are as in the transport options of
    the app. Of unacked messages, tasks that run at a worker stay, and so do all others while any
    worker lives, because it would run them as well. Without workers, those with an ETA to come
    move, and those that workers would restore, as the visibility timeout has passed.
    """

    SYSTEM, SCHEME = "Celery", "celery"
    OPTIONS = {"global_keyprefix": "", "visibility_timeout": "3600"}  # noqa: RUF012 - as declared

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self._prefix = self._options["global_keyprefix"]
        told = self._options["visibility_timeout"]
        if not re.fullmatch(r"\d{1,9}(\.\d+)?", told, re.ASCII):
            raise InvalidUrl(
                f"visibility_timeout: got {told!r:.80}, expected seconds, such as 3600"
            )
        self._visible_ms = float(told) * 1000
        self._bindings: dict[str, list[_Binding]] = {}
        self._is_held = True

    async def find_queues(self) -> list[str]:
        """Return the queues that are bound to exchanges."""
        prefix = f"{self._prefix}{_BINDINGS}"
        async for exchange in self.names_between(prefix):
            if exchange != _EVENTS and not exchange.endswith(_CONTROL):
                told = await self._client.smembers(f"{prefix}{exchange}")
                rows = [member.decode().split(_SEP) for member in told]
                if any(len(row) != len(_Binding._fields) for row in rows):
                    raise InvalidUrl(
                        f"{self._where}: a binding of exchange {exchange!r:.80} is not as kombu "
                        "has it by default; an app with a sep of its own is not supported"
                    )
                self._bindings[exchange] = [_Binding(*row) for row in rows]
        return sorted({row.queue for rows in self._bindings.values() for row in rows})

    def parts_of(self, queue: str) -> Iterator[Part]:
        """Yield the lists of a queue, those before others last, and unacked messages once."""
        topic = self.topic_of(topic_of(queue))
        if queue == self._names[0]:
            yield Part(f"{self._prefix}{_INDEX}", "", "", is_set=True)
        for step in reversed(_STEPS):
            key = f"{self._prefix}{queue}{_SEP}{step}" if step else f"{self._prefix}{queue}"
            yield Part(key, queue, topic, is_set=False)

    async def states(self) -> Sequence[int]:
        """Return how many messages are in lists as ready, and all that are unacked as leased."""
        pipe = self._client.pipeline(transaction=False)
        pipe.hlen(f"{self._prefix}{_UNACKED}")
        for part in self._parts:
            if not part.is_set:
                pipe.llen(part.key)
        unacked, *ready = await pipe.execute()
        return [0, sum(ready), unacked, 0]

    async def listed(self, key: str, first: int, last: int) -> list[Job]:
        """Return the messages of a list; their marks are they themselves."""
        told = await self._client.eval(_READ_LIST, 1, key, MOST_BYTES, first, last - first + 1)
        return [Job(hashlib.sha1(value).digest(), None, mark=value) for value in told]

    async def data_of(self, part: Part, jobs: Sequence[Job]) -> Sequence[Sequence[Any]]:
        """Return of each message its mark, itself, and its queues; nothing for other texts."""
        if not part.is_set:
            told = [(job.mark, _message_of(job.mark)) for job in jobs]
            return [(mark, found, [part.queue]) if found else () for mark, found in told]
        self._is_held = await self._has_workers()
        tags = [job.id for job in jobs]
        hash_ = f"{self._prefix}{_UNACKED}"
        values_ = await self._client.eval(_READ_HASH, 1, hash_, MOST_BYTES, *tags)
        return [self._unacked(value) for value in values_]

    def _unacked(self, value: bytes) -> Sequence[Any]:
        """Return an unacked message like one of a list; one without a value is gone."""
        mark = hashlib.sha1(value).hexdigest().encode()
        if not value:
            return mark, None, []
        try:
            message, exchange, routing_key = json.loads(value)
            queues = self._queues_of(exchange, routing_key)
            # As kombu restores them.
            message["headers"]["redelivered"] = True
            message["properties"]["delivery_info"]["redelivered"] = True
        except _ODD:
            return ()
        return (mark, message, queues) if _is_message(message) else ()

    async def _has_workers(self) -> bool:
        """Tell whether workers listen to remote control here, or wait for messages.

        An empty message of remote control is for nobody, and the answer counts who gets it.
        """
        db = self._client.connection_pool.connection_kwargs.get("db") or 0
        if await self._client.publish(f"{self._prefix}/{db}.celery.pidbox", b""):
            return True
        try:
            clients = await self._client.client_list()
        except NoPermissionError:
            # The first answer has to do.
            return False
        return any(one["cmd"] == "brpop" and one["db"] == str(db) for one in clients)

    def row_of(self, part: Part, job: Job, now_ms: int, fields: Sequence[Any]) -> Row | None:
        """Return the message that Dwell's transport for Celery would put."""
        _, message, queues = fields
        if message is None:
            return None
        if len(queues) != 1:
            raise Stays("they belong to no queue, or to several")
        try:
            parcel = sealed(queues[0], _in_text(message), now_ms, zone=UTC)
        except _ODD:
            raise Stays("they are no messages of Celery") from None
        if part.is_set and (queues[0] not in self._names or self._runs(job, parcel.due_ms, now_ms)):
            return None
        given: dict[str, Any] = {} if parcel.due_ms is None else {"due": parcel.due_ms}
        id_ = parcel.id or message["properties"]["delivery_tag"]
        return row_of(
            values.body(parcel.body),
            now_ms,
            # A task may be in two queues, which are then one topic.
            id=id_ if self._topic is None else scoped_id(queues[0], id_),
            # kombu serves lower numbers first.
            priority=2 * DEFAULT_PRIORITY - parcel.priority,
            max_attempts=MAX_ATTEMPTS,
            expires=parcel.expires_ms,
            **given,
        )

    def _runs(self, job: Job, due_ms: int | None, now_ms: int) -> bool:
        """Tell whether an unacked task may run at a worker; raises Stays for others that stay."""
        is_later = due_ms is not None and due_ms > now_ms
        if self._is_held and is_later:
            raise Stays("workers hold them until their ETA: stop these, and run it again")
        assert job.score is not None
        if not (self._is_held or is_later or job.score * 1000 + self._visible_ms <= now_ms):
            raise Stays(
                "a worker that has ended held them; their visibility timeout has not passed"
            )
        return self._is_held

    def _queues_of(self, exchange: str, routing_key: str) -> list[str]:
        if not exchange:
            return [routing_key]
        return sorted(
            {
                row.queue
                for row in self._bindings.get(exchange, ())
                if row.routing_key == routing_key
                or (row.pattern and re.match(row.pattern, routing_key))
            }
        )

    def topic_with(self, part: Part, fields: Sequence[Any]) -> str:
        """Return the topic of a message's queue."""
        return self.topic_of(topic_of(fields[2][0]))

    def is_exact(self, part: Part) -> bool:
        """Return False: a task without an ETA is due when it is read."""
        return False

    async def remove(self, part: Part, jobs: Sequence[Job]) -> Sequence[int]:
        """Remove messages that are still there."""

        async def remove(jobs: Sequence[Job], start: int) -> Sequence[int]:
            marks = [job.mark for job in jobs]
            told: Sequence[int] = await self._client.eval(
                _REMOVE_LISTED, 1, part.key, start, *marks
            )
            return told

        if not part.is_set:
            return await removed_all(remove, jobs, self._start)
        given = [value for job in jobs for value in (job.id, repr(job.score), job.mark)]
        hash_ = f"{self._prefix}{_UNACKED}"
        told: Sequence[int] = await self._client.eval(_REMOVE_UNACKED, 2, part.key, hash_, *given)
        return told


def _message_of(value: bytes) -> dict[str, Any] | None:
    """Return a message of kombu, None for another text."""
    try:
        found = json.loads(value)
        return found if _is_message(found) else None
    except _ODD:
        return None


def _is_message(found: dict[str, Any]) -> bool:
    """Tell whether a message has what a worker reads; raises one of _ODD for what is none."""
    properties = found["properties"]
    texts = (found["body"], found["content-type"], found["content-encoding"])
    tag = properties["delivery_tag"]
    return isinstance(found["headers"], dict) and all(isinstance(one, str) for one in (*texts, tag))


def _in_text(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose body is text, as :mod:`dwell.celery` has it, if it is UTF-8."""
    properties = message["properties"]
    if properties.get("body_encoding") != "base64" or message["content-encoding"] != "utf-8":
        return message
    try:
        body = base64.b64decode(message["body"], validate=True).decode()
    except ValueError:
        return message
    return message | {"body": body, "properties": properties | {"body_encoding": "utf-8"}}
