"""Bodies that are small on the wire and large in memory."""

import json
import struct
from functools import partial
from typing import Any

import pyarrow as pa

from dwell.message import MAX_BATCH_BYTES
from dwell.server.http.call import MAX_REQUEST_BYTES
from dwell.wire.columns import MEDIA_TYPE
from tools.attack.attack import Attack, must
from tools.attack.sockets import ask, hammer
from tools.attack.target import TENANT, Target, asked

_JSON, _MSGPACK = "application/json", "application/msgpack"
_NDJSON, _ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"
_PUT = f"/v1/topics/{TENANT}.t/messages"
#: As long as a body may be.
_LONG = MAX_REQUEST_BYTES - 64
_REFUSED = (400, 413, 429)


def _json_rows() -> bytes:
    return b"[" + b"{}," * (_LONG // 3 - 1) + b"{}]"


def _msgpack_rows() -> bytes:
    return b"\xdd" + struct.pack(">I", _LONG) + b"\x80" * _LONG


def _ndjson_rows() -> bytes:
    return b"{}\n" * (_LONG // 3)


def _arrow_rows() -> bytes:
    return _stream(pa.record_batch([pa.nulls(10_000_000)], names=["body"]))


def _stream(batch: Any, **more: str) -> bytes:
    sink = pa.BufferOutputStream()
    # The newer version of the metadata says in another place what is compressed.
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata=more)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _bomb(key: str) -> bytes:
    """Return a column that says that it is 3 GB of zeros."""
    size = 3 << 30
    packed = pa.Codec("zstd").compress(bytes(64 << 20), asbytes=True)
    raw = struct.pack("<q", size) + packed * (size // (64 << 20))
    # What is left to a whole number is a frame that zstd skips.
    left = -len(raw) % 8 + 8
    raw += struct.pack("<II", 0x184D2A50, left - 8) + bytes(left - 8)
    column = pa.Array.from_buffers(pa.int64(), len(raw) // 8, [None, pa.py_buffer(raw)])
    return _stream(pa.record_batch([column], names=["body"]), **{key: "ZSTD"})


def _headers() -> bytes:
    names = b",".join(b'"%x":""' % n for n in range(2_500_000))
    return b'{"body":1,"headers":{' + names + b"}}"


def _deep() -> bytes:
    return b'{"body":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}"


def _receipts() -> bytes:
    count = 10_000_000
    return b"\x81\xa8receipts\xdd" + struct.pack(">I", count) + b"\xa0" * count


def _ids() -> bytes:
    return b'{"ids":[' + b'"",' * (_LONG // 3 - 10) + b'""]}'


def _objects() -> bytes:
    count = _LONG - 100
    return b"\x81\xa4body\xdd" + struct.pack(">I", count) + b"\x80" * count


def _command_objects() -> bytes:
    count = 8 * 1024 * 1024 - 200
    head = b"\x84\xa7command\xa3add\xa5topic\xa8tenant.x\xa2id\xa1a\xa4body\xdd"
    return head + struct.pack(">I", count) + b"\x80" * count


def _span() -> bytes:
    return b'{"body":1,"delay":"%b"}' % (b"x" * (20 << 20))


def _field() -> bytes:
    size = _LONG - 200
    return b"\x81\xdb" + struct.pack(">I", size) + b"\x01" * size + b"\xc0"


def _column_name() -> bytes:
    return _stream(pa.record_batch([pa.array([1])], names=["\x01" * (30 << 20)]))


def _wide() -> bytes:
    """Return thousands of columns of nulls in hundreds of record batches, each of some objects."""
    names = [str(n) for n in range(8_000)]
    batch = pa.record_batch([pa.nulls(1)] * len(names), names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(250):
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _blank_lines() -> bytes:
    return b"\n" * _LONG


def _topics() -> bytes:
    return b'{"topics":[' + b'"abc",' * (8 * 1024 * 1024 // 6 - 40) + b'"a"]}'


def _extras() -> bytes:
    count = _LONG // 4
    return b"\x82\xa5count\x01\xa6extras\xdd" + struct.pack(">I", count) + b"\xc4\x02ab" * count


def _lists() -> bytes:
    return b"[" + b",".join([b'{"body":[' + b"1," * 900 + b"1]}"] * 9_999) + b"]"


async def header_rows(target: Target) -> str:
    """Put four thousand messages with 256 headers each, and list them as Arrow."""
    headers = {f"{n:03}": "v" for n in range(256)}
    data = json.dumps([{"body": "x", "headers": headers}] * 4_000, separators=(",", ":"))
    answer = await ask(target, asked(TENANT, "POST", _PUT, data.encode(), content_type=_JSON))
    must(answer.status == 200, f"the put: {answer.data[:200]!r}")
    path = f"{_PUT}?state=ready&limit=4000"
    answer = await ask(target, asked(TENANT, "GET", path, accept=_ARROW))
    must(answer.status == 200, f"the list: {answer.data[:200]!r}")
    must(len(answer.data) < MAX_BATCH_BYTES + (1 << 20), f"a list of {len(answer.data)} bytes")
    return f"{len(data) / 1e6:.0f} MB put, {len(answer.data) / 1e6:.0f} MB listed"


async def _send(make: Any, form: str, path: str, target: Target) -> str:
    data = make()
    request = asked(TENANT, "POST", path, data, content_type=form)
    answers = await hammer(target, request, at_once=1)
    longest = max(len(answer.data) for answer in answers)
    must(longest < 20_000, f"a refusal of {longest} bytes")
    statuses = {answer.status for answer in answers if b'"success":false' not in answer.data}
    must(statuses <= set(_REFUSED), f"got {statuses}, expected a refusal: {answers[0].data[:80]!r}")
    return f"{len(answers)} of {len(data) / 1e6:.1f} MB refused"


def _attack(name: str, make: Any, form: str = _JSON, path: str = _PUT) -> Attack:
    return Attack(name, partial(_send, make, form, path))


ATTACKS = (
    _attack("too many rows in JSON", _json_rows),
    _attack("too many rows in MessagePack", _msgpack_rows, _MSGPACK),
    _attack("too many rows in NDJSON", _ndjson_rows, _NDJSON),
    _attack("too many rows in Arrow", _arrow_rows, _ARROW),
    _attack("an Arrow compression bomb", partial(_bomb, "ARROW:experimental_compression"), _ARROW),
    _attack("the same, spelled otherwise", partial(_bomb, "arrow:Body_COMPRESSION"), _ARROW),
    _attack("thousands of columns of Arrow in hundreds of parts", _wide, _ARROW),
    _attack("millions of blank lines in NDJSON", _blank_lines, _NDJSON),
    _attack("millions of topics", _topics, path="/v1/take"),
    _attack("millions of extras in columns", _extras, MEDIA_TYPE),
    _attack("thousands of bodies that are long lists", _lists),
    _attack("millions of headers", _headers),
    _attack("a body nested two million deep", _deep),
    _attack("millions of receipts", _receipts, _MSGPACK, "/v1/ack"),
    _attack("millions of ids", _ids, path=_PUT.replace("messages", "get")),
    _attack("a body of millions of maps", _objects, _MSGPACK),
    _attack("a command of millions of maps", _command_objects, _MSGPACK, "/command"),
    _attack("a delay of megabytes", _span),
    _attack("the name of a field of megabytes", _field, _MSGPACK),
    _attack("the name of a column of megabytes", _column_name, _ARROW),
    Attack("millions of headers in thousands of messages", header_rows),
)
