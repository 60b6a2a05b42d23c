"""Distinct rows, and other numbers, by sorting.

NumPy's ``unique`` hashes each: 1,500 us for 10,000 rows with NumPy 2.4, where this takes 50 us.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dwell.message import I64, Rows

N = TypeVar("N", bound=np.integer)


def are_distinct(numbers: NDArray[N]) -> bool:
    """Tell whether all numbers are different."""
    ordered = np.sort(numbers)
    return bool((ordered[1:] != ordered[:-1]).all())


def distinct(numbers: NDArray[N]) -> NDArray[N]:
    """Return the numbers in order, each of them once."""
    if len(numbers) and numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        return numbers[:1]
    ordered = np.sort(numbers)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered if first.all() else ordered[first]


def runs_of(numbers: NDArray[N]) -> tuple[Rows, I64]:
    """Return where runs of adjacent equal numbers begin, and how long they are."""
    is_first = np.ones(len(numbers), dtype=bool)
    np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    return starts, np.diff(np.append(starts, len(numbers)))


def first_of_each(rows: Rows, good: np.ndarray) -> np.ndarray:
    """Return ``good`` with every repetition of a row but the first set to false."""
    # Sorting takes half the time with half the bytes.
    if are_distinct(rows.astype(np.uint32)):
        return good
    places = np.flatnonzero(good)
    _, first = np.unique(rows[places], return_index=True)
    answer = np.zeros(len(rows), dtype=bool)
    answer[places[first]] = True
    return answer
