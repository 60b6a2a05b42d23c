"""What must not part: journal, state and snapshots, whatever fails between them."""

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import dwell
from dwell.batch.blobs import text_bytes
from dwell.errors import StoreFailed
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore, columns, snapshot
from dwell.store.embedded.disk import Buffer, Disk
from dwell.store.embedded.lasterrors import LastErrors
from dwell.store.embedded.machine import Machine
from dwell.testing.faults import FaultyDisk
from tests.store.upkeep import end_of_upkeep

_SEGMENT_BYTES = 65_536


def body(number: int) -> bytes:
    return b"body %200d" % number


async def test_a_store_that_is_opened_again_delivers_no_body_that_was_lost(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = EmbeddedStore(tmp_path / "store", disk=disk)

    queue = Queue(store)
    await queue.open()
    disk.arm("write", 0)
    with pytest.raises(StoreFailed):
        await queue.put("t", b"lost")
    await queue.close()
    await queue.open()
    await queue.put("t", b"kept")
    assert (await queue.take("t"))[0].body == b"kept"
    await queue.close()


async def test_a_store_that_is_opened_again_makes_snapshots(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    async with Queue(store):
        pass
    async with Queue(store) as queue:
        await queue.put("t", b"kept")
        await store.compact()
        assert store.core.compactor.covered == store.core.journal.position


async def test_without_memory_a_put_is_refused_and_nothing_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = columns._resized, [3]

    def failing(*args):  # type: ignore[no-untyped-def]
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOMEM, "no memory")
        return real(*args)

    async with Queue(EmbeddedStore(tmp_path / "store")) as queue:
        await queue.put("t", b"first")
        monkeypatch.setattr(columns, "_resized", failing)
        with pytest.raises(OSError, match="no memory"):
            await queue.put_many("t", [b"x"] * 6_000)
        await queue.put_many("t", [b"y"] * 6_000)
        assert len(await queue.take("t", 10_000)) == 6_001
    async with Queue(EmbeddedStore(tmp_path / "store")) as queue:
        assert (await queue.stats()).topics["t"].leased == 6_001


async def test_columns_grow_while_somebody_looks_at_them(tmp_path: Path) -> None:
    async with Queue(EmbeddedStore(tmp_path / "store")) as queue:
        view = queue.store._table.due_ms[:10]  # type: ignore[attr-defined]
        await queue.put_many("t", [b"x"] * 6_000)
        assert len(view) == 10
        assert len(await queue.take("t", 10_000)) == 6_000


async def test_what_is_only_in_the_journal_stops_the_store_until_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_):  # type: ignore[no-untyped-def]
        raise MemoryError

    queue = Queue(EmbeddedStore(tmp_path / "store"))
    await queue.open()
    await queue.put("t", b"first")
    with monkeypatch.context() as patch:
        patch.setattr(Machine, "_tell", failing)
        with pytest.raises(MemoryError):
            await queue.put("t", b"second")
    with pytest.raises(StoreFailed):
        await queue.put("t", b"third")
    await queue.close()
    async with Queue(EmbeddedStore(tmp_path / "store")) as queue:
        assert list((await queue.take("t", 10)).bodies) == [b"first", b"second"]


@pytest.mark.parametrize("sync", ["always", "50ms", "never"])
async def test_a_snapshot_counts_on_nothing_that_a_power_cut_takes(
    tmp_path: Path, sync: str
) -> None:
    disk = FaultyDisk(seed=7)

    store = EmbeddedStore(tmp_path / "store", disk=disk, sync=sync, segment_bytes=_SEGMENT_BYTES)
    queue = Queue(store)
    await queue.open()
    for start in range(0, 2_000, 100):
        await queue.put_many("t", list(map(body, range(start, start + 100))))
    await end_of_upkeep(store)
    disk.lose_power()
    store = EmbeddedStore(tmp_path / "store", disk=disk.restarted(), segment_bytes=_SEGMENT_BYTES)
    async with Queue(store) as queue:
        taken = list((await queue.take("t", 10_000)).bodies)
        assert taken == list(map(body, range(len(taken))))
        assert taken


class NoSnapshots(Disk):
    """A disk on which snapshots cannot be made safe, while ``fails`` is set."""

    fails = False
    snapshots: set[int]

    def create(self, path: Path, size_bytes: int) -> int:
        fd = super().create(path, size_bytes)
        if "snapshot" in path.name:
            self.__dict__.setdefault("snapshots", set()).add(fd)
        return fd

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        if self.fails and offset and fd in self.__dict__.get("snapshots", ()):
            raise OSError(errno.EIO, "not this one")
        super().write(fd, buffers, offset)

    def close(self, fd: int) -> None:
        self.__dict__.get("snapshots", set()).discard(fd)
        super().close(fd)


