"""The stores that the connections of a process share, each open once."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from dwell.celery.upkeep import Upkeep
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


class _Links:
    """The links of this process by URL, without the links of the process that forked it."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[tuple[str, str], Link] = {}

    def acquire(self, url: str, options: dict[str, Any]) -> Link:
        key = (url, repr(sorted(options.items())))
        with self._lock:
            link = self._links.get(key)
            if link is None:
                link = self._links[key] = Link(url, options)
            link.users += 1
            return link

    def release(self, link: Link) -> None:
        with self._lock:
            link.users -= 1
            # A store in memory would be lost with its last connection.
            names = [key for key, known in self._links.items() if known is link]
            if link.users or not names or names[0][0].startswith("memory:"):
                return
            del self._links[names[0]]
            link.close()


_links = _Links()


def acquire(url: str, options: dict[str, Any]) -> Link:
    """Return the link of this process to a URL; raises StoreError and InvalidUrl."""
    return _links.acquire(url, options)


def release(link: Link) -> None:
    """Give a link back; the last who does closes it."""
    _links.release(link)
