"""``dwell put --from``: rows of a file are messages, and those that are none are written out."""

import csv
import datetime as dt
import json

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
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
    done = cli.run("put", "t", "--from", file, code=1)
    assert "row 1: delay[0]: got str 'soon'" in done.stderr
    assert done.stderr.endswith("(after 1 message)\n")
    # What was put before it is said.
    assert done.stdout == "1 created, 0 kept, 0 replaced\n"


def test_fields_of_csv_may_hold_lines(cli, tmp_path):
    file = tmp_path / "rows.csv"
    # More than a reader has in memory at once, so that rows lie over its ends.
    rows = [(f"id{at}", f'a,{at}\nb{at},"c"\r\n') for at in range(60_000)]
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows([("id", "body"), *rows])
    assert cli.out("put", "t", "--from", str(file)) == ["60,000 created, 0 kept, 0 replaced"]
    with cli.queue() as queue:
        pages = list(queue.pages("t", "ready"))
    assert {m.id: m.body.decode() for page in pages for m in page} == dict(rows)


def test_bad_rows_of_csv_are_told_by_their_numbers_and_end_nothing(cli, tmp_path):
    file, rejected = tmp_path / "rows.csv", tmp_path / "rejected.ndjson"
    rows = [b"id,body,delay_ms,priority", *(b"i%d,x,5000,7" % at for at in range(25_000))]
    rows[1 + 3] = b"i3,x,5000,7,more"
    rows[1 + 10_004] = b"i10004,x,soon,"
    rows[1 + 10_005] = b"i10005,\xff,,"
    rows[1 + 20_000] = b"i20000,x,5000,9x"
    rows[1 + 24_998] = b"i24998,,5000,"
    file.write_bytes(b"\n".join(rows))
    (answer,) = cli.json("put", "t", "--from", str(file), "--rejected", str(rejected), code=1)
    assert (answer["rows"], answer["created"], answer["rejected"]) == (25_000, 24_996, 4)
    told = {one["row"]: one["reason"] for one in map(json.loads, rejected.read_text().splitlines())}
    assert sorted(told) == [3, 10_004, 10_005, 20_000]
    assert told[3] == "got 5 fields, expected 4"
    assert "soon" in told[10_004]
    assert told[10_005] == "got bytes that are no UTF-8"
    assert "9x" in told[20_000]
    with cli.queue() as queue:
        # An empty body is a body; other empty fields are not given.
        assert queue.get("t", "i24998").body == b""
        assert (queue.get("t", "i24998").priority, queue.get("t", "i24997").priority) == (1024, 7)


@pytest.mark.parametrize("line", ['bad,"6 inch pipe', 'bad,"a" b', '"bad,x'])
@pytest.mark.parametrize("at", [0, 12_000, 24_999])
def test_a_quote_that_is_not_closed_takes_no_other_row(cli, tmp_path, line, at):
    file, rejected = tmp_path / "rows.csv", tmp_path / "rejected.ndjson"
    rows = [f'i{number},"x ""{number}""\nof two lines"' for number in range(25_000)]
    # Without quotes after it, it would take all that follows.
    rows[at + 1 : at + 2_000] = [
        f"i{number},x" for number in range(at + 1, min(at + 2_000, 25_000))
    ]
    rows[at] = line
    file.write_text("\n".join(["id,body", *rows]))
    (answer,) = cli.json("put", "t", "--from", str(file), "--rejected", str(rejected), code=1)
    with cli.queue() as queue:
        pages = list(queue.pages("t", "ready"))
    found = {message.id for page in pages for message in page}
    told = [json.loads(one) for one in rejected.read_text().splitlines()]
    assert (answer["created"], answer["rejected"]) == (len(found), len(told))
    assert {f"i{number}" for number in range(25_000)} - found == {f"i{at}"}
    assert told[0]["row"] == at
    assert told[0]["reason"].startswith("is no CSV: ")


@pytest.mark.parametrize("end", ['regards"', 'and ""more""\nregards",', 'regards"\r'])
def test_the_text_of_a_record_that_is_no_csv_makes_no_row(cli, tmp_path, end):
    """Its quotes are not doubled, so a line of it would be read as a record."""
    file, rejected = tmp_path / "rows.csv", tmp_path / "rejected.ndjson"
    bad = f'A-1,"Dear Ann,\nB-9,we thought about "you" and\nC-9,of\n{end}'
    file.write_text(f"id,body\nA-0,fine\n{bad}\nA-2,fine\n", newline="")
    (answer,) = cli.json("put", "t", "--from", str(file), "--rejected", str(rejected), code=1)
    told = [json.loads(one) for one in rejected.read_text().splitlines()]
    assert (answer["created"], answer["rejected"]) == (2, len(told)) == (2, len(bad.split("\n")))
    assert {one["reason"][:11] for one in told} == {"is no CSV: "}
    with cli.queue() as queue:
        assert {message.id for page in queue.pages("t", "ready") for message in page} == {
            "A-0",
            "A-2",
        }


def test_a_folder_has_the_columns_of_all_its_files(cli, tmp_path):
    folder = tmp_path / "rows.parquet"
    folder.mkdir()
    due = pa.array([dt.datetime(2099, 1, 1)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": ["a"], "body": ["now"]}), folder / "part-0.parquet")
    pq.write_table(
        pa.table({"id": ["b"], "body": ["later"], "due": due}), folder / "part-1.parquet"
    )
    rejected = tmp_path / "rejected.ndjson"
    (answer,) = cli.json("put", "t", "--from", str(folder), "--rejected", str(rejected), code=1)
    # A row without a due is bad, as it is in a single file.
    assert (answer["created"], answer["rejected"]) == (1, 1)
    assert cli.get("t", "b").due_ms == 4_070_908_800_000
    # A later file may have wider types, as of another version of the program that wrote it.
    wider = {"id": ["c"], "body": ["y"], "due": due.cast(pa.timestamp("ms", "UTC"))}
    pq.write_table(pa.table(wider), folder / "part-2.parquet")
    rejected.unlink()
    (answer,) = cli.json("put", "t", "--from", str(folder), "--rejected", str(rejected), code=1)
    assert (answer["created"], answer["kept"], answer["rejected"]) == (1, 1, 1)
    assert cli.get("t", "c").due_ms == 4_070_908_800_000
    pq.write_table(pa.table({"id": [["x"]], "body": ["y"]}), folder / "part-3.parquet")
    assert "from: cannot read" in cli.error("put", "t", "--from", str(folder))


def test_a_file_that_ends_early_tells_what_was_put(cli, tmp_path):
    file = tmp_path / "rows.arrows"
    batch = pa.table({"body": ["x"] * 1000}).to_batches()[0]
    with pa.ipc.new_stream(file, batch.schema) as writer:
        for _ in range(5):
            writer.write_batch(batch)
    file.write_bytes(file.read_bytes()[:-5000])
    done = cli.run("put", "t", "--from", str(file), code=1)
    assert done.stdout == "4,000 created, 0 kept, 0 replaced\n"
    assert "from row 4000 on" in done.stderr


def test_names_of_csv_columns_that_cannot_be_are_refused(cli, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_bytes(b"body,\xff\nx,y\n")
    assert "got bytes that are no UTF-8" in cli.error("put", "t", "--from", str(file))
