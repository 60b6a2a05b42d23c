"""Compares the value that was read from a body with the value that was put."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same, even if ``==`` cannot tell.

    Equal values are the same. Unequal values are compared part by part: a NaN is unequal to itself,
    and objects of a class without an ``__eq__`` are equal only to themselves.
    """
    if _equal(one, other):
        return True
    if isinstance(one, datetime) and isinstance(other, datetime):
        return _same_moment(one, other)
    # A tuple in place of a list counts as the same.
    if type(one) is not type(other) and not (_is_row(one) and _is_row(other)):
        return False
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        return _alike(one, other)
    return parts.keys() == others.keys() and all(same(parts[at], others[at]) for at in parts)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        # A comparison may raise any error, or return a value that is neither true nor false.
        return False


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _same_moment(one: datetime, other: datetime) -> bool:
    """Tell whether two datetimes with time zones are the same moment.

    In an hour that a clock repeats, Python compares a datetime as unequal to any of another zone.
    """
    if one.utcoffset() is None or other.utcoffset() is None:
        return False
    return one.astimezone(UTC) == other.astimezone(UTC)


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a value; None if it has none."""
    if isinstance(value, dict):
        return value
    if _is_row(value):
        return dict(enumerate(value))
    kind = type(value)
    for names in ("__pydantic_fields__", "__dataclass_fields__", "__struct_fields__"):
        if (fields := getattr(kind, names, None)) is not None:
            return _fields(value, fields)
    # The behaviour of a function cannot be compared, so it is the same only as itself.
    if _is_compared(kind) or callable(value) or not hasattr(value, "__dict__"):
        return None
    return dict(vars(value))


def _fields(value: Any, names: Iterable[str]) -> dict[str, Any]:
    # Attributes that a model stores in addition to its fields are part of its value, too.
    beside = ("__pydantic_extra__", "__pydantic_private__")
    return {name: getattr(value, name, None) for name in (*names, *beside)}


def _alike(one: Any, other: Any) -> bool:
    """Tell whether two pieces of one class are unequal only because nothing equals them."""
    if not _is_compared(type(one)):
        return not callable(one)
    return not _equal(one, one) and not _equal(other, other)


def _is_compared(kind: type[Any]) -> bool:
    own: object = kind.__eq__
    return own is not object.__eq__
