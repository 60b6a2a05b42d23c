"""The stores that the connections of a process share, each open once."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

from dwell.celery.upkeep import Upkeep
from dwell.handle import open as open_queue
from dwell.queue import Queue
from dwell.threads.bridge import LoopThread
from dwell.threads.places import Places

P = ParamSpec("P")
T = TypeVar("T")

#: The text that kombu writes after ``dwell+`` for a store without a host.
_MEMORY = "memory://"


class Link:
    """An open queue and the thread of its event loop, for all connections to one URL.

    Raises StoreError if the store cannot be opened, and InvalidUrl.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url, self.options = url, options
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


_links: Places[Link] = Places()


def acquire(url: str, options: dict[str, Any]) -> Link:
    """Return the link of this process to a URL; raises StoreError and InvalidUrl."""
    with _links.of(url, options).opened(partial(Link, url, options)) as link:
        link.users += 1
        return link


def release(link: Link) -> None:
    """Give a link back; the last who does closes it."""
    place = _links.of(link.url, link.options)
    with place.lock:
        # The place of a process that was forked is empty.
        if place.value is not link:
            return
        link.users -= 1
        # A store in memory would be lost with its last connection.
        if not link.users and not link.url.startswith("memory:"):
            place.value = None
            link.close()
