"""The verbs of a queue that schedules and typed topics use."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from dwell.batch.batch import Batch
from dwell.batch.events import EventPage
from dwell.batch.page import Page
from dwell.batch.puts import Put, PutAnswer
from dwell.clock import Clock
from dwell.message import Message, Result
from dwell.store.base import Store


class Carrier(Protocol):
    """Verbs of :class:`dwell.Queue`, which documents their arguments."""

    @property
    def clock(self) -> Clock:
        """The clock that says what is due."""

    @property
    def put(self) -> Callable[..., Awaitable[Put]]:
        """Put one message."""

    @property
    def put_many(self) -> Callable[..., Awaitable[PutAnswer]]:
        """Put many messages."""

    @property
    def put_rows(self) -> Callable[..., Awaitable[Sequence[Put]]]:
        """Put rows."""

    @property
    def take(self) -> Callable[..., Awaitable[Batch]]:
        """Take messages that are due."""

    @property
    def ack(self) -> Callable[[Message], Awaitable[Result]]:
        """Forget a message that is done."""

    @property
    def release(self) -> Callable[..., Awaitable[Result]]:
        """Give a message back."""

    @property
    def touch(self) -> Callable[..., Awaitable[Result]]:
        """Extend a lease."""

    @property
    def bury(self) -> Callable[[Message, str], Awaitable[Result]]:
        """Set a message aside."""

    @property
    def cancel(self) -> Callable[[str, str], Awaitable[Result]]:
        """Delete a message that nobody has taken."""

    @property
    def get(self) -> Callable[..., Awaitable[Any]]:
        """Return a message or None; a list of these for a list of ids."""

    @property
    def pages(self) -> Callable[..., AsyncIterator[Batch]]:
        """Yield messages, a batch at a time."""

    @property
    def scan(self) -> Callable[..., Awaitable[Page]]:
        """Return one page of messages."""

    @property
    def events(self) -> Callable[[int, int], Awaitable[EventPage]]:
        """Return events from a position on."""

    @property
    def store(self) -> Store:
        """Where the messages are."""
