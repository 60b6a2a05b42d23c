"""The queues that a process has open, one for each store; a process that was forked has its own."""

from typing import Any

from dwell.handle import open as open_queue
from dwell.threads.places import Places
from dwell.threads.sync import SyncQueue

_opened: Places[SyncQueue] = Places()
#: The queues of workers that run, which end with them.
_lent: Places[SyncQueue] = Places()


def opened(url: str, options: dict[str, Any]) -> SyncQueue:
    """Return the open queue of this process for a store; raises StoreError and InvalidUrl."""
    if (lent := _lent.of(url, options).value) is not None:
        return lent
    with _opened.of(url, options).opened(lambda: open_queue(url, **options).__enter__()) as queue:
        return queue


def lend(url: str, options: dict[str, Any], queue: SyncQueue) -> None:
    """Use a queue that is already open in this process, as a folder cannot be opened twice."""
    _lent.of(url, options).value = queue


def take_back(url: str, options: dict[str, Any]) -> None:
    """End the use of a queue that was lent: a worker closes its own."""
    _lent.of(url, options).value = None
