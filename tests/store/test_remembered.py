"""Remembered ids against a dictionary, over growth, ends and a snapshot."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dwell.store.embedded.remembered import Remembered

_STEP = st.tuples(
    st.lists(st.integers(0, 300), min_size=1, max_size=60, unique=True),
    st.integers(0, 50),
    st.integers(1, 200),
    st.booleans(),
)


def hashes_of(numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    # Some share their first place in the index, and the number 0 has the hash 0.
    hashes = np.array([(number % 7) + (number << 40) for number in numbers], dtype=np.uint64)
    return hashes, np.array(numbers, dtype=np.uint32)


@settings(max_examples=150, deadline=None)
@given(st.lists(_STEP, max_size=25))
def test_holds_what_was_added_until_its_end(
    steps: list[tuple[list[int], int, int, bool]],
) -> None:
    remembered, model, now_ms = Remembered(), {}, 1_000
    # Room for few, so that what is over is thrown away again and again.
    remembered.capacity = 64
    everybody = list(range(301))
    for numbers, later_ms, span_ms, anew in steps:
        now_ms += later_ms
        until_ms = np.full(len(numbers), now_ms + span_ms, dtype=np.int64)
        remembered.add(*hashes_of(numbers), until_ms, now_ms)
        for number in numbers:
            model[number] = max(model.get(number, 0), now_ms + span_ms)
        if anew:
            again = Remembered()
            again.restore(*remembered.entries(now_ms))
            remembered = again
        held = remembered.holds(*hashes_of(everybody), now_ms)
        assert held.tolist() == [model.get(number, 0) > now_ms for number in everybody]


def test_other_confirming_bits_are_another_id() -> None:
    remembered = Remembered()
    one = np.array([77], dtype=np.uint64)
    remembered.add(one, np.array([1], np.uint32), np.array([500]), 100)
    assert remembered.holds(one, np.array([1], np.uint32), 100).tolist() == [True]
    assert remembered.holds(one, np.array([2], np.uint32), 100).tolist() == [False]
