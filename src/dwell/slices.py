"""Slices: divides long sequences into parts."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

S = TypeVar("S", bound=Sequence[Any])


def slices(items: S, most: int) -> Iterator[S]:
    """Yield parts of at most ``most`` items, in order, of the same type as ``items``."""
    return (items[at : at + most] for at in range(0, len(items), most))  # type: ignore[misc]


def places(sizes: Iterable[int], most: int) -> Iterator[slice]:
    """Yield the places of parts whose sizes add up to about ``most``."""
    ends = np.cumsum(np.fromiter(sizes, np.int64))
    cuts = np.flatnonzero(np.diff(ends // most)) + 1
    return (slice(*pair) for pair in pairwise([0, *cuts.tolist(), len(ends)]))


def tuples(items: Sequence[Any], width: int) -> Iterator[tuple[Any, ...]]:
    """Yield items as tuples of ``width``; the number of items must be a multiple of it."""
    return zip(*[iter(items)] * width, strict=True)
