"""The bodies that are kept in memory are those that lie in the journal, and not too many."""

from pathlib import Path

import numpy as np
import pytest

import dwell
from dwell.batch.blobs import Blobs
from dwell.store.embedded.recent import Recent


def at(*positions: int) -> np.ndarray:
    return np.array(positions, dtype=np.int64)


def test_finds_bodies_in_any_order_and_only_when_all_are_known() -> None:
    kept = Recent()
    assert kept.find(at(10)) is None
    kept.add(at(10, 13), [b"one", b"two"])
    kept.add(at(90, 95), [b"three", b"four"])
    assert kept.find(at(10, 13, 90)) == [b"one", b"two", b"three"]
    assert kept.find(at(95, 10)) == [b"four", b"one"]
    for unknown in (at(9), at(11), at(96), at(10, 91), at(95, 10, 50)):
        assert kept.find(unknown) is None


def test_bodies_that_are_no_objects_or_share_a_place_are_left_out() -> None:
    kept = Recent()
    kept.add(at(0, 3), Blobs.packed(b"onetwo", at(3, 3)))
    kept.add(at(20, 20), [b"", b"two"])
    assert kept.find(at(0)) is None
    assert kept.find(at(20)) is None


def test_the_oldest_go_when_it_is_full() -> None:
    kept = Recent(10_000)
    for number in range(100):
        kept.add(at(1000 * number), [b"%03d" % number + bytes(1000)])
    found = [number for number in range(100) if kept.find(at(1000 * number)) is not None]
    assert found == list(range(found[0], 100))
    assert 4 <= len(found) <= 9
    kept.add(at(10**6), [bytes(6000)])
    assert kept.find(at(10**6)) is None
    assert kept.find(at(99_000)) == [b"099" + bytes(1000)]


@pytest.mark.parametrize("bodies", [[b"", b"full", b""], ["text", {"a": 1}, b"bytes"]])
async def test_a_body_is_the_same_from_memory_and_from_the_folder(
    tmp_path: Path, bodies: list[object]
) -> None:
    async with dwell.open(tmp_path / "store") as queue:
        await queue.put_many("t", bodies, key="k", ids=["a", "b", "c"])
        await queue.put_many("t", bodies)
        first = await queue.take("t", 10)
        await queue.release(first)
    async with dwell.open(tmp_path / "store") as queue:
        again = await queue.take("t", 10)
        assert list(again.ids) == list(first.ids)
        assert list(again.bodies) == list(first.bodies)
        assert [m.key for m in again] == [m.key for m in first] == ["k"] * 3 + [None] * 3
