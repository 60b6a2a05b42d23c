"""Rounds: what many callers ask at about the same time becomes one call of the store."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Generic, TypeVar

from dwell.message import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES
from dwell.queue.turns import Turn, Turns
from dwell.tasks import whole

K = TypeVar("K", bound=Hashable)
P = TypeVar("P")


class _Round(Turn, Generic[P]):
    """What is asked in one round."""

    __slots__ = ("parts", "size_bytes")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[P] = []
        self.size_bytes = 0


class Rounds(Generic[K, P]):
    """Gathers what is asked by key, and has it done a round at a time when its turn has come.

    ``do(key, parts)`` asks the store and tells every caller, of errors too. ``lose(parts)`` is
    called instead, or after a part of that, when the event loop ends before it is done. A round
    takes no more once it has ``most`` messages.
    """

    def __init__(
        self,
        do: Callable[[K, Sequence[P]], Awaitable[None]],
        lose: Callable[[Sequence[P]], None],
        turns: Turns,
    ) -> None:
        self.most = MAX_BATCH_MESSAGES
        self._do = do
        self._lose = lose
        self._turns = turns
        self._gathering: dict[K, _Round[P]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, key: K, part: P, count: int = 1, size_bytes: int = 0) -> None:
        """Ask for something of ``count`` messages, together with what others ask by that key."""
        gathered = self._gathering.get(key)
        if (
            gathered is None
            or gathered.count + count > self.most
            or gathered.size_bytes + size_bytes > MAX_BATCH_BYTES
        ):
            gathered = self._start(key)
        gathered.parts.append(part)
        gathered.count += count
        gathered.size_bytes += size_bytes
        self._turns.note(gathered)

    @property
    def is_busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._tasks)

    async def settled(self) -> None:
        """Return when nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, key: K) -> _Round[P]:
        """Begin a round, which is complete when all who run in this turn of the loop have run."""
        gathered = self._gathering[key] = _Round()
        task = whole(self._run(key, gathered))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, key, gathered))
        return gathered

    async def _run(self, key: K, gathered: _Round[P]) -> None:
        await self._turns.come(gathered)
        try:
            self._close(key, gathered)
            await self._do(key, gathered.parts)
        finally:
            self._turns.end(gathered)

    def _close(self, key: K, gathered: _Round[P]) -> None:
        if self._gathering.get(key) is gathered:
            del self._gathering[key]

    def _ended(self, key: K, gathered: _Round[P], task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            # Nobody else will answer those that wait.
            self._close(key, gathered)
            self._lose(gathered.parts)
