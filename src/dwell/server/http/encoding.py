"""Encoding: messages as rows of JSON, NDJSON or MessagePack, up to the size of an answer.

Large batches are encoded in parts; other connections are served between the parts.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dwell.batch.batch import Batch
from dwell.batch.blobs import sizes_of, total_bytes
from dwell.message import MAX_BATCH_BYTES, Message
from dwell.server.http.answer import Answer
from dwell.server.http.media import Media
from dwell.slices import places
from dwell.wire.rows import shown

#: The size of messages whose answer is still made in one go.
SMALL_BYTES = 64 * 1024
_SMALL_MESSAGES = 100
#: The limit of a page of rows: rows take more memory than columns.
MOST_PAGE_BYTES = MAX_BATCH_BYTES // 2
#: How many bytes are encoded before other tasks run, and the base cost of a message.
_TURN_BYTES = 512 * 1024
_MESSAGE_BYTES = 512
#: How many times as long as a byte of a body one of the key and headers takes.
_EXTRA_COST = 16

_json, _msgpack = msgspec.json.Encoder(), msgspec.msgpack.Encoder()


def size_of(batch: Batch) -> int:
    """Return how many bytes messages have, about."""
    return total_bytes(batch.bodies) + total_bytes(batch.extras)


def is_small(batch: Batch) -> bool:
    """Tell whether an answer of messages takes no time or memory that others would notice."""
    if len(batch) == 1:
        return len(batch.bodies[0]) <= SMALL_BYTES
    return len(batch) <= _SMALL_MESSAGES and size_of(batch) <= SMALL_BYTES


def parts_of(batch: Batch) -> Iterator[slice]:
    """Yield the parts of a batch, each small enough for one turn of the event loop."""
    costs = sizes_of(batch.bodies) + _EXTRA_COST * sizes_of(batch.extras) + _MESSAGE_BYTES
    return places(costs, _TURN_BYTES)


class Rows:
    """Messages as rows, as many as an answer has room for, one at least.

    ``count`` is how many those are.
    """

    def __init__(self, form: Media) -> None:
        self._form = form
        self._encoder: Any = _msgpack if form is Media.MSGPACK else _json
        self._separator = _SEPARATORS[form]
        self._data = bytearray(_BEGINNINGS[form])
        self._begin = len(self._data)
        self.count = 0

    @classmethod
    async def of(
        cls, messages: Iterable[Message | None], form: Media, most_bytes: int = MAX_BATCH_BYTES
    ) -> "Rows":
        """Return messages as rows, all of them if ``most_bytes`` is 0; None is a row, too.

        0 is for a store that returns more messages than requested, because it stores them together.
        """
        rows = cls(form)
        left_bytes = _TURN_BYTES
        for message in messages:
            before = len(rows._data)
            rows._add(message)
            if most_bytes and len(rows._data) > most_bytes and rows.count > 1:
                del rows._data[before:]
                rows.count -= 1
                break
            left_bytes -= len(rows._data) - before + _MESSAGE_BYTES
            if left_bytes < 0:
                await asyncio.sleep(0)
                left_bytes = _TURN_BYTES
        return rows

    def _add(self, message: Message | None) -> None:
        is_packed = self._form is Media.MSGPACK
        row = None if message is None else shown(message, packed=is_packed)
        if self.count:
            self._data += self._separator
        self._encoder.encode_into(row, self._data, -1)
        self.count += 1

    def answer(self, **others: object) -> Answer:
        """Return an object with the rows as ``messages`` and other fields, or the rows as lines."""
        data = self._data
        if self._form is Media.NDJSON:
            data += b"\n" if self.count else b""
        elif self._form is Media.MSGPACK:
            data[0] += len(others)
            data[self._begin - 4 : self._begin] = self.count.to_bytes(4)
            for name, value in others.items():
                data += _msgpack.encode(name) + _msgpack.encode(value)
        else:
            data += b"]," + _json.encode(others)[1:] if others else b"]}"
        return Answer(data, self._form)


#: In MessagePack objects and arrays say first how many items they have: one, and none yet.
_BEGINNINGS = {
    Media.JSON: b'{"messages":[',
    Media.MSGPACK: b"\x81\xa8messages\xdd\0\0\0\0",
    Media.NDJSON: b"",
}
_SEPARATORS = {Media.JSON: b",", Media.MSGPACK: b"", Media.NDJSON: b"\n"}
