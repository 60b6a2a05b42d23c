"""Fair lock: a lock that groups of tasks get in turn, however many tasks wait in each."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Hashable


class FairLock:
    """Is held by one task at a time; the tasks of a group get it in the order of their coming."""

    def __init__(self) -> None:
        self._is_held = False
        #: The waiting tasks of each group; the first group is the next.
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def held(self, group: Hashable) -> AsyncIterator[None]:
        """Hold the lock for the block."""
        if self._is_held:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._pass_on()
                raise
        self._is_held = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            group = next(iter(self._waiting))
            tasks = self._waiting.pop(group)
            turn = tasks.popleft()
            if tasks:
                self._waiting[group] = tasks
            if not turn.done():
                turn.set_result(None)
                return
        self._is_held = False
