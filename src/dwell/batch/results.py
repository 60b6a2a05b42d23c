"""The result of a verb for each message of a batch, in a column."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from dwell.message import U8, Result

#: Result by its code; looking one up costs less than making it from the number.
_RESULTS = {int(result): result for result in Result}
_WORDS = {code: str(result) for code, result in _RESULTS.items()}


def results_of(codes: U8) -> list[Result]:
    """Return the codes of results as results."""
    return [_RESULTS[code] for code in codes.tolist()]


def words_of(codes: U8) -> list[str]:
    """Return the codes of results as words."""
    return [_WORDS[code] for code in codes.tolist()]


class Results(Sequence[Result]):
    """A :class:`Result` for each message, in the order of the call; ``codes`` is the array.

    Equal to any sequence of the same results.
    """

    __slots__ = ("codes",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, codes: U8) -> None:
        self.codes = codes

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> "Results": ...
    def __getitem__(self, index: int | slice) -> "Result | Results":
        if isinstance(index, slice):
            return Results(self.codes[index])
        return Result(int(self.codes[index]))

    def __iter__(self) -> Iterator[Result]:
        return iter(results_of(self.codes))

    def count(self, value: Any) -> int:
        """Return how many messages had this result."""
        return int(np.count_nonzero(self.codes == value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return results_of(self.codes) == list(other)

    def __repr__(self) -> str:
        return f"<Results of {len(self)}: {counts_text(self.codes)}>"


def counts_of(codes: U8) -> Counter[Result]:
    """Return how many messages had which result, in the order of the codes."""
    counts = enumerate(np.bincount(codes).tolist())
    return Counter({Result(code): count for code, count in counts if count})


def counts_text(codes: U8) -> str:
    """Return how many messages had which result, in words."""
    return ", ".join(f"{count} {result}" for result, count in counts_of(codes).items())
