"""What a handler says by raising, and what then becomes of its message."""

import traceback
from typing import NamedTuple

from dwell.values import Delay, delay_ms, error_text


class Retry(Exception):
    """Raised by a handler: try again after ``delay``, by default when a failure would be.

    The attempt counts, so a message whose attempts are used up is buried. ``reason`` is kept as
    its ``last_error``.
    """

    def __init__(self, delay: Delay | None = None, reason: str | None = None) -> None:
        super().__init__(reason or "retry")
        self.delay_ms = None if delay is None else delay_ms(delay)
        self.reason = error_text(reason, "reason")


class Bury(Exception):
    """Raised by a handler: set the message aside as dead, for ``reason``."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "bury")
        self.reason = error_text(reason, "reason")


class Done(NamedTuple):
    """The handler returned: ack."""


class Back(NamedTuple):
    """Give the messages back; ``delay_ms`` None takes the topic's retry delay."""

    delay_ms: int | None
    error: str | None
    counted: bool


class Dead(NamedTuple):
    """Bury the messages."""

    reason: str | None


class Lost(NamedTuple):
    """The lease has ended and somebody else may have the messages: there is nothing to say."""


Outcome = Done | Back | Dead | Lost

#: Nobody has judged the messages: they are given back as they were, with due and attempt.
AS_IT_WAS = Back(0, None, counted=False)


def outcome_of(error: BaseException, retry_delay_ms: int | None) -> Outcome:
    """Return what follows from what a handler raised; ``retry_delay_ms`` None is the topic's."""
    if isinstance(error, Bury):
        return Dead(error.reason)
    if isinstance(error, Retry):
        delay_ms = retry_delay_ms if error.delay_ms is None else error.delay_ms
        return Back(delay_ms, error.reason, counted=True)
    return Back(retry_delay_ms, _told(error), counted=True)


def _told(error: BaseException) -> str:
    """Return class and text of an exception, also of one whose text cannot be had."""
    told = traceback.TracebackException(type(error), error, None)
    # Notes come behind the text, and the last line is to be the error.
    told.__notes__ = None
    return list(told.format_exception_only())[-1].strip()
