"""What schedules need of a queue."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from dwell.batch.batch import Batch
from dwell.batch.puts import Put, Row
from dwell.clock import Clock
from dwell.given.values import Delay, Due
from dwell.message import Message, Result, State


class Carrier(Protocol):
    """The verbs of :class:`dwell.Queue` that schedules are made of."""

    @property
    def clock(self) -> Clock:
        """The clock that says what is due."""

    async def put(
        self,
        topic: str,
        body: object,
        *,
        due: Due | None = None,
        id: str | None = None,  # noqa: A002 - the word of the whole API
        max_attempts: int | None = None,
        on_conflict: str = "keep",
    ) -> Put:
        """Put one message."""

    async def put_rows(
        self, topic: str, rows: Sequence[Row], on_conflict: str = "keep"
    ) -> Sequence[Put]:
        """Put rows."""

    async def take(
        self,
        topics: str | Sequence[str],
        limit: int = 1,
        *,
        lease: Delay | None = None,
        owner: str = "",
        wait: Delay = 0,
    ) -> Batch:
        """Take messages that are due."""

    async def ack(self, what: Message) -> Result:
        """Forget a message."""

    async def release(
        self,
        what: Message,
        delay: Delay = 0,
        *,
        error: str | None = None,
        counted: bool = True,
    ) -> Result:
        """Give a message back."""

    async def bury(self, what: Message, reason: str | None = None) -> Result:
        """Set a message aside."""

    async def cancel(self, topic: str, ids: str) -> Result:
        """Forget a message that nobody has taken."""

    async def get(self, topic: str, ids: str) -> Message | None:
        """Return a message."""

    def pages(
        self, topic: str, state: Sequence[State] | None = None, *, limit: int = 1000
    ) -> AsyncIterator[Batch]:
        """Yield messages."""
