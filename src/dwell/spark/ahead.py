"""What is fetched ahead, while the previous part is in use."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741 - an item
P = TypeVar("P")


class Ahead(Generic[P]):
    """At most one call at a time, in a thread of its own until its result is asked for.

    A copy has no call: it is for another process.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._asked: Future[P] | None = None

    def __reduce__(self) -> tuple[type["Ahead[P]"], tuple[()]]:
        return type(self), ()

    def start(self, call: Callable[[], P]) -> None:
        """Start a call; the result of an earlier one must have been asked for."""
        assert self._asked is None, "a call was started before the result of the last was used"
        self._thread = self._thread or ThreadPoolExecutor(1)
        self._asked = self._thread.submit(call)

    def result(self) -> P | None:
        """Wait for the call and return its result, None if there is no call; raises its error."""
        asked, self._asked = self._asked, None
        return None if asked is None else asked.result()


def each(fetch: Callable[[I], P], items: Iterable[I]) -> Iterator[P]:
    """Yield what is fetched for each item; the next one is fetched while one is in use."""
    with ThreadPoolExecutor(1) as thread:
        before: Future[P] | None = None
        for item in items:
            asked = thread.submit(fetch, item)
            if before is not None:
                yield before.result()
            before = asked
        if before is not None:
            yield before.result()


def pages(
    fetch: Callable[[int], P], following: Callable[[P], int | None], start: int
) -> Iterator[P]:
    """Yield page after page from ``start`` on; ``following`` returns the start of the next."""
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(fetch, start)
        while True:
            page = asked.result()
            place = following(page)
            if place is None:
                yield page
                return
            asked = thread.submit(fetch, place)
            yield page
