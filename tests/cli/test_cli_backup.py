import dwell
from dwell.store.embedded.check import check


def test_the_copy_is_a_store(cli, tmp_path):
    cli.run("put", "t", "hello", "--id", "a")
    place = tmp_path / "copy"
    assert cli.out("backup", str(place)) == [f"copied to {place}"]
    assert check(place).ok
    assert cli.out("--quiet", "--store", str(place), "take", "t")
    assert cli.get("t", "a").state is dwell.State.READY
    with dwell.open(place) as copy:
        assert copy.get("t", "a").body == b"hello"


def test_for_programs(cli, tmp_path):
    cli.run("put", "t", "hello")
    place = str(tmp_path / "copy")
    assert cli.json("backup", place) == [{"store": cli.folder, "backup": place}]
    assert cli.out("--quiet", "backup", f"{place}2") == []


def test_a_store_that_is_open_names_the_way(cli, tmp_path):
    with dwell.open(cli.folder):
        error = cli.error("backup", str(tmp_path / "copy"), code=3)
    assert error.startswith(f"StoreLocked: {cli.folder}: held by process ")
    assert error.endswith(f"dwell --store http://localhost:8410 backup {tmp_path / 'copy'}")
    assert not (tmp_path / "copy").exists()


def test_what_is_refused(cli, tmp_path):
    assert cli.error("backup", str(tmp_path / "copy"), code=3).startswith("NotAStore: ")
    cli.run("put", "t", "hello")
    assert cli.error("backup", str(tmp_path)).startswith(
        f"InvalidInput: backup: {tmp_path} is there already, expected a new folder"
    )
    error = cli.error("--store", "memory:", "backup", str(tmp_path / "copy"))
    assert error.startswith("InvalidUrl: url: got 'memory:', expected a folder or a server")
    assert not (tmp_path / "copy").exists()
