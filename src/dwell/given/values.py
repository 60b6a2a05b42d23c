"""Checks the arguments of callers and converts them for stores. Pure: nothing is written here.

Each function takes one value and the name of its field, and raises the error class of that field.
An error text has the form "field: got VALUE, expected ALLOWED".
"""

import math
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import msgspec
import numpy as np

from dwell.batch.page import Cursor
from dwell.batch.sweep import Wanted
from dwell.errors import (
    InvalidAttempts,
    InvalidBody,
    InvalidHeaders,
    InvalidId,
    InvalidInput,
    InvalidKey,
    InvalidLimit,
    InvalidPriority,
    InvalidQuery,
    InvalidSettings,
    InvalidTime,
    InvalidTopic,
)
from dwell.message import (
    DEFAULT_PRIORITY,
    MAX_ATTEMPTS,
    MAX_BATCH_MESSAGES,
    MAX_BODY_BYTES,
    MAX_DELAY_MS,
    MAX_ERROR_CHARS,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_ID_BYTES,
    MAX_KEY_BYTES,
    MAX_LEASE_MS,
    MAX_PRIORITY,
    MAX_QUERY_CHARS,
    MAX_RATE,
    MAX_TOPIC_CHARS,
    MIN_RATE,
    QUEUE_ID_MARK,
    State,
    TopicSettings,
)


class Millis(msgspec.Struct, frozen=True):
    """A span in whole milliseconds, as ports have it; in an error it is shown as "250ms"."""

    ms: int


#: A span of time: "30m", "1h30m", "250ms", seconds as a number, or a timedelta, also NumPy's.
Delay: TypeAlias = str | int | float | timedelta | np.timedelta64 | Millis

#: A point in time: epoch milliseconds, a datetime that knows its zone, or either as text.
Due: TypeAlias = int | datetime | str

CONFLICTS = ("keep", "replace", "error")

