"""A schedule: a message that is put repeatedly, and its times.

A schedule is stored as a message of :data:`TOPIC`: its id is the schedule's name, its body has all
options, it falls due a little before it fires, and its ``last_error`` says up to when it has fired.
So it is as durable as any message, and its taker fires it.
"""

import contextlib
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from dwell.batch.puts import Row
from dwell.calendar import DaysOff
from dwell.calendar.epoch import LAST_MS, from_ms, to_ms
from dwell.errors import InvalidHeaders, InvalidInput, InvalidSchedule
from dwell.given import values
from dwell.given.rows import row_of
from dwell.given.values import Millis
from dwell.message import DEFAULT_PRIORITY, MAX_DELAY_MS, OWN_TOPICS, Message, State
from dwell.queue.schedules.times import Times, times_of

#: The topic of a queue's schedules.
TOPIC = f"{OWN_TOPICS}schedules"

#: The owner that firers take them by.
OWNER = "schedules"

#: How long before its moment a message is put, so that it is on time among many others.
AHEAD_MS = 250

#: The delay of a paused schedule.
NEVER_MS = 50 * 366 * 24 * 3_600_000

#: The smallest setback of the clock after which schedules continue from the new time. After a
#: smaller one they wait until the clock has caught up, so that nothing is put twice.
SETBACK_MS = 60_000

#: The headers of messages that a schedule has put.
NAME_HEADER, TIME_HEADER = "dwell-schedule", "dwell-time"
#: Which call of ``schedules.run`` a message is of: a random name.
RUN_HEADER = "dwell-run"

#: The text says up to when the schedule has fired; or after when it fires if it has not fired yet.
_FIRED, _SINCE = "fired up to ", "fires after "
#: It may add the moment of the message that must end before the next one is put, the last moment
#: fired by a clock that was ahead, and the error that holds the schedule up.
_WAITS, _MARK, _HELD = ", waits for ", ", before up to ", "; held up: "
_MOST_REASON_CHARS = 300


_Span: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_DELAY_MS)]
_Moment: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LAST_MS)]


