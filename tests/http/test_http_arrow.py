"""Columns of Arrow of other programs: what is meant is put, the rest is refused by name."""

import asyncio
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest

from dwell.server.http import arrow
from dwell.server.http.putrows import Times, one_by_one
from dwell.server.http.schemas.requests import NewMessage
from tests.http.test_http_api import ARROW, calling, stream_of

AT = datetime(2100, 1, 1, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)
VIEW = pa.string_view()


def dictionary(*values, kind=VIEW):
    """Return values as Polars writes categories: numbers into a dictionary of views."""
    names = list(dict.fromkeys(values))
    indices = pa.array([names.index(value) for value in values], pa.uint32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, kind))


def nanos(ns, zone="UTC"):
    return pa.array([ns], pa.int64()).cast(pa.timestamp("ns", zone))


UUID = uuid.UUID(int=7)
TAKEN = {
    # columns beside a body and a due, and the fields of the message that follow
    "a category": ({"id": dictionary("a")}, {"id": "a"}),
    "a category of large text": ({"id": dictionary("b", kind=pa.large_string())}, {"id": "b"}),
    "a map of views": (
        {"headers": pa.array([[("h", "v" * 50)]], pa.map_(VIEW, VIEW))},
        {"headers": {"h": "v" * 50}},
    ),
    "a UUID": (
        {"id": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID.bytes], pa.binary(16)))},
        {"id": str(UUID)},
    ),
    "text of JSON": (
        {"body": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}']))},
        {"body": '{"a":1}'},
    ),
    "a wide whole number": (
        {"priority": pa.array([Decimal(7)], pa.decimal128(38, 0))},
        {"priority": 7},
    ),
    "a due as a wide number": (
        {"due": None, "due_ms": pa.array([Decimal(AT_MS)], pa.decimal128(38, 0))},
        {"due_ms": AT_MS},
    ),
    "a date": ({"due": pa.array([date(2100, 1, 1)])}, {"due_ms": AT_MS}),
    "the zone Z": ({"due": pa.array([AT], pa.timestamp("us", "Z"))}, {"due_ms": AT_MS}),
    "a zone of Java": ({"due": pa.array([AT], pa.timestamp("us", "UTC+02:00"))}, {"due_ms": AT_MS}),
    "part of a microsecond": ({"due": nanos(AT_MS * 10**6 + 1)}, {"due_ms": AT_MS + 1}),
    "nanoseconds without a zone": ({"due": nanos(AT_MS * 10**6, None)}, {"due_ms": AT_MS}),
    "an expiry of nanoseconds": (
        {"expires": nanos(AT_MS * 10**6 + 999_999_999)},
        {"expires_ms": AT_MS + 1000},
    ),
    "a span of nanoseconds": (
        {"lease": pa.array([1_000_001], pa.duration("ns"))},
        {"lease_ms": 2},
    ),
    "an interval": (
        {"lease": pa.array([pa.MonthDayNano([0, 0, 90_000_000_000])])},
        {"lease_ms": 90_000},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKEN)
async def test_what_other_programs_write_is_put_as_they_mean_it(case):
    given, wanted = TAKEN[case]
    columns = {"body": pa.array(["x"]), "due": pa.array([AT]), **given}
    async with calling() as caller:
        data = stream_of(**{name: column for name, column in columns.items() if column is not None})
        await caller.post("/v1/topics/t/messages", data, content=ARROW)
        assert caller.status == 200, caller.data
        (message,) = (await caller.get("/v1/topics/t/messages?state=delayed"))["messages"]
        assert {name: message[name] for name in wanted} == wanted


