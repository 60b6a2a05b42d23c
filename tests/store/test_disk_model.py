"""The disk of the tests: what it loses and when, so that a test on it can fail for what is real."""

import errno
import os
from pathlib import Path

import pytest

from dwell.errors import DiskFull, StoreLocked
from dwell.testing.cached import SECTOR_BYTES
from dwell.testing.faults import FaultyDisk, Stopped

FOLDER = Path("/stores")
FILE = FOLDER / "file"
OLD, NEW = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES


def disk_with_file(sectors: int = 4, seed: int = 0) -> tuple[FaultyDisk, int]:
    """Return a disk with a file of old sectors that are safe, and its descriptor."""
    disk = FaultyDisk(seed=seed)
    disk.make_folder(FOLDER)
    fd = disk.create(FILE, sectors * SECTOR_BYTES)
    disk.write(fd, [OLD * sectors], 0)
    disk.sync(fd)
    return disk, fd


def after_power_cut(disk: FaultyDisk) -> FaultyDisk:
    disk.lose_power()
    return disk.restarted()


def test_what_was_synced_survives() -> None:
    for seed in range(20):
        disk, _ = disk_with_file(seed=seed)
        assert disk.unsynced(FOLDER) == {}
        assert after_power_cut(disk).read(FILE) == OLD * 4


def test_any_sectors_of_what_was_not_synced_may_be_lost() -> None:
    found = set()
    for seed in range(200):
        disk, fd = disk_with_file(2, seed)
        disk.write(fd, [NEW * 2], 0)
        assert disk.unsynced(FOLDER) == {"file": [(0, 2 * SECTOR_BYTES)]}
        found.add(after_power_cut(disk).read(FILE))
    assert found == {OLD * 2, NEW * 2, OLD + NEW, NEW + OLD}


def test_a_sector_is_as_it_was_after_one_of_the_writes() -> None:
    found = set()
    for seed in range(300):
        disk, fd = disk_with_file(1, seed)
        for number in range(3):
            disk.write(fd, [b"%d" % number * 100], number * 100)
        found.add(after_power_cut(disk).read(FILE)[:300])
    whole = b"0" * 100 + b"1" * 100 + b"2" * 100
    assert found == {whole[:at] + OLD[at:300] for at in (0, 100, 200, 300)}


def test_a_kill_loses_nothing() -> None:
    disk, fd = disk_with_file()
    disk.write(fd, [NEW], 0)
    disk.kill()
    with pytest.raises(Stopped):
        disk.write(fd, [NEW], 0)
    disk = disk.restarted()
    assert disk.read(FILE) == NEW + OLD * 3
    # What nobody has synced since is still in danger.
    assert disk.only_synced().read(FILE) == OLD * 4


@pytest.mark.parametrize("drops", [False, True])
def test_after_a_failed_sync_another_proves_nothing(drops: bool) -> None:
    lost = 0
    for seed in range(50):
        disk, fd = disk_with_file(1, seed)
        disk.system.drops = drops
        disk.write(fd, [NEW], 0)
        disk.arm("sync", 0)
        with pytest.raises(OSError, match="sync failed"):
            disk.sync(fd)
        seen = disk.read(FILE)
        assert seen == NEW or drops
        disk.sync(fd)
        left = after_power_cut(disk).read(FILE)
        assert left in (OLD, NEW)
        assert not drops or left == seen
        lost += left == OLD
    assert 5 < lost < 50


def test_what_is_written_again_after_a_failed_sync_can_be_made_safe() -> None:
    for seed in range(50):
        disk, fd = disk_with_file(1, seed)
        disk.write(fd, [NEW], 0)
        disk.arm("sync", 0)
        with pytest.raises(OSError, match="sync failed"):
            disk.sync(fd)
        disk.write(fd, [NEW], 0)
        disk.sync(fd)
        assert after_power_cut(disk).read(FILE) == NEW


