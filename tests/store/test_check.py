"""Damage on disk: what a start says of it, what a check finds, what a repair saves."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import dwell
from dwell.errors import NotAStore, StoreDamaged, StoreLocked, StoreTooNew
from dwell.message import Kind
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.check import check
from tests.forking import in_child

_PART = 50
_SMALL = 131_072


async def _fill(folder: Path, parts: int, *, close: bool, done: bool) -> None:
    queue = await dwell.open(folder).__aenter__()
    for part in range(parts):
        ids = [f"{part}-{number}" for number in range(_PART)]
        delay = "0s" if done else "1h"
        await queue.put_many("t", [b"x" * 100] * _PART, ids=ids, delay=delay)
        if done:
            await queue.ack(await queue.take("t", _PART))
    if close:
        await queue.close()


def fill(folder: Path, *, parts: int = 4, close: bool = True, done: bool = False) -> None:
    """Put messages in batches that are frames of their own; die without a snapshot if asked to.

    ``done``: they are due, and taken and acked in frames of their own.
    """
    if close:
        asyncio.run(_fill(folder, parts, close=close, done=done))
        return
    in_child(_fill(folder, parts, close=close, done=done))


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """Return a store whose process ended without a snapshot."""
    folder = tmp_path / "store"
    fill(folder, close=False)
    return folder


def overwrite(path: Path, offset: int, data: bytes = b"\xff" * 16) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def journal(folder: Path) -> Path:
    return folder / "journal-00000000.dwl"


def stats(folder: Path) -> int:
    with dwell.open(folder) as queue:
        counts = queue.stats().topics.get("t", dwell.TopicStats())
        return counts.delayed


def test_a_whole_store(crashed: Path) -> None:
    report = check(crashed)
    assert report.ok
    assert report.messages == {"delayed": 4 * _PART, "ready": 0, "leased": 0, "dead": 0}
    assert report.segments == 1
    assert report.bytes > 4 * _PART * 100


def test_a_check_changes_nothing(crashed: Path) -> None:
    overwrite(journal(crashed), 9000)
    before = {path.name: path.read_bytes() for path in crashed.iterdir() if path.name != "lock"}
    assert not check(crashed).ok
    after = {path.name: path.read_bytes() for path in crashed.iterdir() if path.name != "lock"}
    assert before == after


def test_a_damaged_record_in_the_middle_stops_the_start(crashed: Path) -> None:
    overwrite(journal(crashed), 9000)
    with pytest.raises(StoreDamaged, match=r"journal-00000000\.dwl: damaged from offset \d+"):
        stats(crashed)


def test_repair_saves_the_rest_and_says_what_is_lost(crashed: Path) -> None:
    overwrite(journal(crashed), 9000)
    report = check(crashed, repair=True)
    assert any("bytes lost" in finding for finding in report.findings)
    assert report.messages["delayed"] == 3 * _PART
    assert stats(crashed) == 3 * _PART
    assert check(crashed).messages["delayed"] == 3 * _PART


def test_what_a_repair_saved_can_be_used(crashed: Path) -> None:
    overwrite(journal(crashed), 9000)
    check(crashed, repair=True)
    with dwell.open(crashed) as queue:
        found = [queue.get("t", f"{part}-7") for part in range(4)]
        assert sum(message is not None for message in found) == 3
        answer = queue.put_many("t", [b"new"] * 4, ids=[f"{part}-7" for part in range(4)])
        created = [put.id for put in answer if put.result is dwell.Result.CREATED]
        assert len(created) == 1
        assert [message.id for message in queue.take("t", 10)] == created


async def _in_segments(folder: Path) -> None:
    store = EmbeddedStore(folder, segment_bytes=64 * 1024)
    queue = await Queue(store).__aenter__()
    for number in range(60):
        await queue.put("t", b"x" * 4_000, id=f"m-{number:02}", delay="1h")
        if number == 20:
            await store.compact()
    os._exit(0)


@pytest.mark.parametrize("number", range(4))
def test_what_a_segment_that_is_gone_takes_with_it(tmp_path: Path, number: int) -> None:
    """The snapshot was made in the second of four; what lies in the others is saved."""
    folder = tmp_path / "store"
    in_child(_in_segments(folder))
    # As if the store had made no other one on its own.
    for path in sorted(folder.glob("snapshot-*"))[1:]:
        path.unlink()
    gone = folder / f"journal-{number:08d}.dwl"
    held = {int(name) for name in re.findall(rb"m-(\d\d)xxx", gone.read_bytes())}
    assert len(held) > 10
    gone.unlink()
    with pytest.raises(StoreDamaged, match=rf"journal-{number:08d}\.dwl: is missing"):
        stats(folder)
    report = check(folder, repair=True)
    assert report.messages["delayed"] == 60 - len(held)
    with dwell.open(folder) as queue:
        ids = [f"m-{number:02}" for number in range(60)]
        found = [message is not None for message in queue.get("t", ids)]
        assert found == [number not in held for number in range(60)]


async def _taken(folder: Path) -> None:
    queue = await dwell.open(folder).__aenter__()
    await queue.put_many("t", [b"x" * 100] * 3, ids=["m-0", "m-1", "m-2"])
    store = queue.store
    assert isinstance(store, EmbeddedStore)
    await store.compact()
    await queue.take("t", 3)
    os._exit(0)


@pytest.mark.parametrize("part", [b"\xff", b"m\x80", b"m-\xc3"])
def test_what_happened_to_messages_whose_ids_are_damaged_can_be_read(
    tmp_path: Path, part: bytes
) -> None:
    """Their takes are in the journal behind a snapshot, and their ids before it."""
    folder = tmp_path / "store"
    in_child(_taken(folder))
    overwrite(journal(folder), journal(folder).read_bytes().find(b"m-1xxxx"), part)
    check(folder, repair=True)
    with dwell.open(folder) as queue:
        events = queue.events(0, limit=100).events
        taken = [event.id for event in events if event.kind is Kind.TAKE]
        assert queue.get("t", ["m-0", "m-1", "m-2"]) == [None] * 3
    damaged = (part + b"m-1"[len(part) :]).decode("utf-8", "backslashreplace")
    assert taken == ["m-0", damaged, "m-2"]


def test_repair_passes_over_records_all_of_whose_messages_are_lost(tmp_path: Path) -> None:
    fill(tmp_path / "store", parts=2, close=False, done=True)
    overwrite(journal(tmp_path / "store"), 9000)
    report = check(tmp_path / "store", repair=True)
    assert f"take of {_PART} messages that are lost" in report.findings
    assert stats(tmp_path / "store") == 0


def test_a_torn_tail_is_no_damage(crashed: Path) -> None:
    data = journal(crashed).read_bytes()
    end = len(data.rstrip(b"\0"))
    overwrite(journal(crashed), end - 20)
    assert check(crashed).ok
    assert stats(crashed) == 3 * _PART


def test_a_lost_body_behind_a_snapshot_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder)
    overwrite(journal(folder), 9000)
    report = check(folder)
    assert any("messages are lost" in finding for finding in report.findings)
    repaired = check(folder, repair=True)
    assert repaired.messages["delayed"] == 3 * _PART
    assert stats(folder) == 3 * _PART


def test_a_damaged_snapshot_is_made_up_for_by_the_journal(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder)
    (path,) = folder.glob("snapshot-*")
    overwrite(path, path.stat().st_size // 2)
    assert not check(folder).ok
    assert stats(folder) == 4 * _PART


def _no_label(folder: Path) -> None:
    (folder / "dwell.json").unlink()


def _garbled_label(folder: Path) -> None:
    (folder / "dwell.json").write_text("{")


def _newer_label(folder: Path) -> None:
    label = json.loads((folder / "dwell.json").read_text())
    (folder / "dwell.json").write_text(json.dumps({**label, "dwell": 99}))


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (_no_label, NotAStore, "holds files but no dwell.json"),
        (_garbled_label, StoreDamaged, "is not a store's label"),
        (_newer_label, StoreTooNew, "has format 99; this version of Dwell reads up to 4"),
    ],
)
def test_a_folder_that_cannot_be_opened(
    crashed: Path, damage: Callable[[Path], None], error: type[Exception], words: str
) -> None:
    damage(crashed)
    before = sorted(path.name for path in crashed.iterdir())
    with pytest.raises(error, match=words):
        stats(crashed)
    assert sorted(path.name for path in crashed.iterdir()) == before


def test_a_file_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotAStore, match="is a file"):
        stats(tmp_path / "file")
    with pytest.raises(NotAStore):
        check(tmp_path / "nowhere")


def test_a_held_folder_is_refused(tmp_path: Path) -> None:
    with dwell.open(tmp_path / "store") as queue:
        queue.put("t", b"x")
        with pytest.raises(StoreLocked, match=f"held by process {os.getpid()}"):
            stats(tmp_path / "store")
        with pytest.raises(StoreLocked):
            check(tmp_path / "store")
    assert check(tmp_path / "store").messages["ready"] == 1


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, close=False)
    second = folder / "journal-00000001.dwl"
    shutil.move(journal(folder), second)
    with pytest.raises(StoreDamaged, match=r"journal-00000000\.dwl: is missing"):
        stats(folder)


def test_a_segment_that_a_crash_left_unfinished_is_no_part_of_the_store(crashed: Path) -> None:
    (crashed / "journal-00000001.dwl.new").write_bytes(b"")
    assert check(crashed).ok
    assert stats(crashed) == 4 * _PART
    assert not list(crashed.glob("*.new"))


def test_a_missing_segment_behind_the_snapshot_is_damage(tmp_path: Path) -> None:
    folder = tmp_path / "store"

    async def fill_two() -> None:
        async with Queue(EmbeddedStore(folder, segment_bytes=_SMALL)) as queue:
            for part in range(2):
                ids = [f"{part}-{number}" for number in range(200)]
                await queue.put_many("t", [b"x" * 300] * 200, ids=ids, delay="1h")

    asyncio.run(fill_two())
    journal(folder).unlink()
    with pytest.raises(StoreDamaged, match=r"00000000\.dwl: is missing"):
        stats(folder)
    assert "is missing" in check(folder).findings[0]
    report = check(folder, repair=True)
    assert 0 < report.messages["delayed"] < 400
    assert stats(folder) == report.messages["delayed"]
    assert check(folder).ok