class Schedule(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The arguments of :meth:`dwell.queue.schedules.Schedules.put`, in milliseconds.

    Either ``cron``, ``rrule`` or ``every_ms`` is the rule. ``app`` names the program whose code
    declares the schedule, if any. ``last_ms`` is the last moment fired before the put, by a clock
    that was ahead if it is in the future, and ``waits_ms`` the moment of the message that the
    schedule waited for then. ``ran_ms`` has the moments of messages put by hand that may not be
    done, unless ``overlap`` is ``queue``.
    """

    name: str
    topic: str
    body: bytes
    cron: str | None = None
    rrule: str | None = None
    every_ms: _Span | None = None
    zone: str = "UTC"
    start_ms: _Moment | None = None
    end_ms: _Moment | None = None
    days_off: tuple[str, ...] = ()
    when_off: Literal["skip", "before", "after"] = "skip"
    jitter_ms: _Span = 0
    misfire: Literal["skip", "once", "all"] = "once"
    overlap: Literal["queue", "skip", "replace"] = "queue"
    grace_ms: _Span = 60_000
    paused: bool = False
    app: str = ""
    key: str | None = None
    headers: dict[str, str] = {}
    priority: int = DEFAULT_PRIORITY
    lease_ms: _Span = 0
    max_attempts: int = 0
    ttl_ms: _Span = 0
    last_ms: _Moment | None = None
    waits_ms: _Moment | None = None
    ran_ms: tuple[_Moment, ...] = ()

    @property
    def times(self) -> Times:
        """The moments of the schedule; raises InvalidSchedule."""
        rule = (self.cron, self.rrule, self.every_ms)
        span = (self.start_ms, self.end_ms)
        return _times(*rule, self.zone, *span, msgspec.json.encode(self.days_off), self.when_off)

    @property
    def data(self) -> bytes:
        """The body of the message that stores the schedule."""
        return msgspec.json.encode(self)

    def id_of(self, ms: int) -> str:
        """Return the id of the message for a moment; it is the same for all firers."""
        return f"{self.name}@{moment_text(ms)}"

    def check(self) -> None:
        """Raise InvalidInput if a message could be invalid: no id is longer than this moment's."""
        self.row(1, 1)

    def row(self, ms: int, now_ms: int, more: Mapping[str, str] | None = None) -> Row:
        """Return the message for a moment, with ``more`` headers; raises InvalidInput.

        Jitter is derived from the id, so that it is the same for all firers.
        """
        due_ms = ms + crc32(self.id_of(ms).encode()) % (self.jitter_ms + 1)
        put_ms = max(now_ms, due_ms)
        own = {NAME_HEADER: self.name, TIME_HEADER: moment_text(ms)}
        return row_of(
            self.body,
            put_ms,
            due=due_ms,
            id=self.id_of(ms),
            priority=self.priority,
            lease=Millis(self.lease_ms) if self.lease_ms else None,
            max_attempts=self.max_attempts or None,
            expires=put_ms + self.ttl_ms if self.ttl_ms else None,
            key=self.key,
            headers={**self.headers, **own, **(more or {})},
        )

    def row_now(self, now_ms: int, run: str) -> Row:
        """Return the message of a run by hand, which ``run`` names: due now, without jitter."""
        without = msgspec.structs.replace(self, jitter_ms=0)
        with contextlib.suppress(InvalidHeaders):
            return without.row(now_ms, now_ms, {RUN_HEADER: run})
        # Its own headers leave no room for that one.
        return without.row(now_ms, now_ms)


@lru_cache(maxsize=2048)
def _times(*words: Any) -> Times:
    """Return the moments of a schedule; days off are JSON here, since 800 texts take 67 kB."""
    *rule, days, when_off = words
    given: list[Any] = [*rule, _days_off(days, when_off)]
    return times_of(*given)


@lru_cache(maxsize=64)
def _days_off(days: bytes, when_off: str) -> DaysOff | None:
    """Return days off; many schedules share the holidays of a country."""
    found = msgspec.json.decode(days, type=tuple[str, ...])
    return DaysOff(found, when_off) if found else None


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule, its next moment to fire, and the last moment that it has fired.

    ``next_ms`` and ``last_ms`` are None if there is no such moment. ``problem`` tells why a
    ``dead`` schedule cannot fire, why its messages are refused, or that it waits for a message.
    ``owed_ms`` is the moment after which refused messages still have to be put; ``next_ms`` is then
    the time of the next try.
    """

    schedule: Schedule
    state: State
    next_ms: int | None
    last_ms: int | None
    problem: str | None = None
    owed_ms: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields for programs; the body is text, or ``body_base64`` if not UTF-8."""
        schedule = self.schedule
        fields = (name for name in Schedule.__struct_fields__ if name not in ("waits_ms", "ran_ms"))
        told = {name: getattr(schedule, name) for name in fields}
        try:
            told["body"] = schedule.body.decode()
        except UnicodeDecodeError:
            del told["body"]
            told["body_base64"] = b64encode(schedule.body).decode()
        own = {name: getattr(self, name) for name in ("next_ms", "last_ms", "problem")}
        return {**told, "state": str(self.state), **own}


class Preview(NamedTuple):
    """The next runs of a schedule that was not put; ``cron`` is its line in crontab(5), if any."""

    runs: list[datetime]
    cron: str | None


@lru_cache(maxsize=1024)
def moment_text(ms: int) -> str:
    """Return a moment as it stands in ids and texts: 2030-01-31T09:00:00Z."""
    precision = "milliseconds" if ms % 1000 else "seconds"
    return from_ms(ms).isoformat(timespec=precision).replace("+00:00", "Z")


def fired_text(ms: int, waits_ms: int | None = None) -> str:
    """Return the ``last_error`` of a schedule that has fired up to a moment.

    ``waits_ms`` is the moment of its last message, if later moments were left out.
    """
    return _FIRED + moment_text(ms) + _waits_text(waits_ms)


def held_text(told: str, error: Exception) -> str:
    """Return the text of a schedule whose refused messages are tried again."""
    return f"{told}{_HELD}{error!s:.{_MOST_REASON_CHARS}}"


def told_text(message: Message) -> str:
    """Return what a schedule says of its moments, without the error that holds it up."""
    return (message.last_error or "").partition(_HELD)[0]


def _waits_text(ms: int | None) -> str:
    return "" if ms is None else _WAITS + moment_text(ms)


def since_text(ms: int, waits_ms: int | None = None) -> str:
    """Return the text of a schedule that has not fired: moments after ``ms`` are to be put."""
    return _SINCE + moment_text(ms) + _waits_text(waits_ms)


def fired_ms(message: Message) -> int | None:
    """Return the last moment that a schedule has fired, or None."""
    return _said_ms(told_text(message), _FIRED)


def waits_ms(message: Message) -> int | None:
    """Return the moment of the message that a schedule waits for, or None."""
    told = told_text(message).partition(_MARK)[0].partition(_WAITS)[2]
    return moment_of(told) if told else None


def carried(message: Message, schedule: Schedule) -> Schedule:
    """Return a schedule with the moments of its message, for a new message without a text."""
    last_ms = max(fired_ms(message) or -1, mark_ms(message, schedule) or -1)
    waits = schedule.waits_ms if told_ms(message) is None else waits_ms(message)
    replaced = {"last_ms": None if last_ms < 0 else last_ms, "waits_ms": waits}
    return msgspec.structs.replace(schedule, **replaced)


def put_ms(message: Message, schedule: Schedule, now_ms: int) -> list[int]:
    """Return the possible moments of a schedule's last message, the likeliest first.

    Future moments are left out: they were told by a clock that was ahead.
    """
    said = (waits_ms(message), told_ms(message))
    found = (*said, schedule.waits_ms, schedule.last_ms, *schedule.ran_ms)
    return [ms for ms in found if ms is not None and ms <= now_ms + SETBACK_MS]


def told_ms(message: Message) -> int | None:
    """Return the moment after which a schedule fires by its text, or None without a text.

    The due of a schedule that was released to be tried again no longer says it.
    """
    fired = fired_ms(message)
    return _said_ms(told_text(message), _SINCE) if fired is None else fired


def since_ms(
    message: Message,
    now_ms: int,
    schedule: Schedule | None = None,
    forward_ms: int | None = None,
) -> int:
    """Return the moment after which a schedule fires.

    A text with a future moment was written by a clock that was ahead, so the schedule fires from
    now on. The later mark counts if the clock has gone forward past it, at ``forward_ms``: then the
    clock had been behind, and all moments up to the mark have been put.
    """
    told, mark = told_ms(message), mark_ms(message, schedule)
    # The due of a schedule without a text is its first moment.
    since = next_ms(message) - 1 if told is None else told
    if mark is not None and forward_ms is not None and since < mark <= min(forward_ms, now_ms):
        return mark
    return since if told is None or told <= now_ms + SETBACK_MS else now_ms


def with_mark(told: str, message: Message) -> str:
    """Return the next text of a schedule, with the last moment fired by a clock that was later."""
    own = told.partition(_MARK)[2]
    marks = [moment_of(own) if own else None, told_ms(message), mark_ms(message)]
    latest_ms = max((ms for ms in marks if ms is not None), default=0)
    new_ms = _said_ms(told, _FIRED) or _said_ms(told, _SINCE)
    if new_ms is None or latest_ms <= new_ms:
        return told
    return marked(told.partition(_MARK)[0], latest_ms)


def marked(told: str, ms: int) -> str:
    """Return a text with a last moment that was fired by a clock that was later."""
    return f"{told}{_MARK}{moment_text(ms)}"


def mark_ms(message: Message, schedule: Schedule | None = None) -> int | None:
    """Return the last moment that a schedule has fired by a clock that was later, or None.

    Its text tells, or the schedule itself if it was put since.
    """
    said = told_text(message).partition(_MARK)[2]
    marks = (moment_of(said) if said else None, schedule.last_ms if schedule else None)
    return max((ms for ms in marks if ms is not None), default=None)


def _said_ms(said: str, begin: str) -> int | None:
    """Return the moment after ``begin`` in a text, or None if the text begins otherwise."""
    plain = said.partition(_MARK)[0].partition(_WAITS)[0]
    return moment_of(plain.removeprefix(begin)) if plain.startswith(begin) else None


def moment_of(text: str) -> int | None:
    """Return the moment of a text that :func:`moment_text` has made, or None."""
    try:
        ms = to_ms(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError):
        return None
    return ms if moment_text(ms) == text else None


def next_ms(message: Message) -> int:
    """Return the next moment of a schedule."""
    return message.due_ms + AHEAD_MS


def schedule_of(message: Message) -> Schedule:
    """Return the schedule that a message stores; raises InvalidSchedule."""
    try:
        found = msgspec.json.decode(message.body, type=Schedule)
        values.topic(found.name, "name")
        values.topic(found.topic)
        found.check()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidInput) as error:
        raise InvalidSchedule(f"schedule {message.id}: {error}") from None
    if found.name != message.id:
        raise InvalidSchedule(f"schedule {message.id}: its body is that of {found.name!r:.80}")
    return found


