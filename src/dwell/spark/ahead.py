"""Pages that are fetched while the previous page is in use."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

P = TypeVar("P")


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
