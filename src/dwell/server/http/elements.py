"""Elements: how many a request may have at most, counted before any of them is made.

The length of a list in JSON shows when it has been read, and a value takes more memory than the
bytes that it is written in. MessagePack says the length first.
"""

from functools import cache
from typing import Any

import numpy as np
from msgspec import inspect

from dwell.errors import BatchTooLarge
from dwell.message import MAX_HEADERS
from dwell.server.http.body import Data

#: Bodies up to this size are not scanned.
_SHORT_BYTES = 64 * 1024
#: How much is scanned at a time.
_PIECE_BYTES = 256 * 1024


def check(data: Data, kind: Any) -> None:
    """Refuse a body in JSON with more elements than its kind may have; raises BatchTooLarge."""
    if len(data) <= _SHORT_BYTES:
        return
    most = most_elements(kind)
    # Texts may contain commas, so too many commas only mean that the body must be scanned.
    if most is None or _commas(data) <= most:
        return
    is_text, count, rest = False, 0, b""
    for at in range(0, len(data), _PIECE_BYTES):
        piece = rest + bytes(data[at : at + _PIECE_BYTES])
        # A sign that follows a backslash says nothing, wherever the piece was cut.
        rest = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        signs = np.frombuffer(plain, np.uint8)
        inside = np.logical_xor.accumulate(np.concatenate(([is_text], signs == ord('"'))))
        count += int(((signs == ord(",")) & ~inside[1:]).sum())
        is_text = bool(inside[-1])
        if count > most:
            raise BatchTooLarge(f"body: got more than {most} values, expected fewer")


def _commas(data: Data) -> int:
    pieces = range(0, len(data), _PIECE_BYTES)
    return sum(data[at : at + _PIECE_BYTES].count(b",") for at in pieces)


@cache
def most_elements(kind: Any) -> int | None:
    """Return how many fields, and elements of lists and maps, a kind may have; None: no bound."""
    return _most(inspect.type_info(kind))


def _most(kind: inspect.Type) -> int | None:
    if isinstance(kind, inspect.Metadata):
        return _most(kind.type)
    if isinstance(kind, inspect.StructType):
        return _sum(len(kind.fields), *(_most(field.type) for field in kind.fields))
    if isinstance(kind, inspect.UnionType):
        return _sum(*map(_most, kind.types))
    if isinstance(kind, inspect.ListType):
        most, each = kind.max_length, _most(kind.item_type)
        return None if most is None or each is None else most * (1 + each)
    if isinstance(kind, inspect.DictType):
        # The dicts of a request are headers, which are counted where they are decoded.
        return MAX_HEADERS
    return None if isinstance(kind, inspect.RawType | inspect.AnyType) else 0


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
