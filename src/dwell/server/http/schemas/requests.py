"""The schemas of requests, for the OpenAPI document and the checks."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from dwell.message import (
    DEFAULT_PRIORITY,
    MAX_ATTEMPTS,
    MAX_BATCH_MESSAGES,
    MAX_CHANGE_MESSAGES,
    MAX_CRON_CHARS,
    MAX_DAYS_OFF,
    MAX_DELAY_MS,
    MAX_ERROR_CHARS,
    MAX_ID_BYTES,
    MAX_LEASE_MS,
    MAX_PRIORITY,
    MAX_QUERY_CHARS,
    MAX_RRULE_CHARS,
)
from dwell.server.http.schemas.words import ConflictWord, StateWord
from dwell.wire.rows import Line

#: How long a request may wait.
MOST_WAIT_MS = 300_000

Span: TypeAlias = Annotated[
    str | int | float, Meta(description='A span of time: "30m", "1h30m", "250ms", or seconds.')
]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_BATCH_MESSAGES)]
Position: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
Moment: TypeAlias = Annotated[
    int, Meta(ge=0, le=2**52, description="Milliseconds since the epoch.")
]
Priority: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_PRIORITY)]
Wait: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_WAIT_MS)]
Lease: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_LEASE_MS)]
#: Receipts are checked to be digits when they are parsed, all at once.
Receipt: TypeAlias = Annotated[
    str,
    Meta(min_length=32, max_length=32, extra_json_schema={"pattern": "^[0-9a-fA-F]{32}$"}),
]
Receipts: TypeAlias = Annotated[list[Receipt], Meta(max_length=MAX_BATCH_MESSAGES)]
Id: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=MAX_ID_BYTES, description="1-256 bytes of UTF-8.")
]
#: Versions of messages, one for each id.
Versions: TypeAlias = Annotated[
    list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_BATCH_MESSAGES)
]
Ids: TypeAlias = Annotated[list[Id], Meta(max_length=MAX_BATCH_MESSAGES)]
Topic: TypeAlias = Annotated[str, Meta(pattern="^[A-Za-z0-9._:-]{1,200}$")]
States: TypeAlias = Annotated[list[StateWord], Meta(max_length=16)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]
#: A span in a topic's settings.
Millis: TypeAlias = Annotated[
    int | str, Meta(description='Milliseconds, or a span as text: "30m", "1h30m", "250ms".')
]
#: The systems whose cron lines can be translated.
Dialect: TypeAlias = Literal["crontab", "quartz", "eventbridge", "apscheduler", "celery", "robfig"]
Rate: TypeAlias = Annotated[
    int | float | str,
    Meta(description='Messages a second, 0 for no limit, or text: "100/m", "1/5s".'),
]
Levels: TypeAlias = Annotated[list[Millis], Meta(max_length=32)]


class Request(Struct, kw_only=True, forbid_unknown_fields=True):
    """The base class of requests."""


class Nothing(Request):
    """A request without parameters."""


Where: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_QUERY_CHARS,
        description="An expression of JMESPath over the body, decoded as JSON.",
    ),
]
Attempts: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS + 1)]


class Which(Request):
    """Conditions on messages of a topic: all given fields must match, here and in the request.

    ``due_from_ms`` and ``attempt_from`` are included, ``due_to_ms`` and ``attempt_to`` excluded;
    ``error`` is a part of the last error.
    """

    due_from_ms: Moment = 0
    due_to_ms: Moment = 2**52
    key: str | None = None
    error: Annotated[str, Meta(min_length=1, max_length=MAX_ERROR_CHARS)] | None = None
    attempt_from: Attempts = 0
    attempt_to: Attempts = MAX_ATTEMPTS + 1
    where: Where | None = None


# --- put --------------------------------------------------------------------------------------


class NewMessage(Line, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to be put: its body and its options.

    At most one of ``delay``, ``delay_ms``, ``due``, ``due_ms`` and ``delay_level``, and of
    ``ttl``, ``ttl_ms``, ``expires`` and ``expires_ms``.
    """

    delay_ms: int | None = None
    ttl_ms: int | None = None
    lease_ms: int | None = None
    expires_ms: int | None = None


