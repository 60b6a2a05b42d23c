import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dwell.store.embedded.distinct import distinct, first_of_each

_ROWS = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30)


@given(_ROWS)
def test_each_row_once(pairs: list[tuple[int, bool]]) -> None:
    rows = np.array([row for row, _ in pairs], dtype=np.uint32)
    assert distinct(rows).tolist() == sorted({row for row, _ in pairs})


@given(_ROWS)
def test_only_the_first_good_one_of_each(pairs: list[tuple[int, bool]]) -> None:
    rows = np.array([row for row, _ in pairs], dtype=np.uint32)
    seen: set[int] = set()
    expected = []
    for row, good in pairs:
        expected.append(good and row not in seen)
        if good:
            seen.add(row)
    goods = np.array([good for _, good in pairs], dtype=bool)
    assert first_of_each(rows, goods).tolist() == expected
