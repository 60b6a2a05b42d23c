"""A job: what one call of a handler gets, from its take to its end."""

from typing import TYPE_CHECKING

from dwell.message import Batch, Message, receipts_to_text

if TYPE_CHECKING:
    import asyncio

    from dwell.worker.outcome import Outcome


class Job:
    """One message, or a batch of them, that this worker holds under lease.

    ``lease_ms`` is the lease that was given, the shortest of a batch (0 where it was not asked for,
    and the time that is left tells); ``ends_at_ms`` is when it ends, ``touch_at_ms`` when it has to
    be extended next, and ``is_lost`` that it has ended nevertheless. ``task`` is what runs the
    handler, or gives the messages back, and ``outcome`` what became of them.
    """

    __slots__ = (
        "ends_at_ms",
        "is_lost",
        "lane",
        "lease_ms",
        "outcome",
        "receipts",
        "task",
        "touch_at_ms",
        "what",
    )

    def __init__(self, what: Message | Batch, now_ms: int, lease_ms: int = 0) -> None:
        if isinstance(what, Message):
            assert what.receipt is not None
            until_ms, self.receipts = what.lease_until_ms, [what.receipt]
            self.lane = (what.topic, what.key) if what.key is not None else None
            lease_ms = lease_ms or what.lease_ms
        else:
            assert what.receipts is not None
            until_ms = int(what.lease_until_ms.min())
            self.receipts = receipts_to_text(what.receipts)
            self.lane = None
        self.what = what
        self.lease_ms = lease_ms or _given_ms(until_ms - now_ms)
        self.leased_from(until_ms - self.lease_ms)
        self.is_lost = False
        self.outcome: Outcome | None = None
        self.task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self.receipts)

    @property
    def attempt(self) -> int:
        """The number of this attempt; of a batch, the highest."""
        what = self.what
        return what.attempt if isinstance(what, Message) else int(what.attempt.max())

    def leased_from(self, time_ms: int) -> None:
        """Plan for a lease that began at a time."""
        self.ends_at_ms = time_ms + self.lease_ms
        self.touch_at_ms = time_ms + max(self.lease_ms // 3, 1)

    def __repr__(self) -> str:
        what = self.what
        return f"{what.topic}/{what.id}" if isinstance(what, Message) else repr(what)


def _given_ms(left_ms: int) -> int:
    """Return the lease that was given, of which ``left_ms`` are left when the answer is there.

    What the answer took is put back by rounding up, so that jobs of one lease are touched as one.
    """
    step_ms = next((step for step in (1_000, 100, 10) if left_ms > 10 * step), 1)
    return max(-(-left_ms // step_ms) * step_ms, 1)
