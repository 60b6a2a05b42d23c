"""The stores that the connections of a process share, each open once."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from dwell.celery.upkeep import Upkeep
from dwell.errors import StoreError
from dwell.handle import open as open_queue
from dwell.queue import Queue
from dwell.threads.bridge import LoopThread

P = ParamSpec("P")
T = TypeVar("T")

#: The text that kombu writes after ``dwell+`` for a store without a host.
_MEMORY = "memory://"


class Link:
    """An open queue and the thread of its event loop, for all connections to one URL.

    Raises StoreError if the store cannot be opened, and InvalidUrl.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.queue = Queue(open_queue("memory:" if url == _MEMORY else url, **options).store)
        self._thread = LoopThread()
        try:
            self._thread.run(self.queue.open)
        except BaseException:
            self._thread.close()
            raise
        self.upkeep = Upkeep(self.queue)
        self.users = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the queue, in a thread of its own."""
        return self._thread.loop

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the process that opened it."""
        return self._thread.is_elsewhere

    def run(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of a coroutine in the loop of the queue; raises StoreError."""
        return self._thread.run(function, *args, **kwargs)

    def close(self) -> None:
        """Close the queue, unless this is another process."""
        if self.is_elsewhere:
            return
        try:
            self.run(self.upkeep.stop)
            self.run(self.queue.close)
        finally:
            self._thread.close()


class _Place:
    """The place of the link to one store, under a lock of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.link: Link | None = None
        #: How often opening it has failed, and why the last time.
        self.failures = 0
        self.error = StoreError("no store was opened yet")


class _Links:
    """The links of this process by URL, without the links of the process that forked it.

    A store that is away holds up its own users alone, and tells all that wait for it at once.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[tuple[str, str], _Place] = {}

    def acquire(self, url: str, options: dict[str, Any]) -> Link:
        key = (url, repr(sorted(options.items())))
        with self._lock:
            place = self._places.setdefault(key, _Place())
        failures = place.failures
        with place.lock:
            if place.link is None:
                if place.failures != failures:
                    raise place.error
                try:
                    place.link = Link(url, options)
                except StoreError as error:
                    place.failures, place.error = place.failures + 1, error
                    raise
            place.link.users += 1
            return place.link

    def release(self, link: Link) -> None:
        with self._lock:
            pairs = [(key, place) for key, place in self._places.items() if place.link is link]
        for (url, _), place in pairs:
            with place.lock:
                link.users -= 1
                # A store in memory would be lost with its last connection.
                if not link.users and not url.startswith("memory:"):
                    place.link = None
                    link.close()


_links = _Links()


def acquire(url: str, options: dict[str, Any]) -> Link:
    """Return the link of this process to a URL; raises StoreError and InvalidUrl."""
    return _links.acquire(url, options)


def release(link: Link) -> None:
    """Give a link back; the last who does closes it."""
    _links.release(link)
