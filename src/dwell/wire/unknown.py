"""Explains why a received object is not valid; an unknown field lists the known fields."""

import re
from typing import Any

import msgspec
from msgspec import inspect

_UNKNOWN = re.compile(r"contains unknown field `[^`]*`(?: - at `\$(?P<path>[^`]*)`)?")
_MOST_CHARS = 1000
_STEP = re.compile(r"\[[^\]]*\]|\.([^.\[]+)")


def explained(error: Exception, kind: Any) -> str:
    """Return the message of a msgspec error for a value that should have been of a type.

    For an unknown field it lists the known fields.
    """
    told = str(error)
    if len(told) > _MOST_CHARS:
        # The name of a field may be megabytes; its place is at the end.
        told = f"{told[: _MOST_CHARS // 2]} ... {told[-_MOST_CHARS // 2 :]}"
    found = _UNKNOWN.search(told)
    if found is None or not isinstance(error, msgspec.ValidationError):
        return told
    at = [inspect.type_info(kind)]
    for step in _STEP.finditer(found["path"] or ""):
        at = [into for one in at for into in _inside(one, step[1])]
    known = {field.encode_name for one in _structs(at) for field in one.fields}
    return f"{told}, expected {', '.join(sorted(known))}" if known else told


def _inside(one: inspect.Type, name: str | None) -> list[inspect.Type]:
    """Return the types of a type's field, or of a list's items."""
    found: list[inspect.Type] = []
    for part in one.types if isinstance(one, inspect.UnionType) else (one,):
        if name is None and isinstance(part, inspect.ListType | inspect.VarTupleType):
            found.append(part.item_type)
        elif isinstance(part, inspect.StructType):
            found += [field.type for field in part.fields if field.encode_name == name]
    return found


def _structs(many: list[inspect.Type]) -> list[inspect.StructType]:
    parts = [
        p for one in many for p in (one.types if isinstance(one, inspect.UnionType) else [one])
    ]
    return [part for part in parts if isinstance(part, inspect.StructType)]