def put_again(message: Message) -> tuple[bytes, int]:
    """Return the body and due with which a schedule continues in another queue.

    A put has no ``last_error``, so the body carries its moments. A message that is not a schedule
    keeps its body and due.
    """
    try:
        schedule = schedule_of(message)
    except InvalidSchedule:
        return message.body, message.due_ms
    # The next moment comes after the moment in the text. The due may be that of the next try, after
    # a full topic has refused the message.
    due_ms = since_ms(message, message.due_ms) + 1 - AHEAD_MS
    return carried(message, schedule).data, due_ms


def planned(message: Message) -> Planned:
    """Return the schedule of a message with its state; raises InvalidSchedule."""
    schedule = schedule_of(message)
    is_on = message.state is not State.DEAD and not schedule.paused
    problem = message.last_error if message.state is State.DEAD else _held(message, schedule)
    is_held = is_on and _HELD in (message.last_error or "")
    return Planned(
        schedule=schedule,
        state=message.state,
        next_ms=next_ms(message) if is_on else None,
        last_ms=fired_ms(message) or schedule.last_ms,
        problem=problem,
        owed_ms=told_ms(message) if is_held else None,
    )


def _held(message: Message, schedule: Schedule) -> str | None:
    """Return why a schedule does not put messages now, or None."""
    if reason := (message.last_error or "").partition(_HELD)[2]:
        return f"tried again: {reason}"
    if schedule.paused or (ms := waits_ms(message)) is None:
        return None
    return f"waits until {schedule.id_of(ms)} is done"
