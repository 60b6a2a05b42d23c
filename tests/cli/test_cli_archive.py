"""``dwell export`` and ``dwell import``: what they print, write and end with."""

import json
import sys
from pathlib import Path

import duckdb
import pytest

import dwell
from dwell.queue.exports import manifest as manifests

FAR_MS = 4_102_444_800_000


@pytest.fixture
def filled(cli):
    with cli.queue() as queue:
        queue.put_many("a", [b"1", b"2", b"3"], ids=["x", "y", "z"], due=[0, 0, FAR_MS])
        queue.bury(queue.take("a"), "broken")
        queue.take("a")
        queue.put("b", b"4", due=FAR_MS)
    return cli


def test_an_export_is_imported(filled, tmp_path):
    folder, other = str(tmp_path / "export"), str(tmp_path / "other")
    assert filled.out("export", "--to", folder) == [
        "a: 1 delayed, 1 leased, 1 dead",
        "b: 1 delayed",
        "4 messages in 1 file",
    ]
    query = "SELECT topic, id, CAST(body AS VARCHAR), state FROM read_parquet($files) ORDER BY body"
    assert duckdb.execute(query, {"files": f"{folder}/*.parquet"}).fetchall()[:3] == [
        ("a", "x", "1", "dead"),
        ("a", "y", "2", "leased"),
        ("a", "z", "3", "delayed"),
    ]
    assert filled.out("--store", other, "import", folder) == [
        "a: 3 read: 3 created, 0 already there",
        "b: 1 read: 1 created, 0 already there",
        "4 read: 4 created, 0 already there, of 4 messages",
    ]
    (again,) = filled.json("--store", other, "import", folder, "--dead", "skip")
    none = dict.fromkeys(("read", "created", "kept", "dropped", "rejected", "skipped"), 0)
    assert again == {
        "from": folder,
        "messages": 4,
        "read": 4,
        "created": 0,
        "kept": 3,
        "dropped": 0,
        "rejected": 0,
        "skipped": 1,
        "balances": True,
        "is_whole": True,
        "settings": [],
        "strange_settings": [],
        "topics": {
            "a": {**none, "read": 3, "kept": 2, "skipped": 1},
            "b": {**none, "read": 1, "kept": 1},
        },
    }


def test_topics_are_chosen(filled, tmp_path):
    done = filled.run("--json", "export", "b", "nosuch", "--to", str(tmp_path / "export"))
    answer = json.loads(done.stdout)
    assert answer["topics"] == {"b": {"delayed": 1, "ready": 0, "leased": 0, "dead": 0}}
    assert (answer["messages"], answer["files"]) == (1, 1)
    assert done.stderr == "there is no topic nosuch; there are a, b\n"


def test_rejected_messages_are_written_and_the_others_put(filled, tmp_path, monkeypatch):
    folder, other, rejected = (str(tmp_path / name) for name in ("export", "other", "rejected"))
    filled.run("export", "a", "--to", folder)
    # A clock that is a century behind: what is due in 2100 is too far away.
    monkeypatch.setattr(dwell.RealClock, "now_ms", lambda self: 100_000)
    args = ("--store", other, "import", folder, "--rejected", rejected)
    (answer,) = filled.json(*args, code=1)
    assert (answer["read"], answer["created"], answer["rejected"]) == (3, 2, 1)
    (told,) = map(json.loads, Path(rejected).read_text().splitlines())
    assert told["row"] == 2
    assert told["reason"].startswith(f"due: got {FAR_MS}, expected 0 to ")
    # The same command repeats it, and says the same.
    (again,) = filled.json(*args, code=1)
    assert (again["kept"], again["rejected"]) == (2, 1)
    (line,) = Path(rejected).read_text().splitlines()
    assert json.loads(line)["row"] == 2
    # But it replaces nothing of others.
    for other_text in ("mine", '{"row": 1}', "[]", "5"):
        Path(rejected).write_text(other_text)
        assert "rejected: cannot write" in filled.error(*args)
        assert Path(rejected).read_text() == other_text
    done = filled.run("--store", str(tmp_path / "third"), "import", folder, code=1)
    assert done.stderr.startswith(f"InvalidInput: row 2: due: got {FAR_MS}")
    assert done.stderr.endswith("(after 2 messages)\n")


def test_settings_are_imported_on_request(filled, tmp_path):
    folder, other = str(tmp_path / "export"), str(tmp_path / "other")
    filled.run("settings", "a", "max_attempts=2")
    filled.run("export", "--to", folder)
    assert filled.out("--store", other, "import", folder, "--settings")[-1] == "settings of a"
    with dwell.open(other) as queue:
        assert queue.settings("a").max_attempts == 2


def test_settings_that_nobody_knows_are_told(filled, tmp_path):
    folder, other = tmp_path / "export", str(tmp_path / "other")
    filled.run("settings", "a", "max_attempts=2")
    filled.run("export", "--to", str(folder))
    manifest = manifests.read(folder)
    manifest.settings["a"]["newer"] = 1
    (folder / manifests.MANIFEST).write_bytes(manifests.written(manifest))
    told = filled.out("--store", other, "import", str(folder), "--settings")
    assert told[-2:] == ["settings of a", "left out unknown settings newer"]


def test_counts_are_said_when_it_ends_early(filled, tmp_path):
    folder, other = str(tmp_path / "export"), str(tmp_path / "other")
    filled.run("export", "--to", folder)
    filled.run("--store", other, "settings", "a", "max_pending=1")
    done = filled.run("--store", other, "import", folder, code=1)
    assert done.stderr.startswith("TopicFull: ")
    assert done.stdout.splitlines() == [
        "a: 0 read: 0 created, 0 already there",
        "b: 1 read: 1 created, 0 already there",
        "1 read: 1 created, 0 already there, of 4 messages",
        "stopped before the end; run it again",
    ]


def test_what_cannot_be_is_refused(filled, tmp_path):
    other = tmp_path / "other"
    told = filled.error("--store", str(other), "import", str(tmp_path))
    assert told.startswith("InvalidInput: export: got '")
    assert "without a _manifest.json" in told
    # No store was made for it.
    assert not other.exists()
    assert "NotAStore" in filled.error("--store", str(other), "export", "--to", "x", code=3)
    filled.run("export", "--to", str(tmp_path / "export"))
    assert "expected a new folder" in filled.error("export", "--to", str(tmp_path / "export"))


def test_without_pyarrow_it_says_what_to_install(filled, tmp_path, monkeypatch):
    folder = str(tmp_path / "export")
    filled.run("export", "--to", folder)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = "InvalidInput: arrow: pyarrow is missing; pip install 'dwell[arrow]'"
    assert filled.error("export", "--to", str(tmp_path / "second")) == told
    assert filled.error("--store", str(tmp_path / "other"), "import", folder) == told
    assert not (tmp_path / "second").exists()
