"""Prefixes: the beginnings of names, of which many are looked up at the cost of a few."""

from bisect import bisect_right
from collections.abc import Iterable


class Prefixes:
    """The beginnings of names that somebody asks for, in order.

    A name has a beginning among them only if the last one that is not above it is one: those
    between would begin with it, and such are left out. So a name is compared with one.
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