def test_names_survive_only_after_a_sync_of_their_folder() -> None:
    found = set()
    for seed in range(300):
        disk, _ = disk_with_file(1, seed)
        disk.write_file(FOLDER / "other", [NEW])
        disk.system.rename(FILE, FOLDER / "renamed")
        found.add(tuple(after_power_cut(disk).names(FOLDER)))
    assert found == {("file",), ("file", "other"), ("renamed",), ("other", "renamed")}
    disk, _ = disk_with_file()
    disk.remove(FILE)
    assert disk.only_synced().names(FOLDER) == ["file"]
    disk.sync_folder(FOLDER)
    assert disk.only_synced().names(FOLDER) == []


def test_a_folder_survives_only_after_a_sync_of_its_parent() -> None:
    disk = FaultyDisk()
    disk.system.make_folder(FOLDER)
    disk.write_file(FILE, [NEW])
    disk.sync_folder(FOLDER)
    assert not disk.only_synced().exists(FOLDER)
    disk.sync_folder(FOLDER.parent)
    assert disk.only_synced().read(FILE) == NEW


def test_a_file_is_as_long_as_it_was_at_some_time() -> None:
    found = set()
    for seed in range(300):
        disk, fd = disk_with_file(2, seed)
        disk.truncate(fd, SECTOR_BYTES)
        disk.system.allocate(fd, 3 * SECTOR_BYTES)
        found.add(after_power_cut(disk).read(FILE))
    assert found == {OLD * 2, OLD, OLD + bytes(2 * SECTOR_BYTES)}


def test_the_disk_has_a_size() -> None:
    disk = FaultyDisk(size_bytes=3 * 4096)
    disk.make_folder(FOLDER)
    fd = disk.create(FILE, 2 * 4096)
    with pytest.raises(DiskFull):
        disk.create(FOLDER / "other", 2 * 4096)
    assert disk.names(FOLDER) == ["file"]
    assert disk.free_bytes(FOLDER) == 4096
    with pytest.raises(OSError, match="No space") as caught:
        disk.write(fd, [bytes(4096)], 3 * 4096 + 10)
    assert caught.value.errno == errno.ENOSPC
    disk.remove(FILE)
    assert disk.free_bytes(FOLDER) == 4096
    disk.close(fd)
    assert disk.free_bytes(FOLDER) == 3 * 4096


def test_a_short_write_is_gone_on_with() -> None:
    disk, fd = disk_with_file()
    disk.arm("short", 0)
    disk.write(fd, [NEW, NEW], 0)
    assert disk.left == -1
    assert disk.read(FILE) == NEW * 2 + OLD * 2


@pytest.mark.parametrize(
    ("when", "may_be"),
    [("before", {0}), ("after", {2}), ("during", set(range(3)))],
)
@pytest.mark.parametrize("stop", ["kill", "power"])
def test_the_end_comes_on_either_side_of_a_call_or_in_it(
    stop: str, when: str, may_be: set[int]
) -> None:
    for seed in range(30):
        disk, fd = disk_with_file(2, seed)
        disk.arm(stop, 0, when)
        with pytest.raises(Stopped):
            disk.write(fd, [NEW * 2], 0)
        assert disk.dead
        count = disk.restarted().read(FILE).count(b"n")
        if stop == "kill":
            assert count // SECTOR_BYTES in may_be
            assert when == "during" or count % SECTOR_BYTES == 0


def test_a_lock_ends_with_its_process() -> None:
    disk, _ = disk_with_file()
    disk.lock(FOLDER / "lock")
    with pytest.raises(StoreLocked):
        disk.lock(FOLDER / "lock")
    disk.kill()
    disk = disk.restarted()
    disk.lock(FOLDER / "lock")


def test_a_map_shows_what_is_written() -> None:
    disk, fd = disk_with_file()
    data = disk.map(fd)
    disk.write(fd, [NEW], 0)
    assert data[: len(NEW)] == NEW


def test_a_folder_can_be_looked_at_from_outside(tmp_path: Path) -> None:
    disk, _ = disk_with_file()
    disk.copy_out(FOLDER, tmp_path / "copy")
    assert (tmp_path / "copy" / "file").read_bytes() == OLD * 4
    assert os.listdir(tmp_path / "copy") == ["file"]
