"""What lies behind the end of the journal: found where it is whole, zeros where it is not."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dwell import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.journal.frame import frames_in, header
from dwell.store.embedded.journal.segment import segment_path

_SEGMENT_BYTES = 1 << 20
_BASE = 3 * _SEGMENT_BYTES


@given(
    places=st.lists(st.integers(0, 200), unique=True, max_size=9).map(sorted),
    first=st.integers(0, 201 * 512),
)
def test_every_whole_frame_is_found_wherever_it_begins(places: list[int], first: int) -> None:
    data = bytearray(202 * 512)
    for place in places:
        frame = header(_BASE + 512 * place, 0, 0, [b"a record"]) + b"a record"
        data[512 * place : 512 * place + len(frame)] = frame
    wanted = [_BASE + 512 * place for place in places]
    view = memoryview(data)
    halves = [(0, 8192), (8192, len(data))]
    assert [frame.position for frame in frames_in(view, halves, _BASE)] == wanted
    behind = frames_in(view, [(first, len(data))], _BASE)
    assert [frame.position for frame in behind] == [at for at in wanted if at >= _BASE + first]


async def test_nothing_stays_behind_the_end_of_the_journal(tmp_path: Path) -> None:
    """What a kill left half written may lie in several parts, with holes between them."""

    def queue() -> Queue:
        return Queue(EmbeddedStore(tmp_path, segment_bytes=_SEGMENT_BYTES))

    async with queue() as first:
        await first.put_many("t", [b"x"] * 3)
        assert isinstance(first.store, EmbeddedStore)
        end = first.store.core.journal.position
    path = segment_path(tmp_path, 0)
    with path.open("r+b") as file:
        for at in (5, 40_000, 400_000):
            file.seek(end + at)
            file.write(b"torn")
    async with queue() as again:
        assert len(await again.take("t", 10)) == 3
    assert b"torn" not in path.read_bytes()
