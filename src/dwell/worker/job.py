"""A job: what one call of a handler gets, from its take to its end."""

from typing import TYPE_CHECKING

from dwell.message import Batch, Message, receipts_to_text

if TYPE_CHECKING:
    import asyncio


class Job:
    """One message, or a batch of them, that this worker holds under lease.

    ``touch_at_ms`` is when the lease has to be extended next, ``is_lost`` that it has ended
    nevertheless, and ``task`` what runs the handler once it runs.
    """

    __slots__ = ("is_lost", "lane", "lease_ms", "receipts", "task", "touch_at_ms", "what")

    def __init__(self, what: Message | Batch, now_ms: int) -> None:
        if isinstance(what, Message):
            assert what.receipt is not None
            until_ms, self.receipts = what.lease_until_ms, [what.receipt]
            self.lane = (what.topic, what.key) if what.key is not None else None
        else:
            assert what.receipts is not None
            until_ms = int(what.lease_until_ms.min())
            self.receipts = receipts_to_text(what.receipts)
            self.lane = None
        self.what = what
        self.lease_ms = max(until_ms - now_ms, 1)
        self.touch_at_ms = now_ms + self.lease_ms // 3
        self.is_lost = False
        self.task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self.receipts)

    @property
    def attempt(self) -> int:
        """The number of this attempt; of a batch, the highest."""
        what = self.what
        return what.attempt if isinstance(what, Message) else int(what.attempt.max())

    def __repr__(self) -> str:
        what = self.what
        return f"{what.topic}/{what.id}" if isinstance(what, Message) else repr(what)
