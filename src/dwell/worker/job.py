"""A job: the messages of one handler call, from their take to their end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from dwell.batch.batch import Batch
from dwell.message import Message, receipts_to_text
from dwell.queue.then import Then

if TYPE_CHECKING:
    from dwell.worker.outcome import Outcome


class Job:
    """One message, or a batch of them, that this worker holds under lease.

    ``leases`` are the receipts by lease (the requested lease, the message's own, or derived from
    the time left). ``ends_at_ms`` is the end of the shortest lease, ``touch_at_ms`` the time of the
    next touch, and ``is_lost`` says that the lease has ended nevertheless. ``task`` runs the
    handler, or releases the messages, and ``outcome`` is the result. ``is_in_loop`` says that the
    handler can be cancelled, and ``was_cancelled`` that other code than the handler has cancelled
    it. ``result`` is what the handler returned, if that is kept, and ``then`` if it is a message to
    put. ``call`` ends a handler outside of the loop. ``is_late`` says that it has exceeded its
    limit, and ``is_given_up`` that the worker has stopped waiting for it. ``is_heard`` says that
    the store has taken what became of it.
    """

    __slots__ = (
        "call",
        "ends_at_ms",
        "is_given_up",
        "is_heard",
        "is_in_loop",
        "is_late",
        "is_lost",
        "is_settled",
        "lane",
        "leases",
        "outcome",
        "receipts",
        "result",
        "task",
        "then",
        "touch_at_ms",
        "was_cancelled",
        "what",
    )

    def __init__(self, what: Message | Batch, now_ms: int, lease_ms: int = 0) -> None:
        if isinstance(what, Message):
            assert what.receipt is not None
            self.receipts = [what.receipt]
            own_ms, until_ms = [what.lease_ms], [what.lease_until_ms]
            self.lane = (what.topic, what.key) if what.key is not None else None
        else:
            assert what.receipts is not None
            self.receipts = receipts_to_text(what.receipts)
            own_ms, until_ms = what.lease_ms.tolist(), what.lease_until_ms.tolist()
            self.lane = None
        self.what = what
        self.leases: dict[int, list[str]] = {}
        for receipt, own, until in zip(self.receipts, own_ms, until_ms, strict=True):
            given_ms = lease_ms or own or _given_ms(until - now_ms)
            self.leases.setdefault(given_ms, []).append(receipt)
        self.leased_from(min(until_ms) - min(self.leases))
        self.is_lost = self.is_in_loop = self.is_settled = self.was_cancelled = False
        self.is_late = self.is_given_up = self.is_heard = False
        self.call: Callable[[], Any] | None = None
        self.outcome: Outcome | None = None
        self.result: bytes | None = None
        self.then: Then | None = None
        self.task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self.receipts)

    @property
    def topic(self) -> str:
        """The topic; of a batch, the first."""
        return self.what.topic if isinstance(self.what, Message) else self.what.topics[0]

    @property
    def attempt(self) -> int:
        """The number of this attempt; of a batch, the highest."""
        what = self.what
        return what.attempt if isinstance(what, Message) else int(what.attempt.max())

    def leased_from(self, time_ms: int) -> None:
        """Plan for leases that began at a time."""
        self.ends_at_ms = time_ms + min(self.leases)
        self.touched_at(time_ms)

    def touched_at(self, time_ms: int) -> None:
        """Plan the next touch after a touch at the given time."""
        self.touch_at_ms = time_ms + max(min(self.leases) // 3, 1)

    @property
    def is_cancelled(self) -> bool:
        """Whether other code than its handler has cancelled the task, for good."""
        return self.was_cancelled and self.task is not None and self.task.cancelling() > 0

    def __repr__(self) -> str:
        what = self.what
        return f"{what.topic}/{what.id}" if isinstance(what, Message) else repr(what)


class JobTask(asyncio.Task[None]):
    """The task of a job; it knows whether it was cancelled by others than its own handler."""

    def __init__(self, work: Coroutine[Any, Any, None], job: Job) -> None:
        super().__init__(work, loop=asyncio.get_running_loop())
        self._job = job

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, as asyncio does."""
        # With the loop, asyncio cancels all that is left when no task runs.
        if self is not _current_task(self.get_loop()):
            self._job.was_cancelled = True
        return super().cancel(msg)


def _current_task(loop: asyncio.AbstractEventLoop) -> "asyncio.Task[Any] | None":
    """Return the task that runs in a loop; None without one, or if the loop has ended."""
    try:
        return asyncio.current_task(loop)
    except RuntimeError:
        return None


def _given_ms(left_ms: int) -> int:
    """Return the lease that has ``left_ms`` left when the answer arrives.

    Rounding up adds the time that the answer took, so that jobs of one lease are touched together.
    """
    step_ms = next((step for step in (1_000, 100, 10) if left_ms > 10 * step), 1)
    return max(-(-left_ms // step_ms) * step_ms, 1)