async def test_a_snapshot_that_failed_is_not_counted_on(tmp_path: Path) -> None:
    disk, folder = NoSnapshots(), tmp_path / "store"

    async def put(queue: Queue, start: int) -> None:
        for at in range(start, start + 1_000, 100):
            taken = await queue.take("t", 10_000)
            if len(taken):
                await queue.ack(taken)
            await queue.put_many("t", list(map(body, range(at, at + 100))))

    store = EmbeddedStore(folder, disk=disk, segment_bytes=_SEGMENT_BYTES)
    async with Queue(store) as queue:
        for start, fails in ((0, False), (1_000, True), (2_000, False)):
            disk.fails = fails
            await put(queue, start)
            await end_of_upkeep(store)
        assert not list(folder.glob("snapshot-*.new"))
    newest = max(folder.glob("snapshot-*.dws"))
    newest.write_bytes(newest.read_bytes()[:-9_000])
    async with Queue(EmbeddedStore(folder, segment_bytes=_SEGMENT_BYTES)) as queue:
        taken = await queue.take("t", 10_000)
        assert list(taken.bodies) == list(map(body, range(2_900, 3_000)))


async def test_events_are_written_while_each_turn_has_a_verb(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store", sync="never")
    async with Queue(store) as queue:
        tasks, most = set(), 0
        for _ in range(2_000):
            task = asyncio.ensure_future(queue.put_many("t", [b""] * 200))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(0)
            most = max(most, store.core.machine.events._unwritten)
        await asyncio.gather(*tasks)
        assert most < 350_000
        assert np.count_nonzero(store.core.machine.events.totals) == 1


async def test_what_is_not_taken_in_turn_leaves_the_ready_runs_small(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store", sync="never")
    async with Queue(store) as queue:
        await queue.put("t", b"stays")
        for turn in range(40):
            answer = await queue.put_many("t", [b"x"] * 5_000)
            if turn % 2:
                await queue.cancel("t", list(answer.ids))
            else:
                await queue.ack(await queue.take_ids("t", list(answer.ids)))
        assert store.core.machine.topics.runs(0).size < 80_000
        assert list((await queue.take("t", 10)).bodies) == [b"stays"]


async def test_one_id_many_times_in_a_batch_is_one_message_and_one_record(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    async with Queue(store) as queue:
        await queue.configure("t", max_pending=2, on_full="drop")
        before = store.core.journal.position
        answer = await queue.put_many("t", list("abcdef" * 500), ids=list("xyxzyz" * 500))
        assert store.core.journal.position - before < 1_000
        words = [str(put.result) for put in answer]
        assert words[:6] == ["created", "created", "kept", "dropped", "kept", "dropped"]
        assert words[6:] == ["kept", "kept", "kept", "dropped", "kept", "dropped"] * 499
        assert list((await queue.take("t", 10)).bodies) == [b"a", b"b"]


async def test_errors_are_kept_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "_ERRORS_STEP", 2)
    ids = [str(number) for number in range(5)]
    async with dwell.open(tmp_path / "s") as queue:
        await queue.put_many("t", ["x"] * 5, ids=ids)
        for message in await queue.take("t", 5):
            await queue.bury(message, f"error {message.id}")
    for _ in range(2):
        async with dwell.open(tmp_path / "s") as queue:
            found = await queue.get("t", ids)
            assert [m.last_error for m in found] == [f"error {id_}" for id_ in ids]


def test_the_room_of_errors_is_that_of_their_texts():
    errors = LastErrors()
    for told in ({1: "a", 2: "bb"}, {2: "c" * 10, 9_999: "ü"}, {}):
        errors.note(told)
        whole = sum(8 + text_bytes(text) for _, text in errors.items())
        assert errors.size_bytes == whole
    then = errors.copy()
    errors.forget([2, 7, 20_000])
    assert (dict(errors.items()), errors.size_bytes) == ({1: "a", 9_999: "ü"}, 8 + 1 + 8 + 4)
    errors.forget([1, 9_999])
    assert (bool(errors), len(errors), errors.size_bytes) == (False, 0, 0)
    assert dict(then.items()) == {1: "a", 2: "c" * 10, 9_999: "ü"}
