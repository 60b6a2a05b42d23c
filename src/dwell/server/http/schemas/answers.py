"""The schemas of answers, as the OpenAPI document shows them."""

from typing import Literal

from msgspec import Struct

from dwell.server.http.schemas.words import (
    KindWord,
    OutcomeWord,
    PutWord,
    ResultWord,
    StaleWord,
    StateWord,
)

# --- put --------------------------------------------------------------------------------------


class PutResult(Struct):
    """The result of one message: created, kept, replaced, dropped or leased."""

    id: str
    result: PutWord
    number: int


class PutResults(Struct):
    """The result of each message, in the order of the request."""

    results: list[PutResult]


# --- take -------------------------------------------------------------------------------------


class MessageRow(Struct, omit_defaults=True):
    """A message; ``body`` is text, and ``body_base64`` replaces it for other bytes."""

    topic: str
    id: str
    due_ms: int
    state: StateWord
    priority: int
    attempt: int
    max_attempts: int
    lease_ms: int
    number: int
    body: str | None = None
    body_base64: str | None = None
    lease_until_ms: int = 0
    died_ms: int = 0
    expires_ms: int = 0
    key: str | None = None
    headers: dict[str, str] = {}
    last_error: str | None = None
    receipt: str | None = None


class Messages(Struct):
    """Some messages."""

    messages: list[MessageRow]


# --- by receipt -------------------------------------------------------------------------------


class Taken(Struct):
    """Taken messages with their topics: the list of topics, and the topic of each receipt."""

    topics: list[str]
    each: list[str | None]


class Results(Struct):
    """A word for each message, in the order of the request."""

    results: list[ResultWord]


# --- by id and by filter ----------------------------------------------------------------------


class Bulk(Struct):
    """The result of a verb by filter: how many messages matched, and the count of each result.

    ``is_complete`` is false if more messages may match; ``cursor`` then leads to them.
    """

    matched: int
    results: dict[str, int]
    is_complete: bool
    cursor: str | None


class ClearAnswer(Struct):
    """How many messages were cancelled; if ``is_complete`` is false, more may be left."""

    cancelled: int
    is_complete: bool


class Found(Struct):
    """A message for each of the first ids, null where it is unknown or damaged.

    ``next`` is the place of the first id that did not fit, or null. ``damaged`` are the places of
    the messages that the disk has damaged.
    """

    messages: list[MessageRow | None]
    next: int | None
    damaged: list[int]


class Named(Struct):
    """Topic and id of each message, null for an unknown message."""

    names: list[list[str] | None]


# --- schedules --------------------------------------------------------------------------------


class ScheduleRow(Struct, omit_defaults=True):
    """The state of a schedule; ``next_ms`` is its next run, ``last_ms`` its last one.

    ``problem`` says why a dead schedule cannot fire, why its messages are refused now, or for which
    message it waits; ``runs`` are in its zone.
    """

    name: str
    topic: str
    state: str
    zone: str
    misfire: str
    overlap: str
    grace_ms: int
    priority: int
    body: str | None = None
    body_base64: str | None = None
    cron: str | None = None
    rrule: str | None = None
    every_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    days_off: list[str] = []
    when_off: str = "skip"
    jitter_ms: int = 0
    paused: bool = False
    app: str = ""
    key: str | None = None
    headers: dict[str, str] = {}
    lease_ms: int = 0
    max_attempts: int = 0
    ttl_ms: int = 0
    next_ms: int | None = None
    last_ms: int | None = None
    problem: str | None = None
    runs: list[str] = []


class PreviewAnswer(Struct):
    """The next runs of a schedule in its zone, and the line of crontab(5) that it would keep."""

    runs: list[str]
    cron: str | None


class RunRow(Struct):
    """A message that a schedule has put: its moment, when it was put, and its last event.

    ``state`` is ``waiting``, ``leased``, ``done``, ``dead`` or ``cancelled``.
    """

    id: str
    moment_ms: int
    put_ms: int
    state: str
    last: KindWord
    last_ms: int
    attempt: int


