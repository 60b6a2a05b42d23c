from pathlib import Path

import pytest

BODY = "a body that is easy to find"


def damage(cli):
    """Change a byte of the body on disk."""
    journal = min(Path(cli.folder).glob("journal-*"))
    data = journal.read_bytes()
    assert data.count(BODY.encode()) == 1
    with journal.open("r+b") as file:
        file.seek(data.index(BODY.encode()))
        file.write(b"A")


def test_a_whole_store(cli):
    cli.run("put", "t", BODY)
    (report,) = cli.json("check")
    assert (report["ok"], report["findings"]) == (True, [])
    assert report["messages"] == {"delayed": 0, "ready": 1, "leased": 0, "dead": 0}
    assert report["segments"] == 1
    assert report["bytes"] > 0
    (line,) = cli.out("check")
    assert line.startswith("ok: 0 delayed, 1 ready, 0 leased, 0 dead in 1 segment, ")
    assert cli.out("--quiet", "check", "--repair") == []


def test_damage_ends_with_one_and_can_be_repaired(cli):
    cli.run("put", "t", BODY, "--id", "a")
    cli.run("put", "t", "whole", "--id", "b")
    damage(cli)
    (report,) = cli.json("check", code=1)
    assert not report["ok"]
    assert any("journal-" in finding for finding in report["findings"])
    lines = cli.out("--quiet", "check", "--repair", code=1)
    assert set(report["findings"]) <= set(lines[:-1])
    assert lines[-1].startswith("damaged: 0 delayed, 1 ready, ")
    assert cli.get("t", "a") is None
    assert cli.get("t", "b").body == b"whole"


@pytest.mark.parametrize("url", ["memory:", "http://localhost"])
def test_only_folders_are_checked(cli, url):
    assert cli.error("--store", url, "check").startswith("InvalidUrl: url: got ")


def test_bad_input(cli, tmp_path):
    assert cli.error("check", "x").startswith("UsageError: Got unexpected extra argument")
    (tmp_path / "file").write_text("")
    error = cli.error("--store", str(tmp_path), "check", code=3)
    assert error.startswith(f"NotAStore: {tmp_path}")
    assert cli.error("--store", str(tmp_path / "file"), "check", code=3).startswith("NotAStore: ")
