"""Turns: when small calls of the store begin, so that they become few and larger ones.

A call of a store that syncs costs as much as a hundred messages in it. While one is under way the
calls that come gather, and begin together when it has ended; those of one turn of the event loop
begin together in any case, and a queue that nobody else uses waits for nobody. Large calls begin at
once, so that the disk has work while the next one is made.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: A call of so many messages needs no company.
ENOUGH = 128


class Turns:
    """Counts the small calls that are under way, ``most`` turns of them at a time."""

    def __init__(self) -> None:
        self.most = 1
        self._is_turn = False
        self._under_way = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_free(self) -> bool:
        """Whether a small call may begin: in the turn of one that has, or as there are few."""
        return self._is_turn or self._under_way < self.most

    def wait(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` when those that are under way have ended."""
        self._waiting.append(begin)

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Count a call of so many messages while it is under way, if that is small."""
        is_small = count < ENOUGH
        self._under_way += is_small
        if is_small and not self._is_turn:
            self._is_turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        try:
            yield
        finally:
            self._under_way -= is_small
            if self._waiting and self._under_way < self.most:
                waiting, self._waiting = self._waiting, []
                for begin in waiting:
                    begin()

    def _end_turn(self) -> None:
        self._is_turn = False
