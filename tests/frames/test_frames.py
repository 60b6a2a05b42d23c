"""Frames that are drawn over all types by each tool: each row is its message, or a bad row.

What a row means is said in plain Python by ``kinds.py``. A frame goes in by ``put_table``, as a
stream to the HTTP port, and as a Parquet file by ``dwell put --from``.
"""

import io
import itertools
import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dwell
from dwell import State
from dwell.store.memory import MemoryStore
from tests.cli.conftest import Cli
from tests.frames.frames import frames
from tests.frames.kinds import NOW_MS
from tests.http.test_http_api import ARROW, calling

#: Threads that other tests have left may use the module ``random`` while a frame is drawn.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the:hypothesis.errors.HypothesisWarning")

TOOLS = ("pyarrow", "polars", "pandas", "duckdb")


def few(count):
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, deadline=None, suppress_health_check=checks)


def meaning_of(message, has_id):
    id_ = message.id if has_id else None
    return message.body, message.due_ms, id_, message.priority, message.headers


async def messages_of(queue):
    states = (State.READY, State.DELAYED)
    pages = [page for state in states async for page in queue.pages("t", state)]
    return [message for page in pages for message in page]


def in_any_order(meanings):
    return sorted(meanings, key=repr)


def bad_rows(frame):
    return [at for at, one in enumerate(frame.meanings()) if one is None]


def good(frame):
    return in_any_order(one for one in frame.meanings() if one is not None)


def opened():
    return MemoryStore(dwell.SimulatedClock(NOW_MS))


async def check_put_table(frame):
    bad = {}
    async with dwell.Queue(opened()) as queue:
        await queue.put_table("t", frame.made(), on_bad=bad.__setitem__)
        found = [meaning_of(one, "id" in frame.kinds) for one in await messages_of(queue)]
    assert sorted(bad) == bad_rows(frame), bad
    assert in_any_order(found) == good(frame)


async def check_endpoint(frame):
    """A request is put as a whole or not at all."""
    sink, reader = io.BytesIO(), pa.RecordBatchReader.from_stream(frame.made())
    new = pa.ipc.new_file if len(frame.rows) % 2 else pa.ipc.new_stream
    with new(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    async with calling(store=opened()) as caller:
        answer = await caller.post("/v1/topics/t/messages", sink.getvalue(), content=ARROW)
        found = await messages_of(caller.server.queue)
    bad = bad_rows(frame)
    assert caller.status == (400 if bad else 200), answer
    met = [meaning_of(one, "id" in frame.kinds) for one in found]
    assert in_any_order(met) == ([] if bad else good(frame))


def check_file(frame, folder):
    """A file is put at the time that it is, so dues after a delay are not compared."""
    cli = Cli(folder / "queue")
    file, rejected = folder / "rows.parquet", folder / "rejected.ndjson"
    table = pa.RecordBatchReader.from_stream(frame.made()).read_all()
    pa.parquet.write_table(table, file)
    rejected.unlink(missing_ok=True)
    bad, topic = bad_rows(frame), f"t{next(_TOPICS)}"
    how = ("--from", str(file), "--rejected", str(rejected))
    cli.run("put", topic, *how, code=1 if bad else 0)
    assert [json.loads(line)["row"] for line in rejected.read_text().splitlines()] == bad
    with cli.queue() as queue:
        states = ("ready", "delayed")
        found = [one for state in states for page in queue.pages(topic, state) for one in page]
    met = [meaning_of(one, "id" in frame.kinds) for one in found]
    at = [0, 2, 3, 4] if {"due", "due_ms"}.isdisjoint(frame.kinds) else range(5)
    assert in_any_order([one[part] for part in at] for one in met) == in_any_order(
        [one[part] for part in at] for one in good(frame)
    )


_TOPICS = itertools.count()
#: All four tools and ways draw 500 frames in campaigns, and a tenth of them else.
_FEW, _MANY = 4, 42


@pytest.mark.parametrize("tool", TOOLS)
@given(data=st.data())
@few(_FEW)
async def test_each_row_is_its_message_or_a_bad_row(tool, data):
    await check_put_table(data.draw(frames(tool)))


@pytest.mark.parametrize("tool", TOOLS)
@given(data=st.data())
@few(_FEW)
async def test_a_request_is_its_messages_or_is_refused(tool, data):
    await check_endpoint(data.draw(frames(tool)))


@pytest.mark.parametrize("tool", TOOLS)
@given(data=st.data())
@few(_FEW)
def test_a_file_is_its_messages_and_rejected_rows(tool, data, tmp_path):
    check_file(data.draw(frames(tool)), tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("tool", TOOLS)
@given(data=st.data())
@few(_MANY)
async def test_many_tables(tool, data):
    await check_put_table(data.draw(frames(tool)))


@pytest.mark.campaign
@pytest.mark.parametrize("tool", TOOLS)
@given(data=st.data())
@few(_MANY)
async def test_many_requests(tool, data):
    await check_endpoint(data.draw(frames(tool)))


@pytest.mark.campaign
@pytest.mark.parametrize("tool", TOOLS)
@given(data=st.data())
@few(_MANY)
def test_many_files(tool, data, tmp_path):
    check_file(data.draw(frames(tool)), tmp_path)
