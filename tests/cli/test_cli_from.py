"""``dwell put --from``: rows of a file are messages, and those that are none are written out."""

import json

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pytest

DUE_MS = 4_102_444_800_000
FRAME = pl.DataFrame({"id": ["a", "b"], "body": ["1", "{}"], "due_ms": [DUE_MS, DUE_MS + 1]})


def stream(path):
    with pa.ipc.new_stream(path, FRAME.to_arrow().schema) as writer:
        writer.write_table(FRAME.to_arrow())


WRITE = {
    "parquet": FRAME.write_parquet,
    "arrow": FRAME.write_ipc,
    "feather": lambda path: pyarrow.feather.write_feather(FRAME.to_arrow(), path),
    "arrows": stream,
    "csv": FRAME.write_csv,
    "ndjson": FRAME.write_ndjson,
}


@pytest.mark.parametrize("kind", WRITE)
def test_files_of_each_kind_are_put(cli, tmp_path, kind):
    file = str(tmp_path / f"rows.{kind}")
    WRITE[kind](file)
    assert cli.out("put", "t", "--from", file) == ["2 created, 0 kept, 0 replaced"]
    with cli.queue() as queue:
        found = [(m.id, m.body, m.due_ms) for page in queue.pages("t", "delayed") for m in page]
    assert found == [("a", b"1", DUE_MS), ("b", b"{}", DUE_MS + 1)]
    assert cli.out("put", "t", "--from", file) == ["0 created, 2 kept, 0 replaced"]


def test_rejected_rows_are_written_and_the_others_put(cli, tmp_path):
    file, rejected = str(tmp_path / "rows.parquet"), tmp_path / "rejected.ndjson"
    pl.DataFrame({"body": ["x", None, "z"], "delay": ["1h", "1h", "soon"]}).write_parquet(file)
    args = ("put", "t", "--from", file, "--rejected", str(rejected))
    (answer,) = cli.json(*args, code=1)
    assert (answer["rows"], answer["created"], answer["rejected"]) == (3, 1, 2)
    told = [json.loads(line) for line in rejected.read_text().splitlines()]
    assert [one["row"] for one in told] == [1, 2]
    assert "null" in told[0]["reason"]
    assert "'soon'" in told[1]["reason"]
    # A file that is there is not written over.
    assert "rejected: cannot write" in cli.error(*args)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "rows.xlsx"], "from: got 'rows.xlsx', expected a name that ends with .parquet"),
        (["--from", "nosuch.parquet"], "from: cannot read 'nosuch.parquet'"),
        (["--from", "nosuch.csv"], "from: cannot read 'nosuch.csv'"),
        (["x", "--from", "rows.parquet"], "from: got body beside it, expected a column"),
        (["--from", "rows.parquet", "--delay", "1h"], "from: got --delay beside it"),
        (["--rejected", "bad", "x"], "rejected: got a file, expected --from"),
    ],
)
def test_what_cannot_be_is_refused(cli, words, told):
    assert told in cli.error("put", "t", *words)


def test_the_first_bad_row_ends_it_where_no_file_is_named(cli, tmp_path):
    file = str(tmp_path / "rows.csv")
    pl.DataFrame({"body": ["x", "y"], "delay": ["1h", "soon"]}).write_csv(file)
    assert "row 1: delay[0]: got str 'soon'" in cli.error("put", "t", "--from", file)
