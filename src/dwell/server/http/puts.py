"""Putting messages, in each of the forms in which they may come."""

from collections.abc import Sequence

import msgspec
import numpy as np

from dwell.batch.blobs import sizes_of
from dwell.batch.puts import DUE_COUNTED, EXPIRY_COUNTED, PUT_ARRAYS, Put, PutAnswer, Puts
from dwell.batch.results import words_of
from dwell.errors import InvalidHeaders, InvalidTime
from dwell.given import columns, values
from dwell.message import (
    I64,
    MAX_DELAY_MS,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_LEASE_MS,
    U8,
    U32,
    U64,
    Extra,
    encode_extra,
)
from dwell.queue.calling import calling_now
from dwell.server.http import arrow
from dwell.server.http.answer import Answer
from dwell.server.http.body import Data
from dwell.server.http.call import Call, decoded
from dwell.server.http.media import Media
from dwell.server.http.newrows import rows_in_turns
from dwell.server.http.putrows import put_rows
from dwell.server.http.schemas.answers import PutResult, PutResults
from dwell.server.http.schemas.requests import PutQuery
from dwell.server.parts import in_turns
from dwell.wire.columns import (
    OwnIds,
    PutColumns,
    bodies_as_read,
    columns_of_answer,
    own_ids_as_read,
    unpacked,
)

_extra_decoder = msgspec.msgpack.Decoder(Extra)
_encoder = msgspec.msgpack.Encoder()
#: A key and headers as they are written, with what stands before each text.
_MOST_EXTRA_BYTES = 8 + MAX_KEY_BYTES + MAX_HEADERS_BYTES + 6 * MAX_HEADERS


async def put(call: Call) -> Answer:
    """Put one message or many, all or none of them.

    A body of JSON or MessagePack is one message or a list of them; NDJSON has one a line. On an
    id that exists, ``on_conflict`` says ``keep``, ``replace`` or ``error``.
    """
    topic = call.allowed_topic()
    on_conflict = values.conflict(call.query(PutQuery).on_conflict)
    if not await _was_done(call):
        call.service.check_puts()
    form, data = call.given, call.data
    if form is Media.COLUMNS:
        return await _put_columns(call, topic, data, on_conflict)
    if form is Media.ARROW:
        puts: Sequence[Put] = await arrow.put(call, topic, data, on_conflict)
    else:
        puts = await put_rows(call, topic, await rows_in_turns(data, form), on_conflict)
    return call.answer(PutResults(_results(puts)))


async def _was_done(call: Call) -> bool:
    """Tell whether this is the repeat of a request that was done: it needs no room, nor a service.

    That is told by its first message; whether there are others is seen when all are read.
    """
    calling = calling_now()
    if calling is None or not calling.is_again:
        return False
    was_done = bool((await call.queue.store.outcomes(calling.coming(1))).any())
    call.check_again()
    return was_done


def _results(puts: Sequence[Put]) -> list[PutResult]:
    if not isinstance(puts, PutAnswer):
        return [PutResult(put.id, str(put.result), put.number) for put in puts]
    words = words_of(puts.results)
    return list(map(PutResult, puts.ids, words, puts.numbers.tolist()))


async def _put_columns(call: Call, topic: str, data: Data, on_conflict: str) -> Answer:
    """Put columns; what became of them is said in columns, too."""
    puts = await puts_of_columns(call, topic, decoded(data, PutColumns, Media.COLUMNS))
    answer = await call.put_puts(puts, on_conflict)
    told = columns_of_answer(answer, own=puts.ids is not None)
    return Answer(_encoder.encode(told), Media.COLUMNS)


