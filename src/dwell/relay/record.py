"""One message of a broker, as a source returns it and a sink gets it."""

from typing import Any, NamedTuple

import msgspec

#: Headers as brokers have them: names may be repeated, values are bytes or nothing.
Headers = list[tuple[str, bytes | None]]


class Record(msgspec.Struct, gc=False):
    """A message outside of the queue.

    ``topic`` is its origin, or its target. ``id`` is the same for a repetition of it. ``body`` is
    None for a tombstone of Kafka. ``at_ms`` is when it was sent, 0 if the broker does not tell.
    ``lane`` is the part of the source whose order is kept, and ``place`` is the data that the
    source needs to commit it. ``origin`` describes the record's place in its source for people.
    ``properties`` are known only to brokers of its kind, in the form of their adapter. ``broken``
    is the reason why it can only become a dead letter, if there is one.
    """

    topic: str
    id: str
    body: bytes | None
    key: bytes | None = None
    headers: Headers = []
    at_ms: int = 0
    lane: str = ""
    place: Any = None
    origin: str = ""
    properties: bytes = b""
    broken: str = ""


class Refusal(NamedTuple):
    """Why a sink does not have a record; ``is_final`` when it never will.

    ``is_shared`` tells that the broker refused it together with others, and may mean one of those,
    ``is_of_target`` that records for other targets may be accepted now. ``is_dropped`` tells that
    the target is set to drop it, so nothing is to be done.
    """

    reason: str
    is_final: bool
    is_shared: bool = False
    is_of_target: bool = False
    is_dropped: bool = False
