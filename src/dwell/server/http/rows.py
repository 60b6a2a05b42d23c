"""Rows: messages and events as objects, as callers read them."""

from collections.abc import Iterable
from itertools import repeat

import msgspec

from dwell.batch.events import EVENT_COLUMNS, KIND_WORDS, Events
from dwell.message import Message
from dwell.server.http.schemas.answers import EventRow
from dwell.server.parts import in_turns
from dwell.wire.rows import Shown, shown

#: The cost of an event in a turn of the event loop.
_EVENT_BYTES = 128


def message_rows(batch: Iterable[Message], *, packed: bool = False) -> list[Shown]:
    """Return messages as objects; ``packed`` keeps bodies as binary data."""
    return [shown(message, packed=packed) for message in batch]


async def event_rows(events: Events) -> list[EventRow]:
    """Return events as objects; yields to other tasks."""
    lists = events.lists
    at = EVENT_COLUMNS.index("kind")
    lists[at] = [KIND_WORDS[code] for code in lists[at]]
    rows = zip(*lists, strict=True)
    return [EventRow(*row) async for row in in_turns(rows, repeat(_EVENT_BYTES))]


def as_lines(rows: Iterable[object]) -> bytes:
    """Return objects as NDJSON."""
    return msgspec.json.Encoder().encode_lines(rows)