# URLs resolve "." and ".." as path segments, also when they are escaped.
_TOPIC = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9._:-]{{1,{MAX_TOPIC_CHARS}}}")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
#: The units of NumPy's spans: the milliseconds of a unit, or the units of a millisecond.
_NUMPY_UNITS_MS = {unit: _UNITS_MS[unit.lower()] for unit in ("ms", "s", "m", "h", "D", "W")}
_NUMPY_PARTS = {"us": 10**3, "ns": 10**6, "ps": 10**9, "fs": 10**12, "as": 10**15}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_SPAN = re.compile(rf"(?:{_PART.pattern})+")
_RATE = re.compile(rf"(?P<count>[0-9]{{1,10}})/(?P<span>{_SPAN.pattern}|ms|[smhdw])")
_SPAN_FORMS = '"30m", "1h30m", "250ms", seconds as a number, or a timedelta'
_DUE_FORMS = (
    "ISO 8601 with a zone, such as 2030-01-31T09:00:00Z, epoch milliseconds, "
    "or a datetime that knows its zone"
)
# Bounded, as Python does not read numbers of thousands of digits.
_MILLISECONDS = re.compile(r"[0-9]{1,18}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
#: As seconds these are 2001 to 2286, as milliseconds a few weeks of 1970: the latter is a mistake.
SECONDS = range(10**9, 10**10)
_MAX_SPAN_CHARS = 64
_WHOLE = (int, np.integer)
_MARK = QUEUE_ID_MARK.encode()
_COLLECTIONS = (list, tuple, set, frozenset)
#: Any time that 64 bits can say, also before 1970: it is only compared.
_TIMES_MS = (-(2**63), 2**63 - 1)

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 60


def refusal(error: type[InvalidInput], field: str, value: object, allowed: str) -> InvalidInput:
    """Return the error that names the field, the value and the allowed values."""
    if isinstance(value, Millis):
        value = f"{value.ms}ms"
    return error(f"{field}: got {type(value).__name__} {shown(value)}, expected {allowed}")


def shown(value: object) -> str:
    """Return the beginning of a value's repr."""
    try:
        return _repr.repr(value)
    except ValueError:
        # Python writes no whole number of more than some thousand digits.
        return "with too many digits to show"


def is_whole(value: object) -> TypeGuard[int]:
    """Tell whether a value is a whole number, Python's or NumPy's."""
    if type(value) is int:
        return True
    # To NumPy a span is a whole number, too: of units that only the span knows.
    return isinstance(value, _WHOLE) and not isinstance(value, bool | np.timedelta64)


# --- names and texts --------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _is_topic(text: str) -> bool:
    return _TOPIC.fullmatch(text) is not None


def topic(value: object, field: str = "topic") -> str:
    """Return a topic's name unchanged; raises InvalidTopic."""
    if isinstance(value, str) and len(value) <= MAX_TOPIC_CHARS and _is_topic(value):
        return value
    allowed = f"1-{MAX_TOPIC_CHARS} characters of A-Z a-z 0-9 . _ : -, and not . or .."
    raise refusal(InvalidTopic, field, value, allowed)


def topics(value: object) -> tuple[str, ...]:
    """Return one or many topics as a tuple without repetitions, in their order."""
    if isinstance(value, str):
        return (topic(value),)
    if not isinstance(value, _COLLECTIONS) or not value:
        raise refusal(InvalidTopic, "topics", value, "a topic or a sequence of one or more")
    return tuple(dict.fromkeys(map(topic, value)))


def folder(value: object, field: str) -> Path:
    """Return a folder's path; raises InvalidInput."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise refusal(InvalidInput, field, value, "the path of a folder")
    return Path(path)


def _utf8(value: object, most: int) -> bytes | None:
    """Return a text of 1 to ``most`` bytes as UTF-8, or None when it is not one."""
    if not isinstance(value, str):
        return None
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return None
    return data if 0 < len(data) <= most else None


def any_id(value: object, field: str = "id") -> bytes:
    """Return an id of the caller's or of the queue's as UTF-8; raises InvalidId."""
    data = _utf8(value, MAX_ID_BYTES)
    if data is None:
        raise refusal(InvalidId, field, value, f"text of 1-{MAX_ID_BYTES} bytes of UTF-8")
    return data


def own_id(value: object, field: str = "id") -> bytes:
    """Return an id that the caller chose as UTF-8; the form of the queue's ids is refused."""
    data = any_id(value, field)
    if data.startswith(_MARK):
        allowed = f'an id that does not start with "{QUEUE_ID_MARK}", the mark of the queue\'s own'
        raise refusal(InvalidId, field, value, allowed)
    return data


def owner(value: object) -> str:
    """Return an owner's name; it may be empty, for no owner in particular."""
    if isinstance(value, str) and (not value or _utf8(value, MAX_ID_BYTES) is not None):
        return str(value)
    raise refusal(InvalidId, "owner", value, f"text of at most {MAX_ID_BYTES} bytes of UTF-8")


def key(value: object, field: str = "key") -> str | None:
    """Return an order key, or None; raises InvalidKey."""
    if value is None or _utf8(value, MAX_KEY_BYTES) is not None:
        return value  # type: ignore[return-value]
    raise refusal(InvalidKey, field, value, f"text of 1-{MAX_KEY_BYTES} bytes of UTF-8")


def headers(value: object, field: str = "headers") -> dict[str, str] | None:
    """Return headers as a dict, or None; raises InvalidHeaders."""
    if value is None:
        return None
    allowed = f"a mapping of text to text, at most {MAX_HEADERS} of {MAX_HEADERS_BYTES} bytes"
    if not isinstance(value, Mapping):
        raise refusal(InvalidHeaders, field, value, allowed)
    if len(value) > MAX_HEADERS:
        raise InvalidHeaders(f"{field}: got {len(value)} headers, expected {allowed}")
    try:
        size = len("".join(value).encode()) + len("".join(value.values()).encode())
    except (TypeError, UnicodeEncodeError):
        raise refusal(InvalidHeaders, field, value, allowed) from None
    if size > MAX_HEADERS_BYTES:
        raise InvalidHeaders(f"{field}: got {size} bytes, expected {allowed}")
    return dict(value)


def body(value: object, field: str = "body") -> bytes:
    """Return a body as bytes: text as UTF-8, other values as JSON."""
    data = value if type(value) is bytes else _encoded(value, field)
    if len(data) > MAX_BODY_BYTES:
        raise InvalidBody(f"{field}: got {len(data)} bytes, expected at most {MAX_BODY_BYTES}")
    return data


def _encoded(value: object, field: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        data = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        # Numbers that JSON has no word for are written as null.
        if b"null" in data and not isinstance(value, str) and not _is_finite(value):
            raise ValueError("nan and infinite numbers are not part of JSON")
        return data
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        allowed = f"bytes, text, or what JSON can say ({error})"
        raise refusal(InvalidBody, field, value, allowed) from None


def _is_finite(value: object) -> bool:
    """Tell whether all numbers in a value of JSON are finite."""
    todo = [msgspec.to_builtins(value)]
    while todo:
        one = todo.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return False
        if isinstance(one, dict):
            todo += one.keys()
            todo += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            todo += one
    return True


def error_text(value: object, field: str = "error") -> str | None:
    """Return why something failed, cut to the kept length; None for None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise refusal(InvalidInput, field, value, "text, or None")
    # Characters that are not valid text are written as escapes, which count.
    text = value[:MAX_ERROR_CHARS].encode("utf-8", "backslashreplace").decode()
    return text[:MAX_ERROR_CHARS]


def flag(value: object, field: str) -> bool:
    """Return a flag; raises InvalidInput for a value other than True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise refusal(InvalidInput, field, value, "True or False")


def where(value: object) -> str:
    """Return a predicate unchanged; this does not check whether it can be evaluated."""
    if isinstance(value, str) and 0 < len(value) <= MAX_QUERY_CHARS:
        return value
    allowed = f"an expression of JMESPath of 1-{MAX_QUERY_CHARS} characters"
    raise refusal(InvalidQuery, "where", value, allowed)


# --- times ------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _span_ms(text: str) -> int | None:
    if not _SPAN.fullmatch(text):
        return None
    return round(sum(float(count) * _UNITS_MS[unit] for count, unit in _PART.findall(text)))


def _numpy_ms(value: np.timedelta64) -> int | None:
    """Return a span of NumPy's; None for NaT, or if it is in years, months or no unit at all."""
    unit, count = np.datetime_data(value.dtype)
    if np.isnat(value) or (unit not in _NUMPY_UNITS_MS and unit not in _NUMPY_PARTS):
        return None
    parts = int(value.astype(np.int64)) * count * _NUMPY_UNITS_MS.get(unit, 1)
    return -(-parts // _NUMPY_PARTS.get(unit, 1))


def delay_ms(value: object, field: str = "delay", most_ms: int = MAX_DELAY_MS) -> int:
    """Return a span in milliseconds; raises InvalidTime when it is negative or too long.

    Parts of a millisecond are rounded; a timedelta's are rounded up, so that nothing is early.
    """
    ms: int | None = None
    if isinstance(value, str):
        # The parser caches texts, so a long one is not parsed.
        ms = _span_ms(value) if len(value) <= _MAX_SPAN_CHARS else None
    elif isinstance(value, Millis):
        ms = value.ms
    elif isinstance(value, timedelta):
        # The negative of the longest one overflows.
        ms = -(value // -_MILLISECOND)
    elif isinstance(value, np.timedelta64):
        ms = _numpy_ms(value)
    elif is_whole(value):
        ms = int(value) * 1000
    elif isinstance(value, float | np.floating) and isfinite(scaled := float(value) * 1000):
        ms = round(scaled)
    if ms is None or ms < 0:
        raise refusal(InvalidTime, field, value, f"{_SPAN_FORMS}, not negative")
    if ms > most_ms:
        raise refusal(InvalidTime, field, value, f"at most {most_ms} ms")
    return ms


def positive_ms(value: object, field: str) -> int:
    """Return a span above 0 in milliseconds; raises InvalidTime."""
    ms = delay_ms(value, field)
    if ms < 1:
        raise refusal(InvalidTime, field, value, "a span above 0")
    return ms


def _moment(text: str) -> datetime | int | None:
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def due_ms(value: object, now_ms: int, field: str = "due") -> int:
    """Return a point in time as epoch milliseconds; raises InvalidTime."""
    moment = _moment(value) if isinstance(value, str) else value
    if isinstance(moment, datetime) and moment.utcoffset() is not None:
        ms = -(-(moment - _EPOCH) // _MILLISECOND)
    elif is_whole(moment):
        ms = int(moment)
    else:
        raise refusal(InvalidTime, field, value, _DUE_FORMS)
    if not 0 <= ms <= now_ms + MAX_DELAY_MS:
        allowed = f"a time from 1970 to {MAX_DELAY_MS} ms from now"
        raise refusal(InvalidTime, field, value, allowed)
    if ms in SECONDS and now_ms > SECONDS.stop and not isinstance(moment, datetime):
        raise refusal(InvalidTime, field, value, f"milliseconds: those are seconds, so {ms}000")
    return ms


def expires_ms(value: object, now_ms: int, field: str = "expires") -> int:
    """Return when a message expires as epoch milliseconds; raises InvalidTime.

    Stores say with 0 that a message never does, so 1970 itself is no such time.
    """
    ms = due_ms(value, now_ms, field)
    if ms == 0:
        raise refusal(InvalidTime, field, value, "a time after 1970 began; none for never")
    return ms


def level_ms(value: object, levels_ms: Sequence[int], field: str = "delay_level") -> int:
    """Return the delay that a level, counted from 1, means on a topic; raises InvalidTime."""
    if not is_whole(value) or not 1 <= value <= len(levels_ms):
        raise refusal(InvalidTime, field, value, f"a level from 1 to {len(levels_ms)}")
    return levels_ms[int(value) - 1]


def lease_ms(value: object, field: str = "lease") -> int:
    """Return a lease in milliseconds; None is 0, the topic's own. Raises InvalidTime."""
    if value is None:
        return 0
    ms = delay_ms(value, field, MAX_LEASE_MS)
    if ms == 0:
        raise refusal(InvalidTime, field, value, "a lease of 1 ms or more")
    return ms


# --- numbers ----------------------------------------------------------------------------------


def whole(
    value: object, low: int, high: int, field: str, error: type[InvalidInput], what: str
) -> int:
    """Return a whole number within bounds; raises an error that names the expected value."""
    if (type(value) is int or is_whole(value)) and low <= value <= high:
        return int(value)
    raise refusal(error, field, value, f"{what} from {low} to {high}")


def priority(value: object, field: str = "priority") -> int:
    """Return a priority (lower is taken first); None is the default. Raises InvalidPriority."""
    # Nearly every put says the default.
    if value is None or (type(value) is int and value == DEFAULT_PRIORITY):
        return DEFAULT_PRIORITY
    return whole(value, 0, MAX_PRIORITY, field, InvalidPriority, "a whole number")


def max_attempts(value: object, field: str = "max_attempts") -> int:
    """Return how often a message may be taken; None is 0, the topic's own."""
    if value is None:
        return 0
    return whole(value, 1, MAX_ATTEMPTS, field, InvalidAttempts, "a whole number")


def limit(value: object, field: str = "limit") -> int:
    """Return how many messages are asked for at most; raises InvalidLimit."""
    return whole(value, 1, MAX_BATCH_MESSAGES, field, InvalidLimit, "a whole number")


def position(value: object, field: str = "position") -> int:
    """Return a position in the events, or a place; raises InvalidLimit."""
    return whole(value, 0, 2**63 - 1, field, InvalidLimit, "a whole number")


# --- words ------------------------------------------------------------------------------------


def conflict(value: object) -> str:
    """Return what a put does if the id exists; raises InvalidInput."""
    if isinstance(value, str) and value in CONFLICTS:
        return str(value)
    raise refusal(InvalidInput, "on_conflict", value, "keep, replace or error")


def state(value: object) -> State:
    """Return a state that messages can be listed by, given as State or as its name."""
    allowed = "delayed, ready, leased or dead"
    try:
        found = State[value.upper()] if isinstance(value, str) else State(value)  # type: ignore[arg-type]
    except (KeyError, ValueError):
        raise refusal(InvalidInput, "state", value, allowed) from None
    if found is State.GONE:
        raise refusal(InvalidInput, "state", value, allowed)
    return found


# --- reading ----------------------------------------------------------------------------------


def cursor(value: object) -> Cursor | None:
    """Return the cursor of a scan, or None for its beginning; raises InvalidLimit."""
    if value is None:
        return None
    if not isinstance(value, Cursor):
        raise refusal(InvalidLimit, "cursor", value, "the cursor of a page")
    whole(value.due_ms, *_TIMES_MS, "cursor.due_ms", InvalidLimit, "a whole number")
    position(value.arrival, "cursor.arrival")
    return value


def wanted(value: object) -> Wanted:
    """Return which messages a sweep is to give; raises InvalidInput."""
    if not isinstance(value, Wanted):
        raise refusal(InvalidInput, "wanted", value, "a Wanted")
    if not isinstance(value.states, _COLLECTIONS):
        raise refusal(InvalidInput, "states", value.states, "a sequence of states")
    if value.key is not None and not isinstance(value.key, str):
        raise refusal(InvalidKey, "key", value.key, "text, or None")
    for name in ("due_from_ms", "due_to_ms"):
        whole(getattr(value, name), *_TIMES_MS, name, InvalidTime, "a whole number")
    is_any = isinstance(value.topics, _COLLECTIONS) and not value.topics
    return msgspec.structs.replace(
        value,
        topics=() if is_any else topics(value.topics),
        states=tuple(map(state, value.states)),
    )


# --- topic settings ---------------------------------------------------------------------------

#: The whole numbers that each setting allows; for a list, the limits of each item.
_SETTING_RANGES = {
    "lease_ms": (1, MAX_LEASE_MS),
    "max_attempts": (1, MAX_ATTEMPTS),
    "retry_delays_ms": (0, MAX_DELAY_MS),
    "remember_ms": (0, MAX_DELAY_MS),
    "max_pending": (0, 2**63 - 1),
    "delay_levels_ms": (0, MAX_DELAY_MS),
    "most_leased": (0, 2**63 - 1),
    "keep_dead_ms": (0, MAX_DELAY_MS),
}
_MAX_LEVELS = 32


def setting_changes(changes: Mapping[str, object]) -> dict[str, Any]:
    """Return changes of a topic's settings as TopicSettings has them; raises InvalidSettings."""
    changes = {name: _setting(name, value) for name, value in changes.items()}
    for name, value in changes.items():
        _check_setting(name, value)
    try:
        settings = msgspec.convert(changes, TopicSettings)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"settings: {error}") from None
    return {name: getattr(settings, name) for name in changes}


def rate(value: object, field: str = "rate") -> int | float:
    """Return a rate in messages a second, 0 for none; raises InvalidSettings.

    A text is a number of messages and a span: "100/m", "1/5s".
    """
    allowed = f'0, {MIN_RATE:.7f} to {MAX_RATE} a second, or text such as "100/m" or "1/5s"'
    found = value
    parts = None
    if isinstance(value, str) and len(value) <= _MAX_SPAN_CHARS:
        parts = _RATE.fullmatch(value)
    if parts is not None:
        span = parts["span"]
        span_ms = _span_ms(span if span[0].isdigit() else f"1{span}")
        found = int(parts["count"]) * 1000 / span_ms if span_ms else None
    if isinstance(found, bool | np.bool_) or not isinstance(found, int | float | np.number):
        raise refusal(InvalidSettings, field, value, allowed)
    if found != 0 and not MIN_RATE <= found <= MAX_RATE:
        raise refusal(InvalidSettings, field, value, allowed)
    number = float(found)
    return int(number) if number.is_integer() else number


def _setting(name: str, value: Any) -> Any:
    """Return a setting with its spans in milliseconds; a number is of milliseconds already."""
    if name == "rate":
        return rate(value)
    if isinstance(value, list | tuple):
        return [_setting(name, item) for item in value]
    if not name.endswith("_ms") or not isinstance(value, str | timedelta | np.timedelta64):
        return value
    try:
        return delay_ms(value, name)
    except InvalidTime as error:
        raise InvalidSettings(str(error)) from None


def _check_setting(name: str, value: Any) -> None:
    if name not in TopicSettings.__struct_fields__:
        names = ", ".join(sorted(TopicSettings.__struct_fields__))
        raise InvalidSettings(f"settings: got {name!r:.60}, expected one of {names}")
    if name in _SETTING_RANGES:
        items = value if isinstance(value, list | tuple) else [value]
        if len(items) > _MAX_LEVELS:
            raise InvalidSettings(
                f"{name}: got {len(items)} values, expected {_MAX_LEVELS} or fewer"
            )
        for item in items:
            whole(item, *_SETTING_RANGES[name], name, InvalidSettings, "a whole number")
    if name == "on_full" and not (isinstance(value, str) and value in ("refuse", "drop")):
        raise refusal(InvalidSettings, name, value, "refuse or drop")
