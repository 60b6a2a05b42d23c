"""Columns: many messages in MessagePack, a column a field, so that no message costs an object.

Numbers of one field are one binary value, little-endian, with the width of :mod:`dwell.message`
(``due_ms`` 8 bytes, ``priority`` 4 ...); a single number stands for a column of that number.
docs/reference/columns.md is the specification.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from dwell.batch.batch import BATCH_ARRAYS, Batch
from dwell.batch.blobs import Blobs, LazyIds, Same, joined, sizes_of, text_bytes
from dwell.batch.events import EVENT_ARRAYS, EventPage, Events
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import PUT_ARRAYS, PutAnswer, Puts
from dwell.batch.sweep import Sweep
from dwell.errors import InvalidInput
from dwell.message import I64, MAX_BATCH_MESSAGES, U8, U64, receipts_from_bytes
from dwell.slices import places

MEDIA_TYPE = "application/vnd.dwell.columns"

#: How long the errors of one request are: a server takes 8 MiB that bring no messages.
_MOST_ERRORS_BYTES = 4 * 1024 * 1024

Column = bytes | int


class OwnIds(msgspec.Struct, tag_field="form", tag="own"):
    """Ids of the caller's in UTF-8, one behind the other; ``sizes`` says how long each is."""

    data: bytes
    sizes: Column