class PastRunsAnswer(Struct):
    """The last runs of a schedule, the latest put first.

    ``is_whole`` is false if the search ended before it had found all that were asked for.
    """

    runs: list[RunRow]
    is_whole: bool


class SchedulesPage(Struct):
    """Some schedules; ``cursor`` asks for those after them, and is null after the last."""

    schedules: list[ScheduleRow]
    cursor: str | None


class ScheduleAnswer(Struct):
    """The result of a change of a schedule."""

    result: str


# --- looking ----------------------------------------------------------------------------------


class MessagePage(Struct):
    """Some messages; ``cursor`` asks for those after them, and is null after the last."""

    messages: list[MessageRow]
    cursor: str | None


class SweepAnswer(Struct):
    """Some messages; ``next_place`` is where to go on, and null after the last.

    ``places`` is the current number of places.
    """

    messages: list[MessageRow]
    next_place: int | None
    places: int


class EventRow(Struct):
    """One thing that happened to one message."""

    position: int
    time_ms: int
    kind: KindWord
    topic: str
    id: str
    due_ms: int
    attempt: int


class EventsPage(Struct):
    """Events in order; the oldest kept position, and the position of the next event.

    ``since`` and ``history`` name the history of the events before the requested position and
    before ``next_position``; they are empty if it is not known.
    """

    events: list[EventRow]
    next_position: int
    first_position: int
    end_position: int
    since: str
    history: str


class Counts(Struct):
    """How many messages of a topic are in each state."""

    delayed: int
    ready: int
    leased: int
    dead: int


class StatsAnswer(Struct):
    """Counts by topic now, and by kind of event since the store was created.

    The next page begins after the topic ``next``, or ``next`` is null.
    """

    topics: dict[str, Counts]
    totals: dict[str, int]
    next: str | None = None


class SizesAnswer(Struct):
    """The counts of one topic, for each shard of the store."""

    shards: list[Counts]


class TopicsAnswer(Struct):
    """The topics, by name; the next page begins after the name ``next``, or ``next`` is null."""

    topics: dict[str, Counts]
    next: str | None = None


class OutcomeAnswer(Struct, omit_defaults=True):
    """What came of a message: its state, and the result when done or the error when dead.

    ``result`` is text, and ``result_base64`` replaces it for other bytes.
    """

    state: OutcomeWord
    result: str | None = None
    result_base64: str | None = None
    error: str | None = None


class StoreAnswer(Struct):
    """The store: its number, the server's version and time, and whether it takes messages.

    ``keeps_calls``: whether it knows repeats of numbered requests; ``keeps_results``: whether it
    keeps results of acks; ``parts_ids``: whether several messages may have one topic and id, each
    with another key.
    """

    number: int
    version: str
    now_ms: int
    is_draining: bool
    keeps_calls: bool = False
    keeps_results: bool = True
    parts_ids: bool = False


class StaleRow(Struct):
    """One thing that only a part of the store knows: no body, no state or no message."""

    topic: str
    id: str
    number: int
    problem: StaleWord
    repaired: bool


class StaleAnswer(Struct):
    """The counts that only part of the store has."""

    stale: list[StaleRow]


class EndAnswer(Struct):
    """Whether a request of that name was waiting."""

    ended: bool


# --- push and the job protocol ----------------------------------------------------------------


class StreamBegun(Struct):
    """The data of the event ``stream``: the name of the stream and its credit."""

    stream: str
    credit: int


class Pushed(Struct):
    """The data of the event ``messages``: messages with receipts, and the remaining credit."""

    messages: list[MessageRow]
    credit: int


class StreamEvent(Struct):
    """The first event of a stream."""

    event: Literal["stream"]
    data: StreamBegun


class MessagesEvent(Struct):
    """An event with some messages."""

    event: Literal["messages"]
    data: Pushed


class CreditAnswer(Struct):
    """The current credit: how many messages may be sent."""

    credit: int


class CommandAnswer(Struct, omit_defaults=True):
    """The answer to a command."""

    success: bool
    error: str | None = None
    id: str | None = None
    value: str | None = None
    value_base64: str | None = None
