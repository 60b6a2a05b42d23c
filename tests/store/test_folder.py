"""A store is one folder from open to close, whatever happens to names."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dwell
from dwell.errors import StoreLocked

SEGMENT_BYTES = 64 * 1024
#: More than a segment, so that a new file of the journal is made for it.
BODIES = [b"x" * 1_000] * 40


def _goes_elsewhere(store: Path) -> Path:
    other = store.parent / "other"
    other.mkdir()
    os.chdir(other)
    return store


def _is_renamed(store: Path) -> Path:
    return store.rename(store.parent / "renamed")


def _is_replaced(store: Path) -> Path:
    moved = store.rename(store.parent / "moved")
    with dwell.open(store) as queue:
        queue.put("t", b"another store's")
    return moved


@pytest.mark.parametrize("event", [_goes_elsewhere, _is_renamed, _is_replaced])
@pytest.mark.parametrize("by_link", [False, True])
def test_folder__changed_names__leave_the_store_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    event: Callable[[Path], Path],
    by_link: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "store"
    if by_link:
        store.mkdir()
        (tmp_path / "current").symlink_to("store")
    with dwell.open("current" if by_link else "store", segment_bytes=SEGMENT_BYTES) as queue:
        queue.put_many("t", BODIES)
        place = event(store)
        if by_link:
            (tmp_path / "current").unlink()
            (tmp_path / "current").symlink_to("nowhere")
        queue.put_many("t", BODIES)
        queue.ack(queue.take("t", 5))
        queue.put_many("t", BODIES)
    assert not list(tmp_path.glob("*.d*")) + list(tmp_path.glob("other/*"))
    with dwell.open(place) as queue:
        assert queue.stats().topics["t"].ready == 3 * len(BODIES) - 5
    if event is _is_replaced:
        with dwell.open(store) as queue:
            assert queue.stats().topics["t"].ready == 1


def _opens(store: Path) -> bool:
    """Tell whether another process can open a store."""
    code = f"import dwell\nwith dwell.open({str(store)!r}): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "StoreLocked" in done.stderr
    return done.returncode == 0


def test_folder__without_its_lock_file__stays_locked(tmp_path: Path) -> None:
    with dwell.open(tmp_path / "store") as queue:
        (tmp_path / "store" / "lock").unlink()
        assert not _opens(tmp_path / "store")
        with pytest.raises(StoreLocked, match="held by process"):
            dwell.open(tmp_path / "store").__enter__()
        queue.put("t", b"x")
    assert _opens(tmp_path / "store")


def test_folder__renamed_while_open__stays_locked(tmp_path: Path) -> None:
    with dwell.open(tmp_path / "store"):
        (tmp_path / "store").rename(tmp_path / "renamed")
        assert not _opens(tmp_path / "renamed")


def test_folder__removed_while_open__fails_and_leaves_nothing_behind(tmp_path: Path) -> None:
    def use() -> None:
        with dwell.open(tmp_path / "store", segment_bytes=SEGMENT_BYTES) as queue:
            queue.put("t", b"x")
            shutil.rmtree(tmp_path / "store")
            for _ in range(10):
                queue.put_many("t", BODIES)

    with pytest.raises(dwell.StoreError):
        use()
    assert not (tmp_path / "store").exists()


def test_folder__strange_folder__gets_no_file(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(dwell.StoreError):
        dwell.open(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_folder__path_of_home__is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with dwell.open("~/store") as queue:
        queue.put("t", b"x")
    assert (tmp_path / "store" / "dwell.json").exists()
