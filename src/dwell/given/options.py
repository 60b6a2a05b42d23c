"""The options of a put in addition to the bodies: the keywords of every API that puts."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from dwell.given.values import Delay, Due
from dwell.message import I64


class OutboxOptions(TypedDict, total=False):
    """The options of one message if the settings of its topic are not known."""

    delay: Delay | None
    due: Due | None
    id: str | None
    priority: int
    lease: Delay | None
    max_attempts: int | None
    expires: Due | None
    ttl: Delay | None
    key: str | None
    headers: Mapping[str, str] | None


class PutOptions(OutboxOptions, total=False):
    """The options of one message."""

    delay_level: int | None


class OutboxManyOptions(TypedDict, total=False):
    """The same of many messages: one value for all, or one for each."""

    delay: Delay | Sequence[Delay | None] | I64 | None
    due: Due | Sequence[Due | None] | I64 | None
    ids: Sequence[str] | None
    priority: int | Sequence[int] | I64
    lease: Delay | Sequence[Delay | None] | None
    max_attempts: int | Sequence[int | None] | None
    expires: Due | Sequence[Due | None] | I64 | None
    ttl: Delay | Sequence[Delay | None] | None
    key: str | Sequence[str | None] | None
    headers: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None


class PutManyOptions(OutboxManyOptions, total=False):
    """The same, and delay levels."""

    delay_level: int | Sequence[int] | None


#: The columns that a table of puts may have besides ``body``, with the keyword of put_many of each.
WORD_COLUMNS = {name: name for name in PutManyOptions.__annotations__ if name != "ids"} | {
    "id": "ids",
    "due_ms": "due",
    "expires_ms": "expires",
}
#: Those that are spans in milliseconds.
MS_COLUMNS = {"delay_ms": "delay", "lease_ms": "lease", "ttl_ms": "ttl"}
TABLE_COLUMNS = ("body", *WORD_COLUMNS, *MS_COLUMNS)


def refuse_unknown(options: Mapping[str, Any], kind: type, verb: str) -> None:
    """Raise TypeError for a keyword that a verb does not have."""
    if unknown := options.keys() - kind.__annotations__.keys():
        words = ", ".join(kind.__annotations__)
        raise TypeError(f"{verb}() got the keyword {min(unknown)!r}, expected some of {words}")
