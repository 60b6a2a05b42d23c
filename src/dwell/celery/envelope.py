"""Messages of kombu as messages of Dwell, and back.

The body is kombu's own message as JSON, so that a search by a predicate can look at the task:
``headers.task == 'shop.pay'``. The headers of tasks follow Celery's message protocols 2 and 1
(the page "Message Protocol" of its documentation).
"""

import math
import re
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from celery import current_app
from kombu.utils.json import dumps, loads

from dwell.celery.names import topic_of
from dwell.errors import InvalidBody
from dwell.message import DEFAULT_PRIORITY, MAX_ID_BYTES, QUEUE_ID_MARK, Message

#: The highest priority of AMQP; higher numbers come first there, and last in Dwell.
MAX_PRIORITY = 255

#: AMQP's number for messages that need not survive the broker.
TRANSIENT = 1

#: The property that tells one publish from others, also of the same task; no consumer sees it.
PUBLISH = "dwell_publish"
#: The property of a publish that may have been done, though its answer was lost.
UNSURE = "dwell_unsure"

#: How many messages of one task may wait at a time and be found by their ids.
MOST_TURNS = 16

#: The ids that Celery makes, each for one task.
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: Room for what tells messages of one task apart in their ids.
_MARK_BYTES = 12


@dataclass(slots=True)
class Copies:
    """The state shared by the parcels of a message that an exchange routes to several queues.

    ``is_needed`` tells that the message must reach at least one of them, ``is_taken`` that it did.
    """

    is_needed: bool
    is_taken: bool = False


@dataclass(slots=True)
class Parcel:
    """One message for a topic, in the terms of :meth:`dwell.Queue.put`.

    ``task`` is the id of its task, or empty; ``turn`` counts the messages that the same task had
    before. Times are epoch milliseconds, or None. ``publish`` is the mark of the publish that made
    it, or empty; ``is_repeat`` tells that an earlier try of that publish may have put it.
    ``copies`` is None for a message that was sent to the queue itself. ``is_dropped`` tells that
    the topic was full and dropped it.
    """

    topic: str
    body: bytes
    task: str
    turn: int
    priority: int
    due_ms: int | None
    expires_ms: int | None
    publish: str = ""
    is_repeat: bool = False
    copies: Copies | None = None
    is_dropped: bool = False

    @property
    def id(self) -> str | None:
        """The id of the message; None if the queue makes it."""
        return message_id(self.task, self.turn) if self.task else None


def message_id(task: str, turn: int) -> str:
    """Return the id of a task's message: the task's own for the first.

    A task that is retried for ever uses its later ids again, so that all can be looked up.
    """
    if turn >= MOST_TURNS:
        turn = 1 + (turn - 1) % (MOST_TURNS - 1)
    return f"{task}:{turn}" if turn else task


def is_used_once(id_: str) -> bool:
    """Tell whether Celery made an id of a message, for the first message of a task."""
    return _UUID.fullmatch(id_) is not None


def sealed(
    queue: str,
    message: dict[str, Any],
    now_ms: int,
    ttl_ms: int | None = None,
    zone: tzinfo | None = None,
) -> Parcel:
    """Return the parcel of a message of kombu for a queue; ``ttl_ms`` is the queue's own.

    A task with an ETA is due then; ``zone`` is that of an ETA without one, as a rule the current
    app's. Raises InvalidBody for what JSON cannot encode.
    """
    headers, properties = message["headers"], message["properties"]
    task, turn, eta = _task_of(message)
    due_ms = _epoch_ms(eta, zone)
    if due_ms is not None and "eta" in headers:
        # The worker has nothing to wait for when it gets the message.
        message = message | {
            "headers": headers | {"eta": None},
            "properties": properties | {"eta": eta},
        }
    ttls_ms = [own for own in (_ttl_ms(properties), ttl_ms) if own is not None]
    expires_ms = max(now_ms, due_ms or 0) + max(min(ttls_ms), 1) if ttls_ms else None
    try:
        body = dumps(message).encode()
    except (TypeError, ValueError) as error:
        raise InvalidBody(f"message: got what JSON cannot encode: {error}") from error
    priority = DEFAULT_PRIORITY - _priority(properties)
    publish = properties.get(PUBLISH, "")
    return Parcel(topic_of(queue), body, task, turn, priority, due_ms, expires_ms, publish)


