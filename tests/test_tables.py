"""Tables of Arrow, of whatever program: each row is a message, or is told with its reason."""

import datetime as dt
import uuid
from collections import Counter
from decimal import Decimal

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell import Result, State
from dwell.errors import BatchTooLarge, InvalidInput
from dwell.message import MAX_BATCH_MESSAGES, MAX_PRIORITY
from dwell.queue.tablecolumns import puts_of_table
from dwell.store.memory import MemoryStore

DUE = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
DUE_MS = int(DUE.timestamp() * 1000)
ROWS = {"id": ["a", "b"], "body": ["one", "two"], "due": [DUE, DUE]}


def opened():
    return dwell.Queue(MemoryStore(dwell.SimulatedClock()))


async def listed(queue, topic="t", state=State.DELAYED):
    return [message async for page in queue.pages(topic, state) for message in page]


@pytest.mark.parametrize(
    "table",
    [
        pl.DataFrame(ROWS),
        pl.DataFrame(ROWS).with_columns(id=pl.col("id").cast(pl.Categorical)),
        pd.DataFrame(ROWS),
        pa.table(ROWS),
        pa.table(ROWS).to_reader(max_chunksize=1),
        duckdb.from_arrow(pa.table(ROWS)),
    ],
    ids=["polars", "categories", "pandas", "table", "reader", "duckdb"],
)
async def test_tables_of_all_tools_are_messages(table):
    async with opened() as queue:
        assert await queue.put_table("t", table) == {Result.CREATED: 2}
        found = [(m.id, m.body, m.due_ms) for m in await listed(queue)]
        assert found == [("a", b"one", DUE_MS), ("b", b"two", DUE_MS)]


async def test_runs_of_one_value_are_counted_before_they_are_unpacked():
    def runs(values, ends):
        return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values))

    table = pa.table({"body": runs(["x", None, "y"], [2, 3, 5]), "due_ms": runs([5, 6], [3, 5])})
    bad = {}
    async with opened() as queue:
        counts = await queue.put_table("t", table.slice(1), on_bad=bad.__setitem__)
        assert (counts, list(bad)) == ({Result.CREATED: 3}, [1])
        found = [(m.body, m.due_ms) for m in await listed(queue, state=State.READY)]
        assert found == [(b"x", 5), (b"y", 6), (b"y", 6)]
        bomb = pa.table({"body": runs(["x" * 3_000], [9_000])})
        with pytest.raises(BatchTooLarge, match="column 'body' has 27000000 bytes"):
            await puts_of_table(bomb, "t", 0)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.uuid(),
        pa.map_(*[pa.string()] * 2),
    ],
    ids=str,
)
async def test_runs_that_cannot_be_unpacked_are_refused(kind):
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([3], pa.int32()), pa.nulls(1, kind))
    async with opened() as queue:
        with pytest.raises(InvalidInput, match="arrow: column 'body' is run_end_encoded"):
            await queue.put_table("t", pa.table({"body": runs}))


async def test_a_table_may_be_larger_than_a_put():
    count = 2 * MAX_BATCH_MESSAGES + 7
    frame = pl.DataFrame({"body": ["x"] * count, "delay_ms": range(1, count + 1)})
    async with opened() as queue:
        assert await queue.put_table("t", frame) == {Result.CREATED: count}
        large = pa.table({"body": pa.array([b"x" * 1_000_000] * 40)})
        assert await queue.put_table("large", large) == {Result.CREATED: 40}


async def test_rows_that_no_message_can_be_are_told_and_the_others_put():
    count = 25_000
    ids = [f"id-{at}" for at in range(count)]
    dues = [DUE] * count
    for at in (3, 12_345, 24_999):
        dues[at] = None
    ids[20_000] = "~mark"
    frame = pl.DataFrame({"id": ids, "body": ["x"] * count, "due": dues})
    bad = {}
    async with opened() as queue:
        counts = await queue.put_table("t", frame, on_bad=bad.__setitem__)
        assert counts == {Result.CREATED: count - 4}
        assert list(bad) == [3, 12_345, 20_000, 24_999]
        assert "null" in bad[3]
        assert "does not start with" in bad[20_000]
        with pytest.raises(InvalidInput, match=r"row 3: due\[0\]: got null"):
            await queue.put_table("u", frame)
        # What came before it is put.
        assert len(await listed(queue, "u")) == 3


