"""Schemas: which columns a class has, as its annotations say."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, get_type_hints

import numpy as np

from dwell.message import I64, U8, U16, U32, U64

#: The type of the values of an array, as its annotation is written; what is inside of NumPy's own
#: annotations is another thing in each of its releases.
_TYPES: Mapping[object, type[np.generic]] = {
    U8: np.uint8,
    U16: np.uint16,
    U32: np.uint32,
    U64: np.uint64,
    I64: np.int64,
}


def arrays_of(kind: type[Any]) -> dict[str, type[np.generic]]:
    """Return the columns of a class that are arrays, by name, and the type of their values.

    A column that may be None is left out.
    """
    hints = get_type_hints(kind)
    return {name: _TYPES[hint] for name, hint in hints.items() if hint in _TYPES}


def sequences_of(kind: type[Any]) -> list[str]:
    """Return the names of the columns of a class that are sequences of texts or blobs."""
    hints = get_type_hints(kind)
    return [name for name, hint in hints.items() if hint in (Sequence[str], Sequence[bytes])]


def arrays_from(
    things: Sequence[Any],
    kinds: Mapping[str, type[np.generic]],
    value: Callable[[Any, str], Any] = getattr,
) -> dict[str, Any]:
    """Return an array for each column; ``value`` returns the value of a thing in a column."""
    return {
        name: np.array([value(thing, name) for thing in things], kind)
        for name, kind in kinds.items()
    }


def joined_columns(parts: Sequence[object], names: Iterable[str]) -> dict[str, Any]:
    """Return the columns of all parts, one behind the other, by their names."""
    joined: dict[str, Any] = {}
    for name in names:
        many = [getattr(part, name) for part in parts]
        is_array = isinstance(many[0], np.ndarray)
        joined[name] = np.concatenate(many) if is_array else list(chain.from_iterable(many))
    return joined