class PackedMessage(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to be put in MessagePack, where a body may also be binary data."""


class PutQuery(Request):
    """How a put treats ids that exist: keep, replace or error."""

    on_conflict: ConflictWord = "keep"


# --- take -------------------------------------------------------------------------------------


class TakeRequest(Request):
    """The messages to take, their lease, and how long to wait for the first message.

    ``ids`` takes ready messages of one topic by their ids. With ``versions`` (one for each id, as a
    sweep or a page in columns returned them) it takes only messages that have not changed since.
    ``poll`` is the caller's name for this request; the same token can end its wait by that name.
    """

    topics: Topic | Annotated[list[Topic], Meta(min_length=1, max_length=MAX_BATCH_MESSAGES)]
    limit: Limit = 1
    lease: Span | None = None
    lease_ms: Lease | None = None
    owner: str = ""
    wait: Span | None = None
    wait_ms: Wait | None = None
    ids: Ids | None = None
    versions: Versions | None = None
    poll: str = ""


class TakeWhereRequest(Which):
    """Which ready messages to take, for how long, and from after which ``cursor``."""

    headers: dict[str, str] = {}
    limit: Limit = 1
    lease: Span | None = None
    lease_ms: Lease | None = None
    owner: str = ""
    cursor: str | None = None


class OwnerQuery(Request):
    """The owner, and the ``cursor`` to go on after."""

    owner: str
    cursor: str | None = None


# --- by receipt -------------------------------------------------------------------------------


class AckRequest(Request):
    """The receipts of messages that are done, and what came of them.

    ``results`` has a result for each receipt, null for none: text, or any other JSON;
    ``results_base64`` is for bytes. ``then`` is a message to be put into ``then_topic`` in the same
    step as the ack of one message, in the form of a put.
    """

    receipts: Receipts
    results: Annotated[list[msgspec.Raw], Meta(max_length=MAX_BATCH_MESSAGES)] | None = None
    results_base64: Annotated[list[str | None], Meta(max_length=MAX_BATCH_MESSAGES)] | None = None
    then: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    then_topic: str = ""


class TakenRequest(Request):
    """Receipts of messages."""

    receipts: Receipts


class ResultQuery(Request):
    """How long to wait until a message is over: ``wait``, or ``wait_ms``."""

    wait: str | None = None
    wait_ms: Wait = 0


class ReleaseRequest(Request):
    """The receipts of messages to release, and when they fall due again.

    ``delay_ms`` and ``error`` may be one for all or one for each receipt.
    """

    receipts: Receipts
    delay: Span | None = None
    delay_ms: Whole | Annotated[list[Whole], Meta(max_length=MAX_BATCH_MESSAGES)] | None = None
    retry: bool = False
    error: str | Annotated[list[str | None], Meta(max_length=MAX_BATCH_MESSAGES)] | None = None
    counted: bool = True
    priority: Priority | None = None


class TouchRequest(Request):
    """The receipts of messages to be held longer."""

    receipts: Receipts
    lease: Span | None = None
    lease_ms: Annotated[int, Meta(ge=1, le=MAX_LEASE_MS)] | None = None


class BuryRequest(Request):
    """The receipts of messages to set aside."""

    receipts: Receipts
    reason: str | None = None
    priority: Priority | None = None


# --- by id and by filter ----------------------------------------------------------------------


class Filter(Which):
    """Conditions on messages of a topic: all given fields must match.

    Without ``states`` the filter covers the states that the verb works on.
    """

    states: States | None = None
    headers: dict[str, str] = {}


Most: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_CHANGE_MESSAGES)]


class ChangeRequest(Request):
    """Messages by ids or by a filter; a filter covers at most ``limit``, from after ``cursor``.

    ``versions``, one for each id, are the versions of a sweep: messages that have changed since
    stay unchanged. ``dry_run`` (with a filter) counts the messages, and changes nothing.
    """

    ids: Ids | None = None
    versions: Versions | None = None
    filter: Filter | None = None
    limit: Most = 100_000
    cursor: str | None = None
    dry_run: bool = False


class CancelRequest(ChangeRequest):
    """The messages to cancel."""


class RescheduleRequest(ChangeRequest):
    """The messages to move, and when they fall due.

    ``due_ms`` may be one time or one for each id; ``shift_ms`` (with a filter) moves each from
    its own due.
    """

    delay: Span | None = None
    delay_ms: Whole | None = None
    due: str | int | None = None
    due_ms: Moment | Annotated[list[Moment], Meta(max_length=MAX_BATCH_MESSAGES)] | None = None
    shift_ms: Annotated[int, Meta(ge=-MAX_DELAY_MS, le=MAX_DELAY_MS)] | None = None


class KickRequest(ChangeRequest):
    """The dead messages to bring back: by ids, by a filter, or the first ``limit``.

    ``due_ms`` (with ids) may be one time or one for each id. With a ``pace`` (not with ids) that
    many messages fall due in each second, from the delay on. ``paced`` is how many messages the
    requests before matched, if a cursor continues them.
    """

    limit: Most = 1000
    pace: Annotated[int, Meta(ge=1, le=MAX_CHANGE_MESSAGES)] | None = None
    paced: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    delay: Span | None = None
    delay_ms: Whole | None = None
    due: str | int | None = None
    due_ms: Moment | Annotated[list[Moment], Meta(max_length=MAX_BATCH_MESSAGES)] | None = None


class GetRequest(Request):
    """The ids of messages to look at."""

    ids: Ids


class NamedRequest(Request):
    """The numbers of messages."""

    numbers: Annotated[list[Annotated[int, Meta(ge=0, le=2**63 - 1)]], Meta(max_length=10_000)]


# --- looking ----------------------------------------------------------------------------------


class ListQuery(Which):
    """Which messages to list, by due. ``header`` is ``name:value``."""

    state: StateWord = "delayed"
    header: str | None = None
    cursor: str | None = None
    limit: Limit = 1000


class FindRequest(Which):
    """Which messages of one state to return, from after which ``cursor``."""

    headers: dict[str, str] = {}
    state: StateWord = "ready"
    cursor: str | None = None
    limit: Limit = 1000


Place: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class SweepRequest(Request):
    """The messages to return, from place ``start`` to before ``stop``.

    Without ``topics`` from all topics, without ``states`` in any state.
    """

    topics: Annotated[list[Topic], Meta(max_length=MAX_BATCH_MESSAGES)] = []
    states: States | None = None
    due_from_ms: Moment = 0
    due_to_ms: Moment = 2**52
    key: str | None = None
    start: Place = 0
    stop: Place = 2**63 - 1
    limit: Annotated[int, Meta(ge=0, le=MAX_BATCH_MESSAGES)] = 1000


class PeekQuery(Request):
    """How many of the next messages to look at."""

    limit: Limit = 1


class EventsQuery(Request):
    """From which position on, and how many at most."""

    position: Position = 0
    limit: Limit = 1000


class TopicsQuery(Request):
    """The topic to go on after."""

    after: str = ""


class StaleRequest(Request):
    """How many things to return at most, and whether to put them right."""

    repair: bool = False
    limit: Limit = 1000


class SettingsChange(Request):
    """Settings of a topic to be changed; absent settings stay unchanged."""

    lease_ms: Millis | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | UnsetType = UNSET
    retry_delays_ms: Levels | UnsetType = UNSET
    remember_ms: Millis | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    max_pending: Annotated[int, Meta(ge=0, le=2**63 - 1)] | UnsetType = UNSET
    on_full: Literal["refuse", "drop"] | UnsetType = UNSET
    delay_levels_ms: Levels | UnsetType = UNSET
    rate: Rate | UnsetType = UNSET
    most_leased: Annotated[int, Meta(ge=0, le=2**63 - 1)] | UnsetType = UNSET
    ordered: bool | UnsetType = UNSET
    fair: bool | UnsetType = UNSET
    keep_dead_ms: Millis | UnsetType = UNSET


# --- schedules --------------------------------------------------------------------------------

When: TypeAlias = Annotated[
    str | int, Meta(description="ISO 8601 with a zone, or milliseconds since the epoch.")
]


#: A line of cron, and a rule of RFC 5545 or the lines of a calendar.
Cron: TypeAlias = Annotated[str, Meta(max_length=MAX_CRON_CHARS)]
RRule: TypeAlias = Annotated[str, Meta(max_length=MAX_RRULE_CHARS)]
Days: TypeAlias = Annotated[
    list[str],
    Meta(max_length=MAX_DAYS_OFF, description="Weekdays (mon to sun) and dates (2030-12-25)."),
]


class ScheduleRule(Request):
    """When a schedule fires: one of ``cron``, ``rrule``, ``every``, ``every_ms``.

    ``dialect`` names the system that ``cron`` was written for; the line is translated. ``rrule``
    is a rule of RFC 5545, or the lines of a calendar with ``DTSTART``, ``RDATE`` and ``EXDATE``.
    """

    cron: Cron | None = None
    dialect: Dialect = "crontab"
    rrule: RRule | None = None
    every: Span | None = None
    every_ms: Whole | None = None
    zone: str = "UTC"
    start: When | None = None
    end: When | None = None
    days_off: Days = []
    when_off: Literal["skip", "before", "after"] = "skip"


class PreviewRequest(ScheduleRule, kw_only=True):
    """When a schedule would fire, and how many runs to say."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 5


class ScheduleRequest(ScheduleRule, kw_only=True):
    """A schedule: when it fires, the message and its topic.

    ``body`` is text, or any other JSON; ``body_base64`` is for bytes.
    """

    topic: Topic
    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    body_base64: str | None = None
    jitter: Span | None = None
    jitter_ms: Whole | None = None
    misfire: Literal["once", "all", "skip"] = "once"
    overlap: Literal["queue", "skip", "replace"] = "queue"
    grace: Span | None = None
    grace_ms: Whole | None = None
    key: str | None = None
    headers: dict[str, str] = {}
    priority: Priority = DEFAULT_PRIORITY
    lease: Span | None = None
    lease_ms: Lease | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    ttl: Span | None = None
    ttl_ms: Whole | None = None


class ScheduleChange(Request):
    """The fields of a schedule to change; absent fields stay, and null sets the default.

    A new rule replaces the old rule. The fields have the names of a put.
    """

    topic: Topic | UnsetType = UNSET
    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    body_base64: str | None = None
    cron: Cron | UnsetType | None = UNSET
    dialect: Dialect | UnsetType | None = UNSET
    rrule: RRule | UnsetType | None = UNSET
    every: Span | UnsetType | None = UNSET
    every_ms: Whole | UnsetType | None = UNSET
    zone: str | UnsetType | None = UNSET
    start: When | UnsetType | None = UNSET
    end: When | UnsetType | None = UNSET
    days_off: Days | UnsetType | None = UNSET
    when_off: Literal["skip", "before", "after"] | UnsetType | None = UNSET
    jitter: Span | UnsetType | None = UNSET
    jitter_ms: Whole | UnsetType | None = UNSET
    misfire: Literal["once", "all", "skip"] | UnsetType | None = UNSET
    overlap: Literal["queue", "skip", "replace"] | UnsetType | None = UNSET
    grace: Span | UnsetType | None = UNSET
    grace_ms: Whole | UnsetType | None = UNSET
    key: str | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType | None = UNSET
    priority: Priority | UnsetType | None = UNSET
    lease: Span | UnsetType | None = UNSET
    lease_ms: Lease | UnsetType | None = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | UnsetType | None = UNSET
    ttl: Span | UnsetType | None = UNSET
    ttl_ms: Whole | UnsetType | None = UNSET


class RunsQuery(Request):
    """How many of the next runs to say."""

    runs: Annotated[int, Meta(ge=0, le=1000)] = 5


class PastRunsQuery(Request):
    """How many of the last runs to say at most."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 20


class SchedulesQuery(Request):
    """Of which state, from after which cursor, and how many at most."""

    state: str = "delayed"
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


# --- push and the job protocol ----------------------------------------------------------------


class PushRequest(Request):
    """Which topics, how many messages at first, and under which lease."""

    topics: Topic | Annotated[list[Topic], Meta(min_length=1, max_length=MAX_BATCH_MESSAGES)]
    credit: Annotated[int, Meta(ge=0, le=1_000_000)] = 100
    lease_ms: Lease = 0
    owner: str = ""


class CreditRequest(Request):
    """How many messages to add to the credit."""

    credit: Annotated[int, Meta(ge=1, le=1_000_000)]


class Command(Struct, kw_only=True, forbid_unknown_fields=True):
    """One command of the job protocol: add, pop, finish or delete."""

    command: str
    topic: str | None = None
    id: str | None = None
    delay: Annotated[float, Meta(ge=0, le=MAX_DELAY_MS / 1000)] = 0
    ttr: Annotated[float, Meta(ge=0, le=MAX_LEASE_MS / 1000)] = msgspec.field(
        name="TTR", default=60
    )
    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
