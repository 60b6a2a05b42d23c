"""Pages that are fetched while the one before is being used."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

P = TypeVar("P")


def pages(
    fetch: Callable[[int], P], following: Callable[[P], int | None], start: int
) -> Iterator[P]:
    """Yield page after page from ``start`` on; ``following`` says where the next one begins."""
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