def opened(message: Message) -> dict[str, Any]:
    """Return the message of kombu that a taken message holds, as it is delivered.

    Raises an error of any kind for an invalid message, and InvalidBody if it would end a worker.
    """
    found: dict[str, Any] = loads(message.body)
    properties = found["properties"]
    _check(found)
    # A consumer that forwards the message with its properties makes another.
    for name in (PUBLISH, UNSURE):
        properties.pop(name, None)
    properties["delivery_tag"] = message.receipt
    if message.attempt > 1:
        found["headers"]["redelivered"] = True
        properties.setdefault("delivery_info", {})["redelivered"] = True
    if "task" in found["headers"] and found["headers"].get("id") is None:
        # A schedule has put it; each of its messages is a task of its own.
        found["headers"] |= {"id": message.id, "root_id": message.id}
        properties["correlation_id"] = message.id
    return found


def _check(message: dict[str, Any]) -> None:
    """Raise InvalidBody for fields that a worker uses before it would refuse them."""
    headers = message["headers"]
    if not isinstance(headers, dict):
        raise _refusal("headers", headers, "an object")
    if not isinstance(message.get("body"), str):
        raise _refusal("body", message.get("body"), "a text")
    for name in ("task", "id"):
        # A worker looks these up; a UUID is as good as a text.
        if isinstance(headers.get(name), dict | list):
            raise _refusal(f"headers.{name}", headers[name], "a text")


def _refusal(field: str, given: object, allowed: str) -> InvalidBody:
    return InvalidBody(f"{field}: got {given!r:.80}, expected {allowed}")


def task_of(message: Message) -> str:
    """Return the id of the task that a message holds, empty if it holds none."""
    try:
        return _task_of(loads(message.body))[0]
    except Exception:
        # The decoder may raise any error for a body, and none may end a worker.
        return ""


def publish_of(message: Message) -> str:
    """Return the mark of the publish that has put a message, or an empty text."""
    try:
        return str(loads(message.body)["properties"].get(PUBLISH, ""))
    except Exception:
        return ""


def kept_publish_of(message: Message) -> str:
    """Return the mark that the ack of a message keeps, so that a repeat of its publish is known.

    It is empty for ids that are used once, which need none: what is kept takes room.
    """
    is_ones_own = message.id[0] == QUEUE_ID_MARK
    return "" if is_ones_own or is_used_once(message.id) else publish_of(message)


def _task_of(message: dict[str, Any]) -> tuple[str, int, object]:
    """Return the id of a task, how many messages it had before, and its ETA."""
    fields = message["headers"]
    if "task" not in fields:
        fields = _protocol_1(message)
    task, turn = (
        fields.get("id"),
        _count(fields, "retries") + _count(fields, "replaced_task_nesting"),
    )
    if not isinstance(task, str) or "task" not in fields or not _fits(task):
        task = ""
    return task, turn, fields.get("eta")


def _protocol_1(message: dict[str, Any]) -> dict[str, Any]:
    """Return what the body of a task of protocol 1 says, nothing for other messages."""
    body = message["body"]
    if message["content-type"] != "application/json" or '"task"' not in str(body):
        return {}
    try:
        fields = loads(body)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        # kombu calls what a body names, with what it has.
        return {}
    return fields if isinstance(fields, dict) else {}


def _fits(task: str) -> bool:
    size_bytes = len(task.encode(errors="replace"))
    return bool(task) and task[0] != QUEUE_ID_MARK and size_bytes <= MAX_ID_BYTES - _MARK_BYTES


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    return max(value, 0) if isinstance(value, int) else 0


def _epoch_ms(eta: object, zone: tzinfo | None) -> int | None:
    """Return an ETA in epoch milliseconds, or None without a readable ETA."""
    try:
        moment = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
    except ValueError:
        return None
    if not isinstance(moment, datetime):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone or _zone())
    # Rounded up, as no task may run before its ETA.
    return max(math.ceil(moment.timestamp() * 1000), 0)


def _zone() -> tzinfo:
    """Return the zone that workers apply to an ETA without a zone."""
    found: tzinfo = current_app.timezone
    return found


def _ttl_ms(properties: dict[str, Any]) -> int | None:
    try:
        return int(properties["expiration"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _priority(properties: dict[str, Any]) -> int:
    try:
        return min(max(int(properties["priority"]), 0), MAX_PRIORITY)
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0
