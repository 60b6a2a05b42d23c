"""Hashes of ids, and the form of ids that the queue makes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dwell
from dwell.batch.blobs import LazyIds, queue_id
from dwell.store.embedded.ids import HASHERS, Hasher, IdHasher
from dwell.store.embedded.numbers import parse_queue_ids

_ids = st.binary(min_size=1, max_size=256)
_own = st.lists(_ids, min_size=1, max_size=20)


_hashers = pytest.mark.parametrize("hasher_of", HASHERS.values())


@_hashers
@given(_own, st.integers(0, 2**63 - 1), st.integers(0, 2**64 - 1))
def test_a_hash_does_not_depend_on_the_other_ids(
    hasher_of: Callable[[int], Hasher], ids: list[bytes], seed: int, topic: int
) -> None:
    hasher = hasher_of(seed)
    hashes, checks = hasher.hash(topic, ids)
    for number, text in enumerate(ids):
        alone = hasher.hash(topic, [text])
        assert (hashes[number], checks[number]) == (alone[0][0], alone[1][0])


@given(st.lists(_ids, min_size=2, max_size=50, unique=True))
def test_different_ids_have_different_hashes(ids: list[bytes]) -> None:
    hashes, checks = IdHasher(7).hash(9, ids)
    assert len(set(zip(hashes.tolist(), checks.tolist(), strict=True))) == len(ids)


def test_ids_that_differ_in_zeros_at_the_end_have_different_hashes() -> None:
    ids = [b"a", b"a\0", b"a\0\0", b"a" + bytes(8), b"a" + bytes(16)]
    assert len(set(IdHasher(1).hash(1, ids)[0].tolist())) == len(ids)


def hostile_ids() -> list[bytes]:
    """Return 65,536 printable ids, made without a seed, which many keyed sums take for one.

    Of 16 pairs of words each pair may be another that multiply and shift can undo.
    """
    words = np.tile(np.frombuffer(b"aacdaaca" * 32, "<u8"), (1 << 16, 1))
    numbers = np.arange(1 << 16)
    for bit in range(16):
        on = (numbers >> bit) & 1 > 0
        words[on, 2 * bit] ^= np.uint64(1 << 62)
        words[on, 2 * bit + 1] ^= np.uint64(0x4000000200000000)
    raw = words.tobytes()
    return [raw[start : start + 256] for start in range(0, len(raw), 256)]


@pytest.mark.parametrize("seed", range(3))
def test_nobody_makes_ids_that_collide_without_the_seed(seed: int) -> None:
    hasher = IdHasher(seed)
    hashes, checks = hasher.hash(hasher.topic("t"), hostile_ids())
    assert len(np.unique(hashes)) == 1 << 16
    assert len(np.unique(checks)) > (1 << 16) - 50
    first, second = (IdHasher(seed).hash(hasher.topic(name), [b"id"])[0] for name in "tu")
    assert first != second


def test_hostile_ids_are_all_put(tmp_path: Path) -> None:
    ids = [id_.decode() for id_ in hostile_ids()[:20_000]]
    with dwell.open(tmp_path / "store", sync="never") as queue:
        for start in range(0, len(ids), 10_000):
            part = ids[start : start + 10_000]
            puts = queue.put_many("t", [b""] * len(part), ids=part, delay="1h")
            assert {put.result for put in puts} == {dwell.Result.CREATED}


def test_hashes_are_spread_evenly() -> None:
    ids = [b"order-%09d" % number for number in range(50_000)]
    hashes, checks = IdHasher(3).hash(4, ids)
    assert len(np.unique(hashes)) == len(ids)
    for part in (hashes & np.uint64(255), hashes >> np.uint64(56), checks & np.uint32(255)):
        counts = np.bincount(part.astype(np.int64), minlength=256)
        # 195 in each of 256 classes; the bound is more than seven standard deviations away.
        assert counts.min() > 95
        assert counts.max() < 300


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**40))
def test_queue_ids_say_where_the_message_is(row: int, seq: int) -> None:
    rows, seqs = parse_queue_ids([queue_id(row, seq).encode()])
    assert (rows[0], seqs[0]) == (row, seq)


ALIASES = (b"~01-a", b"~1-0a", b"~0x1-a", b"~1-0xa", b"~ 1-a", b"~1-a ", b"~+1-a", b"~1-A")


def test_what_is_no_queue_id_names_nothing() -> None:
    for text in (b"~", b"~1", b"~x-y", b"~1-2-3", b"~-", b"~1-" + b"f" * 40, b"~-1-2", *ALIASES):
        rows, seqs = parse_queue_ids([text])
        assert (rows[0], seqs[0]) == (0, 0)


def test_lazy_ids_can_be_sliced() -> None:
    rows, seqs = np.array([1, 2, 3], np.uint32), np.array([4, 5, 6], np.uint64)
    ids = LazyIds(rows, seqs, [b"own", b"", b"x"])
    assert list(ids) == ["own", "~2-5", "x"]
    assert list(ids[1:]) == ["~2-5", "x"]
    assert list(LazyIds(rows, seqs, None)) == ["~1-4", "~2-5", "~3-6"]


@given(st.slices(6), st.slices(4), st.sampled_from(("made", "own", "both")))
def test_a_slice_of_lazy_ids_is_that_of_a_list(cut: slice, again: slice, whose: str) -> None:
    numbers = range(1, 7)
    rows, seqs = np.array(numbers, np.uint32), np.array(numbers, np.uint64)
    own = {
        "made": None,
        "own": [b"%d" % n for n in numbers],
        "both": [b"", b"x", b"", b"", b"y", b"z"],
    }[whose]
    ids = LazyIds(rows, seqs, own)
    texts = [ids[at] for at in range(6)]
    assert list(ids[cut]) == texts[cut]
    assert list(ids[cut][again]) == texts[cut][again]


@pytest.mark.parametrize("own", [True, False])
def test_a_batch_backwards_has_its_ids(tmp_path: Path, own: bool) -> None:
    ids = ["a", "bb", "c"] if own else None
    with dwell.open(tmp_path / "store") as queue:
        queue.put_many("t", [b"1", b"2", b"3"], ids=ids)
        batch = queue.take("t", 10)
        assert list(batch[::-1].ids) == [message.id for message in batch][::-1]
        assert list(batch[:0][::-1].ids) == []
        assert list(batch[2:0:-1].ids) == [batch[2].id, batch[1].id]
