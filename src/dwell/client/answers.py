"""Decodes the answers of a server; an answer that is not Dwell's raises a StoreError."""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from dwell.batch.page import Page
from dwell.batch.stats import Holder, Stale, TopicStats
from dwell.errors import DwellError, StoreError
from dwell.message import U8
from dwell.wire import columns
from dwell.wire.columns import BatchColumns, page_of_columns

#: How the detail of an error begins that an answer is.
STRANGE = "got an answer that no Dwell server gives"


class Ended(msgspec.Struct):
    """Whether a take of that name was waiting."""

    ended: bool


class StoreAnswer(msgspec.Struct):
    """Which store the server has, and what it can."""

    number: int
    keeps_calls: bool = False
    keeps_results: bool = False
    parts_ids: bool = False


class OutcomeAnswer(msgspec.Struct):
    """The outcome of a message."""

    state: str
    result: bytes | None = None
    error: str | None = None


class Cleared(msgspec.Struct):
    """How many messages were cancelled, and whether those were all."""

    cancelled: int
    is_complete: bool


class Bulk(msgspec.Struct):
    """How many messages matched and had which result, and the cursor of further messages."""

    matched: int
    results: dict[str, int]
    cursor: str | None


class Sizes(msgspec.Struct):
    """The counts of a topic, for each shard."""

    shards: list[TopicStats]


class StaleAnswer(msgspec.Struct):
    """The counts that only part of the store has."""

    stale: list[Stale]


class Words(msgspec.Struct):
    """A result for each message."""

    results: list[str]


class Taken(msgspec.Struct):
    """The topic of each receipt."""

    each: list[str | None]


class Named(msgspec.Struct):
    """Topic and id of each message."""

    names: list[tuple[str, str] | None]


class Load(msgspec.Struct):
    """How many messages fall due in each span."""

    counts: list[int]


class Oldest(msgspec.Struct):
    """The due of the longest waiting message of each topic, and where to go on."""

    topics: dict[str, int]
    next: str | None = None


class Holders(msgspec.Struct):
    """The owners of leased messages."""

    holders: list[Holder]


class StatsAnswer(msgspec.Struct):
    """The counts by topic, and by kind of event."""

    topics: dict[str, TopicStats]
    totals: dict[str, int]
    next: str | None = None


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Raise StoreError for an inconsistent answer: the caller's input is not at fault."""
    try:
        yield
    except (DwellError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        raise StoreError(f"{STRANGE}: {error}") from None
    except (msgspec.MsgspecError, RecursionError, AssertionError) as error:
        raise StoreError(f"{STRANGE}: {error}") from None


def decoded(data: bytes, kind: type[Any]) -> Any:
    """Return an answer in MessagePack as a value of its type; raises StoreError."""
    with reading():
        return msgspec.msgpack.decode(data, type=kind)


def page_of(found: BatchColumns) -> Page:
    """Return a page of messages that was answered in columns; raises StoreError."""
    with reading():
        return page_of_columns(found)


def results_of(codes: bytes, count: int) -> U8:
    """Return the results of ``count`` messages, shape (count,); raises StoreError."""
    with reading():
        results: U8 = columns.results_of(codes).copy()
    if len(results) != count:
        raise StoreError(f"{STRANGE}: {len(results)} results for {count} messages")
    return results


def following(start: int, answered: int | None, count: int) -> int | None:
    """Return where the ids are that an answer says nothing of; there are fewer each time."""
    if answered is None:
        return None
    if not 0 < answered < count - start:
        raise StoreError(f"{STRANGE}: next {answered} of {count - start} ids")
    return start + answered
