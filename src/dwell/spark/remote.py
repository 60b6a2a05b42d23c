"""A queue that a long-lived reader keeps open; a copy of it opens the queue again."""

from collections.abc import Callable
from typing import TypeVar

from dwell.errors import ServerUnreachable
from dwell.spark.options import Place
from dwell.threads.sync import SyncQueue

T = TypeVar("T")

#: How often a call without an answer is repeated, in addition to the client's own repeats.
_AGAIN = 3


def again(call: Callable[[], T]) -> T:
    """Return the answer of a call that may be repeated; raises ServerUnreachable."""
    for _ in range(_AGAIN):
        try:
            return call()
        except ServerUnreachable:
            continue
    return call()


class Remote:
    """The queue of a server, opened on first use."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._queue: SyncQueue | None = None

    def __getstate__(self) -> Place:
        return self._place

    def __setstate__(self, place: Place) -> None:
        self.__init__(place)  # type: ignore[misc]

    @property
    def queue(self) -> SyncQueue:
        """The queue."""
        if self._queue is None:
            self._queue = self._place.opened().__enter__()
        return self._queue

    def close(self) -> None:
        """Close it, if it is open."""
        if self._queue is not None:
            self._queue.close()
        self._queue = None
