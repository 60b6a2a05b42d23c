"""Checks the selections of callers, and the changes of the selected messages."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from dwell.batch.selection import ALL, Selection
from dwell.errors import InvalidAttempts, InvalidInput, InvalidLimit, InvalidTime
from dwell.given import values
from dwell.given.values import Delay, Due, refusal
from dwell.message import MAX_CHANGE_MESSAGES, MAX_DELAY_MS, MAX_ERROR_CHARS, State

_LATEST_MS = ALL.due_to_ms
_MOST_ATTEMPTS = ALL.attempt_to


def select(
    where: str | None = None,
    *,
    state: State | str | Sequence[State | str] | None = None,
    due_from: Due | None = None,
    due_to: Due | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    error: str | None = None,
    attempt_from: int | None = None,
    attempt_to: int | None = None,
) -> Selection:
    """Select messages of a topic that meet all given conditions. Raises InvalidInput.

    ``where`` is a JMESPath expression over the body, ``state`` a state or several, ``headers`` some
    of the message's headers, ``error`` a part of its last error. ``due_from`` and ``attempt_from``
    are included, ``due_to`` and ``attempt_to`` are excluded.
    """
    given = Selection(
        states=None if state is None else states(state),
        due_from_ms=0 if due_from is None else _moment_ms(due_from, "due_from"),
        due_to_ms=_LATEST_MS if due_to is None else _moment_ms(due_to, "due_to"),
        key=key,
        headers={} if headers is None else headers,  # type: ignore[arg-type]
        error=error,
        attempt_from=0 if attempt_from is None else attempt_from,
        attempt_to=_MOST_ATTEMPTS if attempt_to is None else attempt_to,
        where=where,
    )
    return _checked(given, "")


def selection(value: object) -> Selection:
    """Return a selection, which an expression over the body is too; raises InvalidInput."""
    if isinstance(value, Selection):
        return _checked(value, "_ms")
    return Selection(where=values.where(value))


def _checked(given: Selection, unit: str) -> Selection:
    """Return a selection that is in order; ``unit`` ends the names that its dues came by."""
    for name in ("due_from", "due_to"):
        due_ms = getattr(given, f"{name}_ms")
        values.whole(due_ms, 0, _LATEST_MS, f"{name}{unit}", InvalidTime, "a whole number")
    if given.due_from_ms > given.due_to_ms:
        allowed = f"a time that is not before due_from{unit}, {given.due_from_ms}"
        raise refusal(InvalidTime, f"due_to{unit}", given.due_to_ms, allowed)
    for name in ("attempt_from", "attempt_to"):
        value = getattr(given, name)
        values.whole(value, 0, _MOST_ATTEMPTS, name, InvalidAttempts, "a whole number")
    if given.attempt_from > given.attempt_to:
        allowed = f"a number that is not below attempt_from, {given.attempt_from}"
        raise refusal(InvalidAttempts, "attempt_to", given.attempt_to, allowed)
    return msgspec.structs.replace(
        given,
        states=None if given.states is None else states(given.states),
        key=values.key(given.key),
        headers=values.headers(given.headers) or {},
        error=None if given.error is None else _part_of_error(given.error),
        where=None if given.where is None else values.where(given.where),
    )


def _moment_ms(value: object, field: str) -> int:
    # The limit covers any due that a message may get later, not only the dues of a put.
    return values.due_ms(value, _LATEST_MS - MAX_DELAY_MS, field)


def _part_of_error(value: object) -> str:
    if isinstance(value, str) and 0 < len(value) <= MAX_ERROR_CHARS:
        return value
    raise refusal(InvalidInput, "error", value, f"text of 1-{MAX_ERROR_CHARS} characters")


def states(value: object) -> tuple[State, ...]:
    """Return one or many states that messages can be listed by; raises InvalidInput."""
    if not isinstance(value, list | tuple | set | frozenset):
        return (values.state(value),)
    if not value:
        raise refusal(InvalidInput, "state", value, "one or more of delayed, ready, leased, dead")
    return tuple(dict.fromkeys(map(values.state, value)))


def narrowed(which: Selection, state: object, default: Sequence[State]) -> Selection:
    """Return a selection with the states that a verb covers; raises InvalidInput.

    The states are the separate argument ``state``, the selection's own, or the ``default``.
    """
    if state is not None and which.states is not None:
        raise refusal(InvalidInput, "state", state, "none beside a selection that names its own")
    own = which.states or tuple(default)
    return msgspec.structs.replace(which, states=own if state is None else states(state))


def only_ready(which: Selection) -> Selection:
    """Return a selection of ready messages, as only these can be taken; raises InvalidInput."""
    if which.states is not None and which.states != (State.READY,):
        names = ", ".join(map(str, which.states))
        raise refusal(InvalidInput, "state", names, "ready, as no other can be taken")
    return which


def change_limit(value: object) -> int:
    """Return how many messages a verb changes at most; raises InvalidLimit."""
    return values.whole(value, 1, MAX_CHANGE_MESSAGES, "limit", InvalidLimit, "a whole number")


def pace(value: object) -> int | None:
    """Return how many messages fall due in a second, or None for all at once."""
    if value is None:
        return None
    return values.whole(value, 1, MAX_CHANGE_MESSAGES, "pace", InvalidLimit, "a whole number")


def shift_ms(value: Delay) -> int:
    """Return a span that may lead back, in milliseconds; raises InvalidTime."""
    given, sign = value, 1
    if isinstance(given, str) and given.startswith("-"):
        given, sign = given[1:], -1
    elif isinstance(given, int | float | timedelta) and given < type(given)(0):  # type: ignore[operator]
        given, sign = -given, -1
    try:
        return sign * values.delay_ms(given, "shift")
    except InvalidTime:
        allowed = f'"1h30m", "-30m", seconds or a timedelta, at most {MAX_DELAY_MS} ms'
        raise refusal(InvalidTime, "shift", value, allowed) from None
