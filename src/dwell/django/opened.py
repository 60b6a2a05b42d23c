"""The queues that a process has open, one for each store; a process that was forked has its own."""

import os
import threading
from concurrent.futures import Future
from typing import Any

from dwell.errors import StoreError
from dwell.handle import open as open_queue
from dwell.threads.sync import SyncQueue


class _Opened:
    """The open queues by URL and options."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, str], Future[SyncQueue]] = {}
        #: The queues of workers that run, which end with them.
        self._lent: dict[tuple[str, str], SyncQueue] = {}

    def lend(self, url: str, options: dict[str, Any], queue: SyncQueue) -> None:
        self._lent[_key(url, options)] = queue

    def take_back(self, url: str, options: dict[str, Any]) -> None:
        self._lent.pop(_key(url, options), None)

    def get(self, url: str, options: dict[str, Any]) -> SyncQueue:
        key = _key(url, options)
        if (lent := self._lent.get(key)) is not None:
            return lent
        # A store that is away holds up its own users alone, and tells all that wait for it at once.
        with self._lock:
            queue = self._queues.get(key)
            is_first = queue is None
            if queue is None:
                queue = self._queues[key] = Future()
        if is_first:
            try:
                queue.set_result(open_queue(url, **options).__enter__())
            except BaseException as error:
                del self._queues[key]
                is_told = isinstance(error, Exception)
                queue.set_exception(error if is_told else StoreError("its opening was interrupted"))
                raise
        return queue.result()


def _key(url: str, options: dict[str, Any]) -> tuple[str, str]:
    return url, repr(sorted(options.items()))


_opened = _Opened()


def opened(url: str, options: dict[str, Any]) -> SyncQueue:
    """Return the open queue of this process for a store; raises StoreError and InvalidUrl."""
    return _opened.get(url, options)


def lend(url: str, options: dict[str, Any], queue: SyncQueue) -> None:
    """Use a queue that is already open in this process, as a folder cannot be opened twice."""
    _opened.lend(url, options, queue)


def take_back(url: str, options: dict[str, Any]) -> None:
    """End the use of a queue that was lent: a worker closes its own."""
    _opened.take_back(url, options)
