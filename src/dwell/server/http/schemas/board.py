"""The schemas of the views of a server: topics, the coming load, leases and health."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

from dwell.message import MAX_BATCH_MESSAGES, MAX_DELAY_MS, MAX_TOPIC_CHARS
from dwell.queue.counting import MOST_SPANS
from dwell.server.board.board import MOST_HOLDERS, HoldersAnswer, Overview
from dwell.server.http.schemas.answers import EventRow
from dwell.server.http.schemas.requests import Moment, Place, Position, Request, Topic

SortWord: TypeAlias = Literal[
    "name", "delayed", "ready", "leased", "dead", "oldest", "put_rate", "take_rate", "late_p99_ms"
]


class OverviewQuery(Request):
    """The topics to show: names that contain ``match``, their order, and where to begin."""

    match: Annotated[str, Meta(max_length=MAX_TOPIC_CHARS)] = ""
    sort: SortWord = "name"
    offset: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class LoadRequest(Request):
    """The spans to count deadlines in: their number, their length, and their start.

    Without ``topics`` all topics count that the caller has the right to.
    """

    start_ms: Moment
    span_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)]
    count: Annotated[int, Meta(ge=1, le=MOST_SPANS)]
    topics: Annotated[list[Topic], Meta(max_length=1000)] = field(default_factory=list)


class HoldersQuery(Request):
    """The limit of owners, and the prefixes of topics, separated by commas."""

    limit: Annotated[int, Meta(ge=1, le=MAX_BATCH_MESSAGES)] = MOST_HOLDERS
    prefixes: Annotated[str, Meta(max_length=2000)] = ""


class HistoryQuery(Request):
    """Before which position of the event log to look; without it from the newest event back."""

    before: Position | None = None


class ReasonsQuery(Request):
    """From which place on to look."""

    place: Place = 0


class WatchRequest(Request):
    """The data to send when it changes: each requested kind is an event of its name."""

    overview: OverviewQuery | None = None
    load: LoadRequest | None = None
    holders: bool = False
    health: bool = False


# --- answers ----------------------------------------------------------------------------------


class RightsAnswer(Struct):
    """The caller's rights: for each right the prefixes of its topics, "" for all topics.

    ``has_tokens`` is false if everybody may do everything.
    """

    has_tokens: bool
    put: list[str]
    take: list[str]
    read: list[str]
    admin: list[str]
    metrics: bool
    version: str
    now_ms: int


class LoadAnswer(Struct):
    """How many delayed messages fall due in each span, in order."""

    counts: list[int]


class OldestAnswer(Struct):
    """By topic, the due of the message that has waited longest for a taker.

    The next page begins after the name ``next``, or ``next`` is null.
    """

    topics: dict[str, int]
    next: str | None = None


class Timing(Struct):
    """The count and the durations of an operation; p50 and p99 are upper bounds.

    They are null without a measurement, or above all bounds.
    """

    count: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


class HealthAnswer(Struct):
    """How the server and its store are; ``problem`` says why it takes no new messages."""

    problem: str | None
    started_ms: int
    requests: int
    waiting: int
    watchers: int
    refused: int
    memory_bytes: int
    store: dict[str, int | str]
    timings: dict[str, Timing]


class HistoryAnswer(Struct):
    """The events of one message, in order, and how far the search has come.

    ``before`` is the position where a search for earlier events continues. It is null when the
    search is complete: it reached the end of the event log or the put of the message
    (``is_whole``).
    """

    events: list[EventRow]
    before: int | None
    is_whole: bool
    looked: int


class ReasonRow(Struct):
    """A reason why messages are dead, and their count; ``id`` is the id of one of them."""

    reason: str
    messages: int
    id: str


class ReasonsAnswer(Struct):
    """Why messages of a topic are dead; ``next_place`` is where to go on, null at the end.

    ``places`` is the number of places to search; reasons beyond the first 1000 are in "".
    """

    reasons: list[ReasonRow]
    next_place: int | None
    places: int


class OverviewEvent(Struct):
    """Topics, as they are now."""

    event: Literal["overview"]
    data: Overview


class LoadEvent(Struct):
    """The coming load."""

    event: Literal["load"]
    data: LoadAnswer


class HoldersEvent(Struct):
    """The owners of leases and their counts."""

    event: Literal["holders"]
    data: HoldersAnswer


class HealthEvent(Struct):
    """How the server and its store are."""

    event: Literal["health"]
    data: HealthAnswer
