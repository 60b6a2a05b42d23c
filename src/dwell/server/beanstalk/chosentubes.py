"""Chosen tubes: tubes that connections use or watch, counted when they are chosen."""

from collections import Counter
from collections.abc import Iterator

from dwell.server.beanstalk.tubes import DEFAULT_TUBE


class ChosenTubes:
    """How many connections use or watch each tube; the default one is there without any."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __contains__(self, tube: str) -> bool:
        return tube == DEFAULT_TUBE or tube in self._counts

    def __iter__(self) -> Iterator[str]:
        yield DEFAULT_TUBE
        yield from self._counts

    def add(self, tube: str) -> None:
        """Note that a connection has chosen a tube."""
        if tube != DEFAULT_TUBE:
            self._counts[tube] += 1

    def drop(self, tube: str) -> None:
        """Note that a connection has given up its choice of a tube."""
        if tube != DEFAULT_TUBE:
            self._counts[tube] -= 1
            if not self._counts[tube]:
                del self._counts[tube]