async def test_what_a_table_says_of_its_messages_counts():
    table = pa.table(
        {
            "body": ['{"a": 1}'],
            "due_ms": [DUE_MS],
            "priority": [7],
            "lease_ms": [5_000],
            "max_attempts": [3],
            "key": ["k"],
            "headers": pa.array([[("h", "1")]], pa.map_(pa.string(), pa.string())),
        }
    )
    async with opened() as queue:
        await queue.put_table("t", table)
        (found,) = await listed(queue)
        assert (found.priority, found.lease_ms, found.max_attempts) == (7, 5_000, 3)
        assert (found.key, found.headers) == ("k", {"h": "1"})
        again = table.append_column("id", pa.array(["x"]))
        assert await queue.put_table("u", again) == {Result.CREATED: 1}
        assert await queue.put_table("u", again) == {Result.KEPT: 1}
        replaced = await queue.put_table("u", again, on_conflict="replace")
        assert replaced == {Result.REPLACED: 1}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ([1, 2], "table: got list"),
        (pl.DataFrame({"id": ["a"]}), "expected one named body"),
        (pl.DataFrame({"body": ["a"], "other": [1]}), "got column 'other', expected one each of"),
        (pl.DataFrame({"body": ["a"], "due": [DUE], "due_ms": [1]}), "got column 'due_ms'"),
        (pl.DataFrame({"body": [["a"]]}), "column 'body' is"),
    ],
)
async def test_what_is_no_table_of_messages_is_refused(table, told):
    async with opened() as queue:
        with pytest.raises(InvalidInput, match=told):
            await queue.put_table("t", table)
        assert not (await queue.stats()).topics


MOMENTS = st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2099, 1, 1), timezones=st.just(dt.UTC))
COLUMNS = {
    "due": st.none() | MOMENTS,
    "id": st.none() | st.text(max_size=4) | st.uuids().map(str),
    "body": st.none() | st.text(max_size=8) | st.binary(max_size=8).map(bytes.hex),
    "priority": st.none() | st.integers(-2, 70_000),
}


@given(st.lists(st.fixed_dictionaries(COLUMNS), min_size=1, max_size=12), st.sampled_from("dpa"))
@settings(max_examples=60, deadline=None)
async def test_each_row_is_a_message_or_is_told(rows, tool):
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    types = {"due": pa.timestamp("us", "UTC"), "priority": pa.int64()}
    whole = pa.table({n: pa.array(v, types.get(n, pa.string())) for n, v in columns.items()})
    table = {"d": duckdb.from_arrow, "p": pl.from_arrow, "a": lambda one: one}[tool](whole)
    bad = {}
    async with opened() as queue:
        counts = await queue.put_table("t", table, on_bad=bad.__setitem__)
        assert sum(counts.values()) + len(bad) == len(rows)
        for at, row in enumerate(rows):
            is_id = row["id"] is not None and row["id"] != "" and not row["id"].startswith("~")
            is_priority = row["priority"] is None or 0 <= row["priority"] <= MAX_PRIORITY
            is_said = row["due"] is not None and row["body"] is not None
            if not (is_id and is_priority and is_said):
                assert at in bad, row
        found = await listed(queue) + await listed(queue, state=State.READY)
        bodies = {row["body"].encode() for at, row in enumerate(rows) if at not in bad}
        assert {message.body for message in found} <= bodies


async def test_what_was_listed_by_each_tool_is_put_again_as_it_was():
    async with opened() as queue:
        ids = [str(uuid.UUID(int=at)) for at in range(100)]
        await queue.put_many("t", [f"body {at}" for at in range(100)], ids=ids, due=DUE_MS)
        messages = await listed(queue)
        rows = {name: [getattr(m, name) for m in messages] for name in ("id", "body", "due_ms")}
        for topic, table in {
            "polars": pl.DataFrame(rows),
            "pandas": pd.DataFrame(rows),
            "duckdb": duckdb.from_arrow(pa.table(rows)),
        }.items():
            await queue.put_table(topic, table)
            again = [(m.id, m.body, m.due_ms) for m in await listed(queue, topic)]
            assert again == [(m.id, m.body, m.due_ms) for m in messages]


