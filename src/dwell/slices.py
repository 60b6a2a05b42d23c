"""Slices: many of something as some at a time."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

S = TypeVar("S", bound=Sequence[Any])


def slices(items: S, most: int) -> Iterator[S]:
    """Yield items in their order, at most so many at a time, as what they come in."""
    return (items[at : at + most] for at in range(0, len(items), most))  # type: ignore[misc]


def tuples(items: Sequence[Any], width: int) -> Iterator[tuple[Any, ...]]:
    """Yield items as tuples of so many, of which none may be short."""
    return zip(*[iter(items)] * width, strict=True)
