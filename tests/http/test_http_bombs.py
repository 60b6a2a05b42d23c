"""Bodies that are small on the wire and large in memory: refused before they are unpacked."""

import asyncio
import struct
import tracemalloc

import msgspec
import pyarrow as pa
import pytest
from msgspec import inspect

from dwell.errors import BatchTooLarge, InvalidInput
from dwell.message import MAX_BATCH_MESSAGES
from dwell.server.http import call, elements, messageheaders
from dwell.server.http.api import ENDPOINTS
from dwell.server.http.media import Media
from dwell.server.http.newrows import MAX_MESSAGE_BYTES, rows_in_turns
from dwell.server.http.putrows import bodies_of
from dwell.server.http.schemas.requests import (
    FindRequest,
    GetRequest,
    NewMessage,
    ScheduleRequest,
)
from dwell.server.http.tables import table_of
from dwell.wire.columns import PutColumns, ReceiptColumns
from tests.http.newrows import rows_of
from tests.http.test_http_api import calling

_MANY = 2_000_000
#: More than one message may be long, as it is written.
_LONG = b"7" * (MAX_MESSAGE_BYTES + 1)


def grown(call) -> int:
    """Return how many bytes more than before there were at most while something was called."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("form", "data"),
    [
        (Media.JSON, b"[" + b"{}," * _MANY + b"{}]"),
        (Media.JSON, b'[{"body":{}},' + b"{}," * _MANY + b"{}]"),
        (Media.MSGPACK, b"\xdd" + struct.pack(">I", _MANY) + b"\x80" * _MANY),
        (Media.MSGPACK, b"\xdd\xff\xff\xff\xff"),
        (Media.MSGPACK, b"\xdc\xff\xff" + b"\x80" * 0xFFFF),
        (Media.NDJSON, b"{}\n" * _MANY),
        (Media.NDJSON, b"\n" * _MANY),
        (Media.NDJSON, b"{}\n" + b" \n" * _MANY),
        (Media.NDJSON, b"\n" * _MANY + b"{}\n" * (MAX_BATCH_MESSAGES + 1)),
    ],
)
def test_no_more_messages_are_read_than_a_batch_has(form, data):
    def read() -> None:
        with pytest.raises(BatchTooLarge, match=f"expected {MAX_BATCH_MESSAGES} or fewer"):
            rows_of(data, form)

    # The text of it may be copied once, to see that it is one.
    assert grown(read) < 2 * len(data) + (8 << 20)


@pytest.mark.parametrize(
    ("form", "begin", "one", "between", "end"),
    [(Media.JSON, b"[", b'{"body":{}}', b",", b"]"), (Media.NDJSON, b"", b"{}", b"\n", b"\n")],
)
def test_a_full_batch_is_read(form, begin, one, between, end):
    data = begin + between.join([one] * MAX_BATCH_MESSAGES) + end
    for _ in range(2):
        assert len(rows_of(data, form)) == MAX_BATCH_MESSAGES
    assert len(rows_of(b'{"body":[' + b"{}," * _MANY + b"{}]}", Media.JSON)) == 1


@pytest.mark.parametrize("form", [Media.JSON, Media.MSGPACK, Media.NDJSON])
async def test_many_bytes_are_read_in_turns(form):
    row = {"body": "x" * 3000}
    if form is Media.NDJSON:
        data = msgspec.json.Encoder().encode_lines([row] * MAX_BATCH_MESSAGES)
    else:
        encode = msgspec.json.encode if form is Media.JSON else msgspec.msgpack.encode
        data = encode([row] * MAX_BATCH_MESSAGES)
    reading, turns = asyncio.ensure_future(rows_in_turns(data, form)), 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(await reading) == MAX_BATCH_MESSAGES
    assert turns > len(data) / 2**18


@pytest.mark.parametrize(
    ("form", "data", "where"),
    [
        (Media.JSON, b'{"body":"' + _LONG + b'"}', "messages[0]"),
        (Media.JSON, b'[{},{"body":"' + _LONG + b'"},{}]', "messages[1]"),
        (Media.JSON, b'[{},{"body":[' + b"1," * len(_LONG) + b"1]}]", "messages[1]"),
        (Media.MSGPACK, b"\x81\xa4body\xc6" + struct.pack(">I", len(_LONG)) + _LONG, "messages[0]"),
        (Media.MSGPACK, b"\x92\x80\xdd" + struct.pack(">I", len(_LONG)) + _LONG, "messages[1]"),
        (Media.NDJSON, b'{}\n{"body":"' + _LONG + b'"}\n{}\n', "line 2"),
    ],
)
def test_a_message_that_is_too_long_is_named_and_not_read(form, data, where):
    with pytest.raises(BatchTooLarge) as refusal:
        rows_of(data, form)
    assert str(refusal.value).startswith(f"{where}: got ")
    assert f"expected at most {MAX_MESSAGE_BYTES} of one message" in str(refusal.value)


@pytest.mark.parametrize("key", ["ARROW:experimental_compression", "arrow:Body_COMPRESSION"])
def test_arrow_says_in_no_spelling_that_it_is_compressed(key):
    size = 64 << 20
    packed = pa.Codec("zstd").compress(bytes(size), asbytes=True)
    raw = struct.pack("<q", size) + packed
    # What is left to a whole number is a frame that zstd skips.
    left = -len(raw) % 8 + 8
    raw += struct.pack("<II", 0x184D2A50, left - 8) + bytes(left - 8)
    column = pa.Array.from_buffers(pa.int64(), len(raw) // 8, [None, pa.py_buffer(raw)])
    batch = pa.record_batch([column], names=["body"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata={key: "ZSTD"})
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidInput, match="is compressed, expected one that is not"):
        table_of(sink.getvalue().to_pybytes())
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize(
    ("kinds", "refusal"),
    [
        ({str(n): pa.null() for n in range(4000)}, "expected one named body"),
        ({"body": pa.null()} | {str(n): pa.null() for n in range(4000)}, "expected one each of"),
        (
            {"body": pa.struct([(str(n), pa.null()) for n in range(4000)])},
            "column 'body' is struct",
        ),
    ],
)
def test_columns_of_arrow_are_refused_before_any_record_batch_is_read(kinds, refusal):
    # The batch is of another schema, so that who reads it is told that it is broken.
    batch = pa.record_batch([pa.array([1])], names=["other"]).serialize().to_pybytes()
    data = pa.schema(list(kinds.items())).serialize().to_pybytes() + batch
    with pytest.raises(InvalidInput, match=refusal):
        table_of(memoryview(data))


@pytest.mark.parametrize(
    "one", [b'{"body":"%b"}' % (rb"\n" * 1500), b'{"body":[%b1]}' % (b"1," * 1500)]
)
async def test_bodies_are_read_in_turns_and_no_more_than_a_batch_may_have(one):
    data, turns = b"[" + b",".join([one] * MAX_BATCH_MESSAGES) + b"]", 0
    rows = await rows_in_turns(data, Media.JSON)
    reading = asyncio.ensure_future(bodies_of(rows))
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 30
    if one.startswith(b'{"body":['):
        with pytest.raises(BatchTooLarge, match="bodies: got"):
            await reading
    else:
        assert await reading == [b"\n" * 1500] * MAX_BATCH_MESSAGES


@pytest.mark.parametrize("verb", ["cancel", "reschedule", "kick", "get"])
async def test_no_endpoint_reads_more_elements_than_it_may_have(verb, monkeypatch):
    read = []
    decode = call.decoded

    def noted(data, kind, form):
        read.append(len(data))
        return decode(data, kind, form)

    for module in (call, messageheaders):
        monkeypatch.setattr(module, "decoded", noted)
    data = b'{"ids":[' + b'"a",' * 100_000 + b'"a"]}'
    async with calling() as caller:
        path = f"/v1/topics/t/{verb}"
        await caller.post(path, data, content="application/json; charset=utf-8")
        assert (caller.status, read) == (413, [])


# --- elements ---------------------------------------------------------------------------------


def _kinds(found):
    """Yield a type and all that are in it."""
    yield found
    if isinstance(found, inspect.StructType):
        inner = [field.type for field in found.fields]
    elif isinstance(found, inspect.UnionType):
        inner = found.types
    else:
        names = ("type", "item_type", "key_type", "value_type")
        inner = [getattr(found, name) for name in names if hasattr(found, name)]
    for kind in inner:
        if isinstance(kind, inspect.Type):
            yield from _kinds(kind)


def test_each_list_of_what_is_asked_has_a_bound():
    asked = {endpoint.body for endpoint in ENDPOINTS if endpoint.body is not None}
    asked -= {NewMessage | list[NewMessage]}
    lists = [
        (kind, found)
        for kind in (*asked, PutColumns, ReceiptColumns)
        for found in _kinds(inspect.type_info(kind))
        if isinstance(found, inspect.ListType | inspect.SetType | inspect.VarTupleType)
    ]
    assert len(lists) > 20
    assert [one for one in lists if one[1].max_length is None] == []


@pytest.mark.parametrize(("word", "most"), [("cron", 1_000), ("rrule", 10_000)])
@pytest.mark.parametrize("verb", ["PUT", "PATCH"])
async def test_long_rules_are_refused_as_they_are_unpacked(word, most, verb):
    async with calling() as caller:
        ask = {"topic": "t", "body": "", word: "x" * (most + 1)}
        told = await caller.ask(verb, "/v1/schedules/s", ask)
        assert (caller.status, f"length <= {most}" in str(told)) == (400, True)


@pytest.mark.parametrize("text", [b'"a"', rb'"\"a"', b'"a,b"', rb'"\\"'])
def test_no_more_elements_are_read_than_a_request_may_have(text):
    def body(count):
        return b'{"ids":[' + b",".join([text] * count) + b"]}"

    most = elements.most_elements(GetRequest)
    assert MAX_BATCH_MESSAGES <= most < MAX_BATCH_MESSAGES + 10
    # Whatever texts hold, wherever the body is cut to be looked at.
    for begin in range(5):
        elements.check(b" " * (60_000 + begin) + body(MAX_BATCH_MESSAGES), GetRequest)
        with pytest.raises(BatchTooLarge, match=f"more than {most} values"):
            elements.check(b" " * (60_000 + begin) + body(300_000), GetRequest)
    elements.check(b'{"where":"' + b"," * 200_000 + b'"}', FindRequest)
    elements.check(b'{"where":"' + rb"\",\\" * 200_000 + b'"}', FindRequest)
    elements.check(b'{"body":[' + b"1," * 200_000 + b"1]}", ScheduleRequest)


def test_elements_are_counted_before_they_are_made():
    data = b'{"ids":[' + b'"ab",' * _MANY + b'"ab"]}'

    def read() -> None:
        with pytest.raises(BatchTooLarge):
            elements.check(data, GetRequest)

    assert grown(read) < 8 << 20