NONE = pa.array([AT, None], pa.timestamp("us", "UTC"))
REFUSED = {
    # columns of two rows beside a body and a due, and what the error says
    "a body that is null": ({"body": ["x", None]}, "body[1]: got null"),
    "a due that is null": ({"due": NONE}, "due[1]: got null"),
    "a due_ms that is null": ({"due": None, "due_ms": [AT_MS, None]}, "due[1]: got null"),
    "a delay that is null": ({"due": None, "delay": ["1h", None]}, "delay[1]: got null"),
    "a delay_ms that is null": ({"due": None, "delay_ms": [5, None]}, "delay[1]: got null"),
    "a due of parts": ({"due": None, "due_ms": [float(AT_MS), 0.5]}, "due[0]: got float"),
    "a delay that is no number": ({"due": None, "delay": [1.5, float("nan")]}, "delay[1]"),
    "an endless delay": ({"due": None, "delay_ms": [1.5, float("inf")]}, "delay[1]"),
    "a delay below 0": ({"due": None, "delay": [1.5, -0.5]}, "delay[1]"),
    "months": (
        {"due": None, "delay": pa.array([pa.MonthDayNano([0, 1, 0]), pa.MonthDayNano([1, 0, 0])])},
        "delay[1]: got",
    ),
    "a due after the year 9999": (
        {"due": pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "UTC"))},
        "due[1]: got",
    ),
    "a due of seconds that no microsecond holds": (
        {"due": pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("s", "UTC"))},
        "due[1]: got",
    ),
    "a priority with a part": ({"priority": [1.0, 2.5]}, "priorit"),
    "a moment as a priority": ({"priority": pa.array([AT, AT])}, "priorit"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_meant_is_refused_by_row_and_column(case):
    given, wanted = REFUSED[case]
    columns = {"body": ["x", "y"], "due": pa.array([AT, AT]), **given}
    async with calling() as caller:
        data = stream_of(**{name: column for name, column in columns.items() if column is not None})
        answer = await caller.post("/v1/topics/t/messages", data, content=ARROW)
        assert caller.status == 400, answer
        assert wanted in answer["detail"]
        assert (await caller.get("/v1/topics"))["topics"] == {}


async def test_a_column_that_means_more_than_its_numbers_is_refused():
    months = pa.array([1560], pa.int64())
    field = pa.field("due", pa.int64(), metadata={"ARROW:extension:name": "program.period"})
    table = pa.table([pa.array(["x"]), months], pa.schema([("body", pa.string()), field]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    async with calling() as caller:
        data = sink.getvalue().to_pybytes()
        answer = await caller.post("/v1/topics/t/messages", data, content=ARROW)
        assert caller.status == 400
        assert "column 'due' is of the extension type 'program.period'" in answer["detail"]


@pytest.mark.parametrize("content", [ARROW, "application/vnd.apache.arrow.file; charset=x"])
@pytest.mark.parametrize("compression", [None, "zstd"])
async def test_a_file_of_arrow_is_read_as_a_stream_is(compression, content):
    table = pa.table({"body": ["x", "y"], "id": pa.array(["a", "b"]).dictionary_encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1)
    async with calling() as caller:
        data = sink.getvalue().to_pybytes()
        answer = await caller.post("/v1/topics/t/messages", data, content=content)
        if compression is not None:
            assert (caller.status, answer["detail"][:32]) == (
                400,
                "arrow: the stream is compressed,",
            )
            return
        assert caller.status == 200, answer
        listed = (await caller.get("/v1/topics/t/messages?state=ready"))["messages"]
        assert [(one["id"], one["body"]) for one in listed] == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
async def test_a_span_means_the_same_in_every_unit(unit):
    async with calling() as caller:
        lease = pa.array([timedelta(seconds=90)], pa.duration(unit))
        await caller.post(
            "/v1/topics/t/messages", stream_of(body=["x"], lease=lease), content=ARROW
        )
        (message,) = (await caller.get("/v1/topics/t/messages?state=ready"))["messages"]
        assert message["lease_ms"] == 90_000


def test_what_arrow_loads_at_its_first_use_is_loaded_with_it():
    """An array looks for pandas, which takes half a second where it is there."""
    code = (
        "import asyncio, sys; from dwell.server.http import tables;"
        "asyncio.run(tables.loaded()); before = set(sys.modules);"
        "pa = tables.pyarrow(); pa.table({'a': pa.array(['x'])}); print(set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


async def turns_of(work):
    """Return how many turns of the event loop others have while something is done."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count())
    await work
    counting.cancel()
    return turns


async def test_messages_with_many_headers_are_written_in_many_turns():
    headers = {f"{n:03}": "v" for n in range(256)}
    async with calling() as caller:
        queue = caller.server.queue
        await queue.put_many("t", ["x"] * 400, headers=[headers] * 400)
        batch = await queue.peek("t", 400)
        # The first answer waits for what is imported in a thread.
        await arrow.messages(batch, 1)
        # A turn has some ten thousand headers.
        assert await turns_of(arrow.messages(batch)) >= 15
        data, count = await arrow.messages(batch, 100_000)
        assert 0 < count < 400
        assert len(data) < 1_000_000
        rows = [NewMessage(body=b'"x"', headers=msgspec.Raw(msgspec.json.encode(headers)))] * 400
        bodies, times = [b"x"] * 400, Times(queue.clock.now_ms(), ())
        assert await turns_of(one_by_one("t", rows, bodies, times)) >= 12