def test_a_decimal_body_keeps_its_digits():
    column = pa.array([Decimal("12345678901234567.89"), Decimal("1e20")], pa.decimal128(38, 2))
    with dwell.open("memory:") as queue:
        queue.put_table("t", pa.table({"id": ["a", "b"], "body": column}))
        bodies = [message.body for message in queue.get("t", ["a", "b"])]
    assert bodies == [b"12345678901234567.89", b"100000000000000000000.00"]


def test_what_was_put_is_told_when_a_table_ends_early():
    def batches():
        yield pa.record_batch({"body": ["x"] * 10})
        raise OSError("the disk is gone")

    counts = Counter()
    reader = pa.RecordBatchReader.from_batches(pa.schema({"body": pa.string()}), batches())
    with dwell.open("memory:") as queue:
        with pytest.raises(dwell.InvalidInput, match="from row 10 on: the disk is gone"):
            queue.put_table("t", reader, on_put=counts.update)
        assert counts == {dwell.Result.CREATED: 10}
        assert queue.stats().topics["t"].ready == 10


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"body": [1, 2]}, [b"1", b"2"]),
        ({"body": [dt.date(2100, 1, 2)]}, [b'"2100-01-02"']),
        ({"body": pa.array([None, "a"]).dictionary_encode()}, [b"a"]),
        ({"body": pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.nulls(0))}, []),
        ({"body": ["x", "y"], "priority": ["0x10", "16"]}, [b"y"]),
        ({"body": ["x", "y"], "priority": [None, 2.0]}, [b"x", b"y"]),
        ({"body": ["x", "y"], "delay_ms": ["1h30", "90"]}, [b"y"]),
    ],
)
async def test_a_value_means_itself_or_its_row_is_bad(columns, wanted):
    bad = {}
    async with opened() as queue:
        await queue.put_table("t", pa.table(columns), on_bad=bad.__setitem__)
        found = await listed(queue) + await listed(queue, state=State.READY)
        assert [message.body for message in found] == wanted
        assert len(bad) == len(columns["body"]) - len(wanted)


async def test_a_header_that_occurs_twice_is_a_bad_row():
    headers = pa.array([[("h", "1"), ("h", "2")], [("h", "1")]], pa.map_(pa.string(), pa.string()))
    bad = {}
    async with opened() as queue:
        table = pa.table({"body": ["x", "y"], "headers": headers})
        assert await queue.put_table("t", table, on_bad=bad.__setitem__) == {Result.CREATED: 1}
        assert "the header 'h' occurs twice" in bad[0]


async def test_rows_that_are_chosen_in_pandas_are_put():
    """Their index becomes a column of Arrow, which is no part of a message."""
    frame = pd.DataFrame({"body": ["x", "y", "z"], "id": ["a", "b", "c"]})
    async with opened() as queue:
        assert await queue.put_table("t", frame[frame.body > "x"]) == {Result.CREATED: 2}
        # An index with the name of a column of a put is one.
        assert await queue.put_table("t", frame.set_index("id")) == {
            Result.CREATED: 1,
            Result.KEPT: 2,
        }


def failing():
    yield pa.record_batch({"body": ["x"]})
    raise RuntimeError("the program failed")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (pl.DataFrame({"body": pl.Series([object()], dtype=pl.Object)}), "'body' has objects"),
        (pd.DataFrame({"body": ["a", 1]}), "gives no stream of Arrow: "),
        (
            pa.RecordBatchReader.from_batches(pa.schema({"body": pa.string()}), failing()),
            "cannot be read from row 1 on: the program failed",
        ),
    ],
)
async def test_errors_of_other_programs_are_told_as_ours(table, told):
    async with opened() as queue:
        with pytest.raises(InvalidInput, match=told):
            await queue.put_table("t", table)
