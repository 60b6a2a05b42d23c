"""Prefixes: finds whether names begin with any of many prefixes, at the cost of a few."""

from bisect import bisect_right
from collections.abc import Iterable


class Prefixes:
    """The beginnings of names that somebody asks for, in order.

    A name begins with any of them only if it begins with the last prefix that is not above it:
    prefixes between the two would begin with the shorter one, and are left out. So a name is
    compared with a single prefix.
    """

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._kept: list[str] = []
        for prefix in sorted(prefixes):
            if not self._kept or not prefix.startswith(self._kept[-1]):
                self._kept.append(prefix)

    def cover(self, name: str) -> bool:
        """Tell whether a name begins with one of them."""
        at = bisect_right(self._kept, name)
        return at > 0 and name.startswith(self._kept[at - 1])
