"""One message of a broker, as it comes from a source and as a sink is given it."""

from typing import Any, NamedTuple

import msgspec

#: Headers as brokers have them: names may come again, values are bytes or nothing.
Headers = list[tuple[str, bytes | None]]


class Record(msgspec.Struct, gc=False):
    """A message outside of the queue.

    ``topic`` is where it came from, or where it goes. ``id`` is what a repetition of it has as
    well. ``body`` is None for what Kafka calls a tombstone. ``at_ms`` is when it was sent, 0 where
    the broker does not say. ``lane`` is the part of the source whose order is kept, and ``place``
    what the source needs to commit it. ``origin`` says to people which record of which source it
    is. ``properties`` is what only brokers of its kind know of it, as their adapter writes it.
    ``broken`` says why nothing but a dead letter can come of it, if that is so.
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

    ``is_shared`` says that the broker refused it together with others, and may mean one of those,
    ``is_of_target`` that what goes elsewhere may be taken meanwhile. ``is_dropped`` says that the
    target is set to drop it, so nothing is to be done about it.
    """

    reason: str
    is_final: bool
    is_shared: bool = False
    is_of_target: bool = False
    is_dropped: bool = False
