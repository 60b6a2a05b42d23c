"""A bit that flips in what was promised: it is told, and what it hit is not handed out."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

import dwell
from dwell.clock import SimulatedClock
from dwell.errors import StoreDamaged, StoreTooNew
from dwell.message import Result, State
from dwell.queue.calling import Calling, begin
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.check import check
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.journal.frame import frame_at
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.limits import Limits
from tests.waiting import until_async
from tools.survive import flips

SEGMENT_BYTES = 64 * 1024


def flip(folder: Path, text: bytes) -> None:
    """Flip a bit in the first place of the journal where a text is."""
    for path in sorted(folder.glob("journal-*")):
        data = bytearray(path.read_bytes())
        at = data.find(text)
        if at >= 0:
            data[at] ^= 4
            path.write_bytes(data)
            return
    raise AssertionError(f"{text!r} is not there")


async def filled(folder: Path) -> None:
    async with dwell.open(folder, segment_bytes=SEGMENT_BYTES) as queue:
        for number in range(100):
            await queue.put("t", f"body {number:03}" * 40, id=f"id {number:03}", priority=number)


@pytest.mark.parametrize("kind", flips.KINDS)
def test_a_flipped_bit_is_never_served(kind):
    found = flips.run(kind, 12, 7)
    assert not found.wrong
    assert found.outcomes["refused"] + found.outcomes["repaired"] > 2


def test_what_is_damaged_more_is_repaired_and_nothing_is_mixed_up():
    found = flips.run(flips.MORE, 40, 5)
    assert not found.wrong
    assert found.outcomes["repaired"] == 40


async def test_a_damaged_message_shifts_no_call_numbers(tmp_path):
    """Each of joined takes can be undone, and none undoes another."""
    await filled(tmp_path / "s")
    flip(tmp_path / "s", b"body 001")

    async def take(number):
        begin(Calling(number, is_again=False))
        return await queue.take("t", 1, lease="1h")

    async with dwell.open(tmp_path / "s") as queue:
        tasks = [asyncio.create_task(take(number)) for number in (10, 20, 30)]
        batches = await asyncio.gather(*tasks)
        assert [batch.ids[0] for batch in batches] == ["id 000", "id 002", "id 003"]
        assert await queue.store.undo_takes(np.array([20], np.uint64)) == 1
        acked = [await queue.ack(batch) for batch in batches]
        assert acked == [[Result.ACKED], [Result.STALE], [Result.ACKED]]


@pytest.mark.parametrize("text", [b"body 007", b"id 007"])
async def test_what_is_damaged_is_not_handed_out(tmp_path, text, caplog):
    await filled(tmp_path / "s")
    flip(tmp_path / "s", text)
    async with dwell.open(tmp_path / "s") as queue:
        # What lies in whole frames is handed out, and what is not says where.
        assert [m.id for m in await queue.take("t", 7)] == [f"id {n:03}" for n in range(7)]
        assert [m.id for m in await queue.peek("t", 1)] == ["id 008"]
        assert [m.id for m in await queue.take("t", 1)] == ["id 008"]
        assert "1 damaged messages are buried" in caplog.text
        assert [m.id for m in await queue.take("t", 2)] == ["id 009", "id 010"]
        assert (await queue.stats()).topics["t"].dead == 1
        with pytest.raises(StoreDamaged, match=r"'id 007'.*journal-00000000\.dwl: damaged from"):
            await queue.get("t", "id 007")
        assert not len((await queue.scan("t", State.DEAD)).messages)
    report = await asyncio.to_thread(check, tmp_path / "s", repair=True)
    assert not report.ok
    assert sum(report.messages.values()) == 99


async def test_a_damaged_message_costs_its_neighbours_nothing(tmp_path):
    await filled(tmp_path / "s")
    for number in (3, 4, 50):
        flip(tmp_path / "s", f"body {number:03}".encode())
    async with dwell.open(tmp_path / "s") as queue:
        assert len(await queue.take_ids("t", ["id 003", "id 005"])) == 1
        taken = await queue.take("t", 100)
        whole = set(range(100)) - {3, 4, 5, 50}
        assert {m.id for m in taken} == {f"id {number:03}" for number in whole}
        assert set(taken.attempt.tolist()) == {1}
        counts = (await queue.stats()).topics["t"]
        assert (counts.leased, counts.dead) == (97, 3)


@pytest.fixture
def slow_checks(monkeypatch):
    """Let segments be checked only when the event is set."""
    go_on = asyncio.Event()
    check = Journal.check_segments

    async def checked(journal, segments):
        await go_on.wait()
        await check(journal, segments)

    monkeypatch.setattr(Journal, "check_segments", checked)
    return go_on


async def test_leases_that_end_while_damage_is_looked_for_are_nobodys(tmp_path, slow_checks):
    await filled(tmp_path / "s")
    flip(tmp_path / "s", b"body 007")
    clock = SimulatedClock(2_000_000_000_000)
    async with dwell.open(tmp_path / "s", clock=clock) as queue:
        taking = asyncio.ensure_future(queue.store.take(["t"], 10, 1_000, ""))
        await until_async(lambda: queue.store.core.machine.table.total(State.LEASED) == 10)
        clock.advance(2_000)
        other = asyncio.ensure_future(queue.store.take(["t"], 5, 3_600_000, ""))
        await until_async(lambda: queue.store.core.machine.table.total(State.LEASED) == 5)
        slow_checks.set()
        theirs = {m.id for m in await other}
        assert theirs == {f"id {number:03}" for number in range(5)}
        # They are ready again, so the first take has leased others in their place.
        assert theirs.isdisjoint(m.id for m in await taking)


async def test_a_take_cancelled_while_damage_is_looked_for_gives_back(tmp_path, slow_checks):
    await filled(tmp_path / "s")
    flip(tmp_path / "s", b"body 007")
    async with dwell.open(tmp_path / "s") as queue:
        table = queue.store.core.machine.table
        taking = asyncio.ensure_future(queue.store.take(["t"], 10, 3_600_000, ""))
        await until_async(lambda: table.total(State.LEASED) == 10)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert table.total(State.LEASED) == 0


async def test_joined_takers_find_others_in_the_place_of_damaged_messages(tmp_path):
    await filled(tmp_path / "s")
    flip(tmp_path / "s", b"body 001")
    async with dwell.open(tmp_path / "s") as queue, asyncio.timeout(10):
        batches = await asyncio.gather(*(queue.take("t", 1, wait="1h") for _ in range(4)))
        taken = sorted(m.id for batch in batches for m in batch)
        assert taken == [f"id {number:03}" for number in (0, 2, 3, 4)]


async def test_damage_is_not_copied_forward_as_if_it_were_whole(tmp_path):
    await filled(tmp_path / "s")
    flip(tmp_path / "s", b"body 090")
    async with dwell.open(tmp_path / "s") as queue:
        store = queue.store
        assert isinstance(store, EmbeddedStore)
        for number in range(90):
            (message,) = await queue.take("t")
            assert message.id == f"id {number:03}"
            assert await queue.ack(message) == Result.ACKED
        for number in range(3):
            await queue.put_many("t", [b"x" * 1_000] * 50, delay=number)
            await store.compact()
        with pytest.raises(StoreDamaged):
            await queue.get("t", "id 090")


async def test_many_readers_check_a_segment_once(tmp_path):
    await filled(tmp_path / "s")
    async with dwell.open(tmp_path / "s") as queue:
        await asyncio.gather(*(queue.get("t", [f"id {n:03}"]) for n in range(50)))
        store = queue.store
        assert isinstance(store, EmbeddedStore)
        assert not any(s.unchecked_bytes for s in store.core.journal.segments.values())


class CarefulDisk(Disk):
    """A disk whose files are asked where they hold something only while nothing else goes on."""

    may_ask = True

    def written(self, fd, start, end):
        assert self.may_ask, "the number may be another file's by now"
        return super().written(fd, start, end)


@pytest.mark.parametrize("text", [None, b"body 007"])
async def test_a_check_in_a_thread_asks_nothing_of_files_that_may_be_closed(tmp_path, text):
    await filled(tmp_path / "s")
    if text:
        flip(tmp_path / "s", text)
    disk = CarefulDisk()
    async with dwell.Queue(EmbeddedStore(tmp_path / "s", disk=disk)) as queue:
        disk.may_ask = False
        assert queue.store.core.journal.segments[0].unchecked_bytes
        assert await queue.get("t", ["id 090"])


def _last(folder: Path) -> Path:
    return max(folder.glob("journal-*"))


def _empties(folder: Path) -> None:
    _last(folder).write_bytes(b"")


def _shortens(folder: Path) -> None:
    with (folder / "journal-00000000.dwl").open("r+b") as file:
        file.truncate(SEGMENT_BYTES // 2 + 1)


def _adds_an_empty_one(folder: Path) -> None:
    number = int(_last(folder).stem.removeprefix("journal-")) + 1
    (folder / f"journal-{number:08}.dwl").write_bytes(b"")


def _adds_strays(folder: Path) -> None:
    (folder / "journal-1.dwl").write_bytes(b"x")
    (folder / "journal-00000099.dwl").mkdir()
    (folder / "x.new").mkdir()


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize("harm", [_empties, _shortens, _adds_an_empty_one, _adds_strays])
async def test_journal_files_of_odd_sizes_and_names_keep_no_store_from_opening(
    tmp_path, harm, repaired
):
    await filled(tmp_path / "s")
    harm(tmp_path / "s")
    await asyncio.to_thread(check, tmp_path / "s", repair=repaired)
    async with dwell.open(tmp_path / "s", limits=Limits(recent_bytes=0)) as queue:
        # What is put into a file that was cut short can be read.
        bodies = [f"new {n:03}".encode() * 200 for n in range(100)]
        for start in range(0, 100, 5):
            await queue.put_many("u", bodies[start : start + 5])
        assert [message.body for message in await queue.peek("u", 100)] == bodies
        await queue.ack(await queue.take("u", 50))
    async with dwell.open(tmp_path / "s") as queue:
        assert [message.body for message in await queue.take("u", 100)] == bodies[50:]


async def test_an_empty_journal_file_in_which_messages_lie_is_told_with_its_name(tmp_path):
    await filled(tmp_path / "s")
    async with dwell.open(tmp_path / "s") as queue:
        for _ in range(20):
            await queue.put("t", b"x" * 10_000)
    first = min((tmp_path / "s").glob("journal-*"))
    first.write_bytes(b"")
    async with dwell.open(tmp_path / "s") as queue:
        for name in ("id 000", "id 050"):
            with pytest.raises(StoreDamaged, match=first.name):
                await queue.get("t", name)
    report = await asyncio.to_thread(check, tmp_path / "s", repair=True)
    assert any("messages are lost" in finding for finding in report.findings)
    async with dwell.open(tmp_path / "s") as queue:
        left = await queue.take("t", 100)
        assert len(left) == report.messages["delayed"] + report.messages["ready"] > 0


@pytest.mark.parametrize("frames", [0, 30, 90])
async def test_zeros_where_messages_lie_are_not_handed_out(tmp_path, frames):
    """Zeros at the end of a segment may mean that nothing was written there."""
    await filled(tmp_path / "s")
    path = tmp_path / "s" / "journal-00000000.dwl"
    data, at = bytearray(path.read_bytes()), 0
    for _ in range(frames):
        at = frame_at(memoryview(bytes(data)), at, at).end
    data[at:] = bytes(len(data) - at)
    path.write_bytes(data)
    async with dwell.open(tmp_path / "s") as queue:
        for number in range(100):
            try:
                message = await queue.get("t", f"id {number:03}")
            except StoreDamaged:
                continue
            assert message.body == f"body {number:03}".encode() * 40
        with pytest.raises(StoreDamaged, match=path.name):
            await queue.get("t", "id 099")


async def test_each_flipped_bit_of_the_label_is_refused_or_changes_nothing(tmp_path):
    async with dwell.open(tmp_path / "s") as queue:
        await queue.put("t", b"x", id="a")
    path = tmp_path / "s" / "dwell.json"
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            async with dwell.open(tmp_path / "s") as queue:
                assert (await queue.get("t", "a")).body == b"x"
        except (StoreDamaged, StoreTooNew):
            continue
        whole = path.read_bytes()
