"""Exports that somebody made to do harm, or a newer version: checksums and sizes are right."""

import json
import os
import re
import zlib

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dwell
from dwell.errors import InvalidInput
from dwell.message import TopicSettings
from dwell.queue.exports import manifest as manifests
from dwell.queue.exports import writing
from dwell.queue.exports.manifest import MANIFEST, Manifest
from dwell.queue.exports.writing import REPEATED, SCHEMA
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from tests.exports.conftest import everything

FILE = "messages-00000.parquet"
FAR_MS = 4_102_444_800_000


@pytest.fixture
def export(tmp_path):
    """An export of three messages of three topics."""
    with dwell.open("memory:") as queue:
        for topic in "abc":
            queue.put(topic, topic, id="i", due=FAR_MS)
        queue.configure("a", lease_ms=5_000)
        queue.export(tmp_path / "export")
    return tmp_path / "export"


def resealed(folder, change):
    """Change the manifest, and give it the checksum that it then has."""
    raw = json.loads((folder / MANIFEST).read_text())
    change(raw)
    (folder / MANIFEST).write_bytes(manifests.written(msgspec.convert(raw, Manifest)))


def remade(folder, rows, **how):
    """Write other rows, with the manifest that belongs to them."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, SCHEMA)
    pq.write_table(table, folder / FILE, **{"use_dictionary": REPEATED, **how})
    data = (folder / FILE).read_bytes()
    counts = {}
    for topic in table.column("topic").to_pylist():
        counts.setdefault(topic, {"ready": 0})["ready"] += 1
    file = {"name": FILE, "bytes": len(data), "rows": len(table), "crc": zlib.crc32(data)}
    resealed(folder, lambda raw: raw.update(topics=counts, files=[file]))


def refused(folder, told, **how):
    """Check that an export is refused before anything of it is put."""
    with dwell.open("memory:") as queue:
        with pytest.raises(InvalidInput, match=f"^{told}"):
            queue.put_export(folder, on_bad=lambda *_: None, **how)
        assert queue.stats().topics == {}


# --- rows -------------------------------------------------------------------------------------

BAD_ROWS = {
    "topic": ({"topic": "../b"}, r"topic: got str '../b', expected 1-200 characters"),
    "no topic": ({"topic": ""}, r"topic: got str '', expected"),
    "state": ({"state": "zombie"}, r"state: got str 'zombie', expected one of delayed, ready"),
    "schedule": (
        {"topic": SCHEDULES, "state": "zombie"},
        r"state: got str 'zombie', expected one of delayed, ready, leased, dead$",
    ),
    "gone": ({"state": "gone"}, r"state: got str 'gone', expected one of delayed"),
    "id": ({"id": "y" * 300}, r"ids\[0\]: got str 'yyy"),
    "priority": ({"priority": -1}, r"priority: got -1, expected 0 to "),
}


@pytest.mark.parametrize("fault", BAD_ROWS)
def test_a_bad_row_stops_no_others(export, fault):
    change, told = BAD_ROWS[fault]
    rows = pq.read_table(export / FILE).to_pylist()
    rows[1].update(change)
    remade(export, rows)
    bad = {}
    with dwell.open("memory:") as queue:
        done = queue.put_export(export, on_bad=bad.__setitem__)
        assert (done.total.created, done.total.rejected, done.balances) == (2, 1, True)
        assert len(everything(queue, ["a", "c"])) == 2
        assert list(bad) == [1]
        assert re.match(told, bad[1])
        with pytest.raises(InvalidInput, match=f"^row 1: {told}"):
            queue.put_export(export)


def test_texts_that_are_no_utf8_are_refused(export):
    table = pq.read_table(export / FILE)
    ids = pa.array([b"i", b"\xff", b"i"], pa.binary()).view(pa.string())
    remade(export, table.set_column(1, SCHEMA.field("id"), ids))
    refused(export, f"export: cannot read {FILE}: ")


# --- the manifest -----------------------------------------------------------------------------


def set_settings(**settings):
    return lambda raw: raw["settings"].update(a=settings)


MANIFESTS = {
    "store": (lambda raw: raw.update(store="zzzz"), "store: got str 'zzzz', expected 8 hexadec"),
    "store below 0": (lambda raw: raw.update(store="-5"), "store: got str '-5', expected 8 hex"),
    "type": (set_settings(lease_ms="x"), r"settings of 'a': got \{'lease_ms': 'x'\}, expected"),
    "value": (set_settings(lease_ms=-1), "settings of 'a': lease_ms: got .*-1, expected"),
    "topic": (
        lambda raw: raw["settings"].update({"../a": {"lease_ms": 1}}),
        r"settings: got str '\.\./a', expected 1-200 characters",
    ),
    "count": (
        lambda raw: raw["topics"].update(a={"ready": -7, "dead": 8}),
        "topics: ready of 'a': got -7, expected 0 or more",
    ),
    "rows": (
        lambda raw: raw["files"][0].update(rows=-3),
        f"files: rows of '{FILE}': got -3, expected 0 or more",
    ),
    "other topics": (
        lambda raw: raw.update(topics={"a": {"ready": 2}, "c": {"ready": 1}}),
        "topics: got 1 rows of 'a', expected 2, as the manifest has",
    ),
    "no such topic": (
        lambda raw: raw.update(topics={"zzz": {"ready": 3}}),
        "topics: got 1 rows of 'a', expected 0, as the manifest has",
    ),
    "a file twice": (
        lambda raw: raw.update(files=raw["files"] * 2, topics={"a": {"ready": 6}}),
        f"files: got '{FILE}' twice, expected each file once",
    ),
}


@pytest.mark.parametrize("fault", MANIFESTS)
def test_a_manifest_that_cannot_be_is_refused(export, fault):
    change, told = MANIFESTS[fault]
    resealed(export, change)
    refused(export, told, settings=True)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"dwell_export": 1e999}', "[]", "5", "null"])
def test_a_manifest_of_any_json_is_refused(export, text):
    (export / MANIFEST).write_text(text)
    refused(export, f"export: got a {MANIFEST} that cannot be read")


def test_a_manifest_without_end_is_refused(export, monkeypatch):
    monkeypatch.setattr(manifests, "_MANIFEST_BYTES", 100)
    refused(export, f"export: got a {MANIFEST} that is larger, expected at most 100 bytes")


def test_settings_of_a_newer_version_are_left_out_and_told(export):
    resealed(export, set_settings(lease_ms=5_000, newer=1, newest="x"))
    with dwell.open("memory:") as queue:
        done = queue.put_export(export, settings=True)
        assert (done.settings, done.strange_settings) == (["a"], ["newer", "newest"])
        assert queue.settings("a") == msgspec.structs.replace(TopicSettings(), lease_ms=5_000)
    resealed(export, set_settings(newer=1))
    with dwell.open("memory:") as queue:
        done = queue.put_export(export, settings=True)
        assert (done.settings, done.strange_settings) == ([], ["newer"])
        assert queue.put_export(export).strange_settings == []


# --- files ------------------------------------------------------------------------------------


def test_a_row_group_that_no_export_has_is_not_read(export, monkeypatch):
    monkeypatch.setattr(dwell.queue.exports.reading, "MOST_GROUP_ROWS", 2)
    told = f"{FILE}, row group 0: got 3 rows, expected at most 2"
    refused(export, told)
    monkeypatch.setattr(dwell.queue.exports.reading, "MOST_GROUP_ROWS", 3)
    monkeypatch.setattr(dwell.queue.exports.reading, "MOST_GROUP_BYTES", 100)
    refused(export, rf"{FILE}, row group 0: got \d+ bytes, expected at most 100")


def test_one_large_value_often_is_not_read(export):
    row = pq.read_table(export / FILE).slice(0, 1)
    large = row.set_column(2, SCHEMA.field("body"), pa.array([b"x" * 1_000_000]))
    remade(export, pa.concat_tables([large] * 20), use_dictionary=["body"])
    assert (export / FILE).stat().st_size < 100_000
    refused(export, f"{FILE}, row group 0: got a dictionary of 'body', expected plain values")


def test_pages_of_any_size_make_no_large_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_PART_BYTES", 100_000)
    monkeypatch.setattr(writing, "_GROUP_BYTES", 200_000)
    with dwell.open("memory:") as queue:
        queue.put_many("t", [b"%05d" % n * 10_000 for n in range(30)])
        queue.export(tmp_path / "export")
    with pq.ParquetFile(tmp_path / "export" / FILE) as file:
        groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
    assert max(group.total_byte_size for group in groups) <= 2 * 300_000
    assert sum(group.num_rows for group in groups) == 30


def test_only_files_are_opened(export):
    """A pipe would be waited for, and a device has no end."""
    (export / FILE).unlink()
    os.mkfifo(export / FILE)
    refused(export, rf"export: got no {FILE} \(no regular file\), expected 3 rows")
    (export / FILE).unlink()
    (export / FILE).symlink_to("/dev/zero")
    refused(export, rf"export: got no {FILE} \(no regular file\), expected 3 rows")
    (export / MANIFEST).unlink()
    os.mkfifo(export / MANIFEST)
    refused(export, rf"export: got '.*' without a {MANIFEST} \(no regular file\)")


def test_a_longer_file_is_read_only_until_it_shows(export, monkeypatch):
    with open(export / FILE, "ab") as file:
        size = file.seek(0, os.SEEK_END)
        file.truncate(1 << 28)
    refused(export, f"export: got {FILE} of {size + 1} bytes, expected {size}")
