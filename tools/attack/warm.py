"""Warming up: a server that has worked for a while has loaded what it needs, and some room."""

import struct

import pyarrow as pa

from tools.attack.attack import must
from tools.attack.sockets import connected
from tools.attack.target import TENANT, Target, asked

_PUT = f"/v1/topics/{TENANT}.warm/messages"


async def warm(target: Target) -> None:
    """Put and take a few messages in every form, and ask by an expression."""
    table = pa.table({"body": ["x"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    forms = {
        "application/json": b'{"body":"x"}',
        "application/x-ndjson": b'{"body":"x"}\n',
        "application/msgpack": b"\x91\x81\xa4body" + struct.pack("B", 0xA1) + b"x",
        "application/vnd.apache.arrow.stream": sink.getvalue().to_pybytes(),
    }
    requests = [
        asked(TENANT, "POST", _PUT, data, content_type=form) for form, data in forms.items()
    ]
    requests.append(asked(TENANT, "POST", _PUT.replace("messages", "find"), {"where": "@"}))
    requests.append(asked(TENANT, "POST", "/v1/take", {"topics": f"{TENANT}.warm", "limit": 10}))
    async with connected(target, context=target.context) as wire:
        for request in requests:
            answer = await wire.ask(request)
            must(answer.status == 200, f"could not be warmed up: {answer.data[:200]!r}")