async def puts_of_columns(call: Call, topic: str, given: PutColumns) -> Puts:
    """Return the put of columns; raises InvalidInput."""
    puts = await _puts_of(topic, given, call.queue.clock.now_ms())
    call.service.check_body(int(sizes_of(puts.bodies).max(initial=0)))
    if puts.counted is not None:
        if set_ms := call.set_ms:
            puts.count_anew(set_ms)
            _check_moments(puts, call.queue.clock.now_ms())
            return puts
        # A due that was given stays as it is, whatever time it is by the caller's clock.
        is_counted = (puts.counted & DUE_COUNTED) > 0
        puts.due_ms = np.where(is_counted, call.reached(puts.due_ms), puts.due_ms)
    return puts


def _checked_versions(data: bytes | int | None, size: int) -> U64 | None:
    found: U64 | None = None if data is None else unpacked(data, size, np.uint64, "versions")
    return found


async def _puts_of(topic: str, given: PutColumns, now_ms: int) -> Puts:
    """Return a put that came as columns; raises InvalidInput for what no store may be given."""
    size = given.count
    columns.check_count(size, "bodies")
    bodies = bodies_as_read(given.bodies, given.sizes, size)
    columns.check_sizes(bodies.sizes)
    numbers = {
        name: unpacked(getattr(given, name), size, dtype, name)
        for name, dtype in PUT_ARRAYS.items()
    }
    _check_leases(numbers["lease_ms"])
    puts = Puts(
        topic=topic,
        bodies=bodies,
        ids=None if given.ids is None else _own_ids(given.ids, size),
        extras=None if given.extras is None else await _checked_extras(given.extras, size),
        counted=None if given.counted is None else _checked_counted(given.counted, size),
        versions=_checked_versions(given.versions, size),
        **numbers,
    )
    _check_moments(puts, now_ms)
    return puts


def _check_moments(puts: Puts, now_ms: int) -> None:
    _check_times(puts.due_ms, now_ms, "due_ms")
    _check_times(puts.expires_ms, now_ms, "expires_ms")


def _checked_counted(counted: bytes | int, size: int) -> U8:
    """Return what of each message was counted, without bits that mean nothing."""
    flags = unpacked(counted, size, np.uint8, "counted")
    known: U8 = flags & np.uint8(DUE_COUNTED | EXPIRY_COUNTED)
    return known


def _own_ids(ids: OwnIds, size: int) -> Sequence[bytes] | None:
    return columns.own_ids(own_ids_as_read(ids, size), size)


def _check_times(times_ms: I64, now_ms: int, field: str) -> None:
    if len(times_ms) and not 0 <= times_ms.min() <= times_ms.max() <= now_ms + MAX_DELAY_MS:
        for at in np.flatnonzero((times_ms < 0) | (times_ms > now_ms + MAX_DELAY_MS))[:1].tolist():
            values.due_ms(int(times_ms[at]), now_ms, f"{field}[{at}]")


def _check_leases(leases_ms: U32) -> None:
    if len(leases_ms) and leases_ms.max() > MAX_LEASE_MS:
        at = int(leases_ms.argmax())
        raise InvalidTime(
            f"lease_ms[{at}]: got {leases_ms[at]}, expected at most {MAX_LEASE_MS} ms"
        )


async def _checked_extras(extras: list[bytes], size: int) -> list[bytes]:
    """Return keys and headers in the form of the queue's own, without what else came with them."""
    if len(extras) != size:
        raise InvalidHeaders(f"extras: got {len(extras)} values, expected {size}")
    checked: list[bytes] = []
    async for data in in_turns(extras, map(len, extras)):
        checked.append(data and _checked_extra(data, len(checked)))
    return checked


def _checked_extra(data: bytes, at: int) -> bytes:
    if len(data) > _MOST_EXTRA_BYTES:
        allowed = f"a key and at most {MAX_HEADERS} headers of {MAX_HEADERS_BYTES} bytes"
        raise InvalidHeaders(f"extras[{at}]: got {len(data)} bytes, expected {allowed}")
    try:
        extra = _extra_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidHeaders(f"extras[{at}]: {error}") from None
    key = values.key(extra.key, f"extras[{at}].key")
    return encode_extra(key, values.headers(extra.headers, f"extras[{at}].headers"))
