"""Spans of time in requests: each is either a text or seconds, or in milliseconds."""

from dwell.errors import InvalidInput
from dwell.given.values import Delay, Millis
from dwell.wire.rows import span_of


def span(ask: object, name: str) -> Delay | None:
    """Return the field ``name`` or ``name_ms`` of a request; None if it has neither."""
    said: str | int | float | None = getattr(ask, name)
    ms: int | None = getattr(ask, f"{name}_ms")
    if ms is None:
        return span_of(said)
    if said is not None:
        raise InvalidInput(f"{name}: got {name} and {name}_ms together, expected one of them")
    return Millis(ms)
