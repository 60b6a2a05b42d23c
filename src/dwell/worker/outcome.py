"""The exceptions that a handler may raise, and what each does to its message."""

import traceback
from typing import Any, NamedTuple

import msgspec

from dwell.errors import DwellError, InvalidInput
from dwell.given.values import Delay, body, delay_ms, error_text
from dwell.message import Message
from dwell.queue.then import Then
from dwell.retries import NotNow

#: The beginning of the reason of a handler that took too long.
TIMEOUT = "timeout:"


class _Said(Exception):
    """An exception with other arguments than its class has; another process may raise it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _raised, (type(self), self.args, self.__dict__)


class Retry(_Said):
    """Raised by a handler: try again after ``delay``, by default after the retry delay.

    The attempt counts, so a message whose attempts are used up is buried. ``reason`` becomes its
    ``last_error``.
    """

    #: Those of a child that does not call this class.
    delay_ms: int | None = None
    reason: str | None = None

    def __init__(self, delay: Delay | None = None, reason: str | None = None) -> None:
        super().__init__(reason or "retry")
        self.delay_ms = None if delay is None else delay_ms(delay)
        self.reason = error_text(reason, "reason")


class Bury(_Said):
    """Raised by a handler: set the message aside as dead, for ``reason``."""

    reason: str | None = None

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "bury")
        self.reason = error_text(reason, "reason")


def _raised(kind: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    """Rebuild an exception that was raised in another process."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class CountsFailures:
    """A handler that writes the last errors of its messages itself, also those a worker finds."""

    def late_text(self, message: Message, told: str) -> str:
        """Return the last error of a message that took too long; ``told`` is the worker's own."""
        raise NotImplementedError

    def failure_of(self, message: Message, error: DwellError) -> Exception:
        """Return what to raise for a message whose result the queue has refused."""
        raise NotImplementedError


class Done(NamedTuple):
    """The handler returned: ack, with a result to keep and a message to put, if any."""

    result: bytes | None = None
    then: Then | None = None

    @property
    def brings_more(self) -> bool:
        """Whether there is anything to keep or to put, which can be refused."""
        return self.result is not None or self.then is not None


class Back(NamedTuple):
    """Give the messages back; ``delay_ms`` None takes the topic's retry delay."""

    delay_ms: int | None
    error: str | None
    counted: bool


class Dead(NamedTuple):
    """Bury the messages."""

    reason: str | None


class Lost(NamedTuple):
    """The lease has ended and another taker may have the messages: nothing is sent."""


Outcome = Done | Back | Dead | Lost

#: The messages were not handled: they are released unchanged, with due and attempt.
AS_IT_WAS = Back(0, None, counted=False)


def result_of(value: object) -> bytes:
    """Return what a handler returned as the result of its message: bytes as they are, else as JSON.

    Raises InvalidBody for a value that JSON cannot encode, or that is larger than a body may be.
    """
    # Text is encoded too, so that every result but bytes is read in one way.
    return body(msgspec.json.encode(value) if isinstance(value, str) else value, "result")


def refuse_many(value: object) -> None:
    """Raise InvalidInput for several follow-ups, as an ack puts one: none would come."""
    if isinstance(value, list | tuple | set | frozenset):
        count = sum(isinstance(one, Then) for one in value)
        if count:
            raise InvalidInput(f"then: got {count} in a {type(value).__name__}, expected one Then")


def outcome_of(error: BaseException, retry_delay_ms: int | None) -> Outcome:
    """Return the outcome of a handler's exception; ``retry_delay_ms`` None is the topic's.

    An exception whose attributes raise errors counts as any other failure.
    """
    try:
        return _judged(error, retry_delay_ms)
    except BaseException:
        return Back(retry_delay_ms, type(error).__name__, counted=True)


def _judged(error: BaseException, retry_delay_ms: int | None) -> Outcome:
    # The ``__class__`` that the error reports may be anything.
    kind = type(error)
    if issubclass(kind, Bury):
        return Dead(error_text(error.reason, "reason"))  # type: ignore[attr-defined]
    if issubclass(kind, Retry):
        own_ms, reason = error.delay_ms, error.reason  # type: ignore[attr-defined]
        own_ms = None if own_ms is None else delay_ms(own_ms / 1000)
        asked_ms = retry_delay_ms if own_ms is None else own_ms
        return Back(asked_ms, error_text(reason, "reason"), counted=True)
    if issubclass(kind, NotNow):
        own_ms = delay_ms(error.delay_ms / 1000)  # type: ignore[attr-defined]
        return Back(own_ms, told(error), counted=False)
    return Back(retry_delay_ms, told(error), counted=True)


def told(error: BaseException) -> str:
    """Return class and text of an exception, also of an exception whose ``str`` fails."""
    told = traceback.TracebackException(type(error), error, None)
    # Notes come behind the text, and the last line is to be the error.
    told.__notes__ = None
    return list(told.format_exception_only())[-1].strip()
