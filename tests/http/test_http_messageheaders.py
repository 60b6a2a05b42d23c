"""Headers of messages: as many and as long as they may be, in every form in which they come."""

import json
import tracemalloc

import msgspec
import pyarrow as pa
import pytest

from dwell.message import MAX_HEADERS, MAX_HEADERS_BYTES
from dwell.server.http import messageheaders as headers_module
from dwell.server.http.media import Media
from dwell.server.http.putrows import headers_of
from dwell.server.http.schemas.requests import CancelRequest
from tests.http.newrows import rows_of
from tests.http.test_http_api import ARROW, MSGPACK, NDJSON, calling, stream_of

PATH = "/v1/topics/t/messages"
COLUMNS = "application/vnd.dwell.columns"
MANY = {f"{n:03}": "" for n in range(MAX_HEADERS + 1)}
MOST = dict(list(MANY.items())[1:])
LONG = {"h": "x" * MAX_HEADERS_BYTES}
LONGEST = {"h": "\x01" * (MAX_HEADERS_BYTES - 1)}


def as_columns(headers):
    extras = [msgspec.msgpack.encode([None, headers])]
    names = ("due_ms", "priority", "lease_ms", "max_attempts", "expires_ms")
    numbers = dict.fromkeys(names, 0)
    return msgspec.msgpack.encode(
        {"count": 1, "bodies": b"x", "sizes": 1, "extras": extras, **numbers}
    )


def as_arrow(headers):
    kind = pa.map_(pa.string(), pa.string())
    return stream_of(body=["x"], headers=pa.array([list(headers.items())], kind))


FORMS = {
    "application/json": lambda headers: json.dumps([{"body": "x", "headers": headers}]).encode(),
    NDJSON: lambda headers: json.dumps({"body": "x", "headers": headers}).encode() + b"\n",
    MSGPACK: lambda headers: msgspec.msgpack.encode({"body": "x", "headers": headers}),
    ARROW: as_arrow,
    COLUMNS: as_columns,
}


async def put(caller, form, headers):
    """Put a message; return the problem where it is refused."""
    url = caller.server.url + PATH
    head = {"content-type": form}
    async with caller.session.post(url, data=FORMS[form](headers), headers=head) as answer:
        caller.status = answer.status
        data = await answer.read()
    return None if answer.status == 200 else json.loads(data)


@pytest.mark.parametrize("form", FORMS)
async def test_as_many_and_as_long_as_they_may_be(form):
    async with calling() as caller:
        for headers in (MOST, LONGEST, {}):
            problem = await put(caller, form, headers)
            assert caller.status == 200, problem
            (message,) = await caller.take()
            assert message["headers"] == headers


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "headers", [MANY, LONG, {"h": "x" * 1_000_000}], ids=["many", "long", "mb"]
)
async def test_more_or_longer_ones_are_refused(form, headers):
    async with calling() as caller:
        problem = await put(caller, form, headers)
        assert (caller.status, problem["error"]) == (400, "InvalidHeaders")
        detail = problem["detail"]
        assert "headers" in detail
        assert str(MAX_HEADERS if headers is MANY else MAX_HEADERS_BYTES) in detail
        assert await caller.take() == []


@pytest.mark.parametrize("headers", [{"a": 1}, {"a": None}, [], "x", 5])
@pytest.mark.parametrize("form", ["application/json", NDJSON, MSGPACK])
async def test_what_are_no_headers_is_refused(form, headers):
    async with calling() as caller:
        problem = await put(caller, form, headers)
        assert (caller.status, problem["error"]) == (400, "InvalidHeaders")
        assert problem["detail"].startswith("headers")
        await put(caller, form, None)
        assert caller.status == 200


def test_headers_that_are_too_long_are_not_unpacked():
    mapping = ",".join(f'"{n:x}":""' for n in range(200_000))
    data = b'{"body":1,"headers":{%b}}' % mapping.encode()
    tracemalloc.start()
    try:
        (row,) = rows_of(data, Media.JSON)
        with pytest.raises(ValueError, match="headers: got 2130097 bytes of them"):
            headers_of(row, str)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 3 * len(data)


@pytest.mark.parametrize("form", ["application/json", MSGPACK])
@pytest.mark.parametrize("verb", ["find", "take-where", "cancel", "reschedule", "kick"])
async def test_more_or_longer_ones_in_a_filter_are_refused(verb, form):
    encode = msgspec.json.encode if form == "application/json" else msgspec.msgpack.encode
    more = {"delay_ms": 1} if verb == "reschedule" else {}
    by_filter = verb not in ("find", "take-where")

    async def ask(caller, headers):
        body = {"filter": {"headers": headers}, **more} if by_filter else {"headers": headers}
        url, head = f"{caller.server.url}/v1/topics/t/{verb}", {"content-type": form}
        async with caller.session.post(url, data=encode(body), headers=head) as answer:
            return answer.status, json.loads(await answer.read())

    async with calling() as caller:
        for headers in (MANY, LONG, {"h": 1}):
            status, problem = await ask(caller, headers)
            assert (status, problem["error"]) == (400, "InvalidHeaders")
            assert problem["detail"].startswith("headers")
        # Beside a list of ids they count as other values, before anything is read.
        status, problem = await ask(caller, {f"{n}": "" for n in range(50_000)})
        are_counted = by_filter and form == "application/json"
        refused = (413, "BatchTooLarge") if are_counted else (400, "InvalidHeaders")
        assert (status, problem["error"]) == refused
        for headers in (MOST, LONGEST, {}):
            assert (await ask(caller, headers))[0] == 200


def test_headers_of_a_filter_that_are_too_long_are_not_unpacked():
    mapping = ",".join(f'"{n:x}":""' for n in range(200_000))
    kind = headers_module._left_packed(CancelRequest)
    data = b'{"filter":{"headers":{%b}}}' % mapping.encode()
    tracemalloc.start()
    try:
        msgspec.json.decode(data, type=kind)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < len(data)
