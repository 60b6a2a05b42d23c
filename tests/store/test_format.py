"""A store of every format that there ever was can be read; what is written is of the newest."""

import asyncio
import tarfile
from pathlib import Path

import pytest

import dwell
from dwell import Outcome
from dwell.clock import SimulatedClock
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.check import check
from dwell.store.embedded.folder import FORMAT
from dwell.store.embedded.journal.frame import frame_at
from dwell.store.embedded.journal.record import RecordKind, records_in
from tests.data.make_store import START_MS, make

DATA = Path(__file__).parents[1] / "data"

#: Topic, id, state, body, due after the start, attempt, last_error, key of every message.
EXPECTED = [
    ("orders", "2", "delayed", b"b", 63_000, 0, "because", None),
    ("orders", "3", "leased", b"c", 1_000, 2, "oops", None),
    ("orders", "4", "delayed", b"new body", 30_000, 0, None, None),
    ("orders", "5", "delayed", b"later", 172_800_000, 0, None, "k"),
    ("orders", "7", "delayed", b"after the snapshot", 4_000, 0, None, None),
    ("plain", "expiring", "dead", b"soon", 1_000, 0, "expired", None),
    ("plain", "~", "delayed", b"made", 31_536_000_000, 0, None, None),
]


async def look(folder: Path, number: int = FORMAT) -> None:
    """Compare a store of a format with what it should hold."""
    clock = SimulatedClock(START_MS + 3_000)
    found = []
    async with Queue(EmbeddedStore(folder, clock=clock)) as queue:
        for topic in ("orders", "plain"):
            for state in ("delayed", "ready", "leased", "dead"):
                async for batch in queue.pages(topic, state):
                    for m in batch:
                        id_ = "~" if m.id.startswith("~") else m.id
                        due = m.due_ms - START_MS
                        found.append(
                            (topic, id_, state, m.body, due, m.attempt, m.last_error, m.key)
                        )
        assert sorted(found, key=lambda f: f[:2]) == EXPECTED
        assert (await queue.get("orders", "5")).headers == {"h": "v"}
        assert (await queue.settings("orders")).max_attempts == 2
        (held,) = await queue.held("worker")
        assert (held.id, held.lease_until_ms) == ("3", START_MS + 3_000 + 7_200_000)
        kinds = [str(event.kind) for event in (await queue.events(limit=100)).events]
        assert kinds.count("put") == (9 if number < 4 else 14)
        if number >= 4:
            await look_at_results(queue)
        assert {"replace", "take", "ack", "bury", "release", "cancel", "move", "expire"} <= {*kinds}
        assert (await queue.put("orders", "a", id="1")).result.name == "KEPT"
        assert (await queue.ack(held)).name == "ACKED"


async def look_at_results(queue: Queue) -> None:
    """Compare what acks kept, before and after the snapshot."""
    assert [await queue.result("results", id_) for id_ in ("8", "9", "10", "11")] == [
        Outcome("done", b"result"),
        Outcome("done"),
        Outcome("delayed"),
        Outcome("done", b"after the snapshot"),
    ]


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_a_store_of_every_format_can_be_read(tmp_path: Path, number: int) -> None:
    with tarfile.open(DATA / f"store-format-{number}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert check(tmp_path / "store").ok
    asyncio.run(look(tmp_path / "store", number))


async def test_a_store_that_is_made_now_reads_the_same(tmp_path: Path) -> None:
    await make(tmp_path / "store")
    await look(tmp_path / "store")


def frames_of(folder: Path) -> list[list[RecordKind]]:
    """Return the kinds of the records of each frame."""
    data = memoryview((folder / "journal-00000000.dwl").read_bytes())
    found, offset = [], 0
    while (frame := frame_at(data, offset, offset)) is not None:
        found.append([record.kind for record in records_in(data, frame.start, frame.end, 0)])
        offset = frame.end
    return found


async def test_verbs_of_one_turn_share_a_frame_until_it_is_large(tmp_path: Path) -> None:
    async with dwell.open(tmp_path / "store") as queue:
        # Those of one topic would be one record.
        await asyncio.gather(*[queue.put(f"t{n}", b"x" * 1000) for n in range(20)])
        await asyncio.gather(*[queue.put(f"t{n}", b"x" * 300_000) for n in range(20)])
    sizes = [
        len(kinds) for kinds in frames_of(tmp_path / "store") if set(kinds) == {RecordKind.PUT}
    ]
    assert sizes == [20, 4, 4, 4, 4, 4]


async def test_the_example_has_every_kind_of_record(tmp_path: Path) -> None:
    await make(tmp_path / "store")
    kinds = {kind for frame in frames_of(tmp_path / "store") for kind in frame}
    # A copy is what compaction writes, and a lapse what a lost worker leaves; the fault tests
    # and the crash campaign go through both.
    assert set(RecordKind) - kinds <= {RecordKind.COPY, RecordKind.LAPSE}