class PutColumns(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The messages of one put, as in :class:`dwell.batch.puts.Puts`.

    ``bodies`` follow one another; ``sizes`` are their lengths (4 bytes a number). ``counted`` names
    the values of each message that the caller counted from now (1 byte a number): 1 its due, 2 its
    expiry, 3 both; without it, a due of now was counted. ``versions`` are the versions that
    messages must have to be replaced (8 bytes a number), 0 for any.
    """

    count: int
    bodies: bytes
    sizes: Column
    due_ms: Column
    priority: Column
    lease_ms: Column
    max_attempts: Column
    expires_ms: Column
    ids: OwnIds | None = None
    extras: Annotated[list[bytes], Meta(max_length=MAX_BATCH_MESSAGES)] | None = None
    counted: Column | None = None
    versions: Column | None = None


class MadeIds(msgspec.Struct, tag_field="form", tag="made"):
    """Ids that the queue made, ``~row-arrival`` in hexadecimal digits."""

    rows: bytes
    arrivals: bytes


#: Ids in the form that costs least; a list where some are the queue's and some a caller's.
MixedIds = list[str] | OwnIds | MadeIds


class PutAnswerColumns(msgspec.Struct, omit_defaults=True):
    """The results of the messages of a put; without ``ids`` they are the caller's own."""

    results: bytes
    numbers: bytes
    ids: MixedIds | None = None


class BatchColumns(msgspec.Struct, omit_defaults=True):
    """Some messages; ``topic`` is the index in ``topics`` of each.

    ``next`` is the place of the first id that a get by ids had no room for. ``versions`` are the
    versions of a page, from a server that sends them. ``damaged`` are the places of the ids whose
    messages the server's disk has damaged.
    """

    count: int
    topics: list[str]
    topic: Column
    ids: MixedIds
    bodies: bytes
    sizes: Column
    due_ms: Column
    priority: Column
    attempt: Column
    max_attempts: Column
    lease_ms: Column
    until_ms: Column
    expires_ms: Column
    state: Column
    numbers: Column
    extras: list[bytes] | None = None
    errors: dict[int, str] = {}
    receipts: bytes | None = None
    cursor: Cursor | None = None
    next: int | None = None
    versions: Column | None = None
    damaged: list[int] = []


class SweepColumns(msgspec.Struct):
    """A part of a sweep: ``next_place`` is None after the last one.

    An older server sends no ``versions``.
    """

    messages: BatchColumns
    next_place: int | None
    places: int
    versions: Column | None = None


class EventColumns(msgspec.Struct):
    """Some events; ``topic`` says for each which of ``topics`` is its own.

    An older server names no history, which is then not known.
    """

    count: int
    topics: list[str]
    topic: Column
    ids: MixedIds
    positions: Column
    time_ms: Column
    kind: Column
    due_ms: Column
    attempt: Column
    next_position: int
    first_position: int
    end_position: int
    since: str = ""
    history: str = ""


class ReceiptColumns(msgspec.Struct, omit_defaults=True):
    """The arguments of a verb by receipt: the receipts, 16 bytes each, and its options."""

    receipts: bytes
    delay_ms: Column | None = 0
    error: str | Annotated[list[str | None], Meta(max_length=MAX_BATCH_MESSAGES)] | None = None
    counted: bool = True
    priority: int | None = None
    lease_ms: int = 0
    #: A result for each message of an ack, or None.
    results: Annotated[list[bytes | None], Meta(max_length=MAX_BATCH_MESSAGES)] | None = None
    #: One message to be put in the same step as the ack of one, and its topic.
    then: PutColumns | None = None
    then_topic: str = ""


class ResultColumns(msgspec.Struct):
    """One code of :class:`dwell.Result` for each message."""

    results: bytes


# --- numbers ----------------------------------------------------------------------------------


def packed(column: np.ndarray) -> Column:
    """Return a column for the wire; a single number if all are the same."""
    if len(column) and (column == column[0]).all():
        return int(column[0])
    return column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()


def unpacked(data: Column, size: int, dtype: type[np.generic], field: str) -> Any:
    """Return a column of numbers as an array; raises InvalidInput when it is not one."""
    if size < 0:
        raise InvalidInput(f"count: got {size}, expected 0 or more")
    if isinstance(data, int):
        info = np.iinfo(dtype)  # type: ignore[type-var]
        if not info.min <= data <= info.max:
            raise InvalidInput(f"{field}: got {data}, expected {info.min} to {info.max}")
        return np.full(size, data, dtype=dtype)
    width = np.dtype(dtype).itemsize
    if len(data) != size * width:
        raise InvalidInput(f"{field}: got {len(data)} bytes, expected {size * width}")
    return np.frombuffer(data, dtype=np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False)


def packed_receipts(receipts: U64) -> bytes:
    """Return receipts of shape (n, 2) as they are written: big-endian, as their texts are."""
    return receipts.astype(">u8").tobytes()


def unpacked_receipts(data: bytes) -> U64:
    """Return receipts of shape (n, 2); raises InvalidInput."""
    if len(data) % 16:
        raise InvalidInput(f"receipts: got {len(data)} bytes, expected a multiple of 16")
    return receipts_from_bytes(data)


def columns_of_releases(
    receipts: U64,
    delay_ms: int | I64 | None,
    error: str | Sequence[str | None] | None,
    counted: bool,
    priority: int | None,
) -> Iterator[ReceiptColumns]:
    """Yield the arguments of a release for the wire, in parts that fit a request."""
    told: Iterable[tuple[slice, str | list[str | None] | None]]
    if error is None or isinstance(error, str):
        told = [(slice(None), error)]
    else:
        parts = places(map(text_bytes, error), _MOST_ERRORS_BYTES)
        told = ((part, list(error[part])) for part in parts)
    for part, own in told:
        own_ms = packed(delay_ms[part]) if isinstance(delay_ms, np.ndarray) else delay_ms
        yield ReceiptColumns(packed_receipts(receipts[part]), own_ms, own, counted, priority)


# --- puts -------------------------------------------------------------------------------------


def columns_of_puts(puts: Puts) -> PutColumns:
    """Return a put for the wire."""
    return PutColumns(
        count=len(puts),
        bodies=joined(puts.bodies),
        sizes=packed(sizes_of(puts.bodies).astype(np.uint32)),
        ids=None if puts.ids is None else _own(puts.ids),
        extras=None if puts.extras is None else list(puts.extras),
        counted=None if puts.counted is None else packed(puts.counted),
        versions=None if puts.versions is None else packed(puts.versions),
        **{name: packed(getattr(puts, name)) for name in PUT_ARRAYS},
    )


def columns_of_answer(answer: PutAnswer, *, own: bool) -> PutAnswerColumns:
    """Return the answer to a put for the wire; the caller's ``own`` ids are left out."""
    numbers = answer.numbers.astype("<u8", copy=False).tobytes()
    ids = None if own else ids_as_written(answer.ids)
    return PutAnswerColumns(answer.results.tobytes(), numbers, ids)


def answer_of_columns(columns: PutAnswerColumns, own: Sequence[str] | None) -> PutAnswer:
    """Return the answer to a put from the wire; ``own`` are the ids that the caller chose."""
    size = len(columns.results)
    numbers = unpacked(columns.numbers, size, np.uint64, "numbers")
    ids = own if columns.ids is None else ids_as_read(columns.ids, size)
    return PutAnswer(ids if ids is not None else [], results_of(columns.results), numbers)


def results_of(data: bytes) -> U8:
    """Return the codes of results."""
    return np.frombuffer(data, dtype=np.uint8)


def bodies_as_read(data: bytes, sizes: Column, count: int) -> Blobs:
    """Return bodies that were written; raises InvalidInput when their sizes do not fit."""
    return _blobs_as_read(data, sizes, count, np.uint32, "bodies")


def _blobs_as_read(
    data: bytes, sizes: Column, count: int, width: type[np.generic], field: str
) -> Blobs:
    each = unpacked(sizes, count, width, f"{field}: sizes").astype(np.int64)
    if int(each.sum()) != len(data):
        raise InvalidInput(f"{field}: got {len(data)} bytes, expected {int(each.sum())}")
    return Blobs.packed(data, each)


# --- ids --------------------------------------------------------------------------------------


def _own(ids: Sequence[bytes]) -> OwnIds:
    return OwnIds(joined(ids), packed(sizes_of(ids).astype(np.uint16)))


def ids_as_written(ids: Sequence[str]) -> MixedIds:
    """Return ids for the wire; ids that the queue made need no text."""
    if not isinstance(ids, LazyIds):
        return list(ids)
    made = ids.made()
    if made is None:
        own = ids.own()
        return list(ids) if own is None else _own(own)
    rows, arrivals = made
    return MadeIds(rows.astype("<u4").tobytes(), arrivals.astype("<u8").tobytes())


def own_ids_as_read(ids: OwnIds, count: int) -> Blobs:
    """Return a caller's ids that were written; raises InvalidInput when sizes do not fit."""
    return _blobs_as_read(ids.data, ids.sizes, count, np.uint16, "ids")


def ids_as_read(ids: MixedIds, count: int) -> Sequence[str]:
    """Return ids that were written."""
    if isinstance(ids, list):
        return ids
    if isinstance(ids, OwnIds):
        return LazyIds.of(own_ids_as_read(ids, count))
    rows = np.frombuffer(ids.rows, dtype="<u4").astype(np.uint32)
    return LazyIds(rows, np.frombuffer(ids.arrivals, dtype="<u8").astype(np.uint64), None)


# --- batches ----------------------------------------------------------------------------------


def columns_of_batch(batch: Batch, cursor: Cursor | None = None) -> BatchColumns:
    """Return some messages as they are written."""
    topics, topic = _topics(batch.topics)
    receipts = batch.receipts
    numbers: dict[str, Any] = {name: packed(getattr(batch, name)) for name in BATCH_ARRAYS}
    return BatchColumns(
        count=len(batch),
        topics=topics,
        topic=topic,
        ids=ids_as_written(batch.ids),
        bodies=joined(batch.bodies),
        sizes=packed(sizes_of(batch.bodies).astype(np.uint32)),
        extras=_extras(batch.extras),
        errors=batch.errors,
        receipts=None if receipts is None else packed_receipts(receipts),
        cursor=cursor,
        **numbers,
    )


def columns_of_page(page: Page) -> BatchColumns:
    """Return a page for the wire, with the versions of its messages if it has them."""
    columns = columns_of_batch(page.messages, page.cursor)
    if len(page.versions):
        columns.versions = packed(page.versions)
    return columns


def page_of_columns(columns: BatchColumns) -> Page:
    """Return a page that was written; raises InvalidInput."""
    messages = batch_of_columns(columns)
    if columns.versions is None:
        return Page(messages, columns.cursor)
    versions = unpacked(columns.versions, len(messages), np.uint64, "versions")
    return Page(messages, columns.cursor, versions)


def columns_of_sweep(sweep: Sweep) -> SweepColumns:
    """Return a part of a sweep for the wire."""
    versions = None if sweep.versions is None else packed(sweep.versions)
    messages = columns_of_batch(sweep.messages)
    return SweepColumns(messages, sweep.next_place, sweep.places, versions)


def sweep_of_columns(columns: SweepColumns) -> Sweep:
    """Return a part of a sweep that was written; raises InvalidInput."""
    messages, versions = batch_of_columns(columns.messages), columns.versions
    known = None if versions is None else unpacked(versions, len(messages), np.uint64, "versions")
    return Sweep(messages, columns.next_place, columns.places, known)


def batch_of_columns(columns: BatchColumns) -> Batch:
    """Return messages that were written."""
    size, receipts = columns.count, columns.receipts
    return Batch(
        topics=_topics_as_read(columns),
        ids=ids_as_read(columns.ids, columns.count),
        bodies=bodies_as_read(columns.bodies, columns.sizes, size),
        extras=columns.extras if columns.extras is not None else Same(b"", size),
        errors=columns.errors,
        receipts=None if receipts is None else unpacked_receipts(receipts),
        **_numbers(columns, BATCH_ARRAYS),
    )


def _numbers(
    columns: BatchColumns | EventColumns, kinds: dict[str, type[np.generic]]
) -> dict[str, Any]:
    return {
        name: unpacked(getattr(columns, name), columns.count, kind, name)
        for name, kind in kinds.items()
    }


def _topics_as_read(columns: BatchColumns | EventColumns) -> Sequence[str]:
    if isinstance(columns.topic, int):
        return Same(columns.topics[columns.topic], columns.count) if columns.count else []
    numbers = unpacked(columns.topic, columns.count, np.uint32, "topic")
    return [columns.topics[number] for number in numbers.tolist()]


def _extras(extras: Sequence[bytes]) -> list[bytes] | None:
    if isinstance(extras, Same):
        return list(extras) if extras.value else None
    return list(extras) if any(extras) else None


def _topics(topics: Sequence[str]) -> tuple[list[str], Column]:
    if isinstance(topics, Same):
        return list(topics[:1]), 0
    names = list(dict.fromkeys(topics))
    places = {name: at for at, name in enumerate(names)}
    return names, packed(np.array([places[name] for name in topics], dtype=np.uint32))


# --- events -----------------------------------------------------------------------------------


def columns_of_events(page: EventPage) -> EventColumns:
    """Return some events as they are written."""
    events = page.events
    topics, topic = _topics(events.topics)
    return EventColumns(
        count=len(events),
        topics=topics,
        topic=topic,
        ids=ids_as_written(events.ids),
        next_position=page.next_position,
        first_position=page.first_position,
        end_position=page.end_position,
        since=page.since,
        history=page.history,
        **{name: packed(getattr(events, name)) for name in EVENT_ARRAYS},
    )


def events_of_columns(columns: EventColumns) -> EventPage:
    """Return events that were written."""
    events = Events(
        topics=_topics_as_read(columns),
        ids=ids_as_read(columns.ids, columns.count),
        **_numbers(columns, EVENT_ARRAYS),
    )
    positions = (columns.next_position, columns.first_position, columns.end_position)
    return EventPage(events, *positions, columns.since, columns.history)
