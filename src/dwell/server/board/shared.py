"""Shared: results that cost work are computed once for all simultaneous callers."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from dwell.server.board.fairlock import FairLock
from dwell.tasks import whole

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: Of how many different questions the answers are kept.
_MOST_KEPT = 64
#: With this many questions under way, other tasks run after each answer: for this many times the
#: time that it took, up to a bound.
_MANY, _REST, _MOST_REST_S = 5, 3, 0.1
#: How long an answer is kept at most, alone and among many: a slow answer may only have waited for
#: its turn.
_MOST_S, _MOST_OF_MANY_S = 5.0, 60.0


class Shared(Generic[T]):
    """An answer that is kept for ``least_s``, or longer if it took long to compute.

    Every caller in that time gets it. So computing it takes at most ``most_part`` of the time,
    unless that would need more than five seconds.
    """

    def __init__(
        self, find: Callable[[], Awaitable[T]], least_s: float, most_part: float = 0.01
    ) -> None:
        self._find = find
        self._least_s = least_s
        self._most_part = most_part
        self._task: asyncio.Task[T] | None = None
        self._good_until_s = 0.0

    async def get(self) -> T:
        """Return the answer; raises the error of computing it."""
        loop = asyncio.get_running_loop()
        if self._task is None or (self._task.done() and loop.time() >= self._good_until_s):
            self._task = _begun(self._found())
        task = self._task
        await asyncio.wait([task])
        return task.result()

    async def _found(self) -> T:
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            return await self._find()
        finally:
            took_s = loop.time() - start
            holds_s = min(max(self._least_s, took_s / self._most_part), _MOST_S)
            self._good_until_s = loop.time() + holds_s


class SharedBy(Generic[K, T]):
    """Answers to many questions, each shared; the most recently used are kept.

    With more answers each is kept longer, so that all together take the same part of the time.
    Answers are computed one after the other, and other tasks run in between: where many are asked
    for at once, more than can be kept, they take a quarter of the time. Those who ask take turns,
    so that nobody waits for all questions of another.
    """

    def __init__(
        self,
        find: Callable[[K], Awaitable[T]],
        least_s: float,
        most_part: float = 0.01,
        most_kept: int = _MOST_KEPT,
    ) -> None:
        self._find = find
        self._most_kept = most_kept
        self._least_s = least_s
        self._most_part = most_part
        self._kept: OrderedDict[K, tuple[T, float]] = OrderedDict()
        self._under_way: dict[K, asyncio.Task[T]] = {}
        self._turn = FairLock()

    async def get(self, key: K, whose: str = "") -> T:
        """Return the answer to a question of somebody; raises the error of computing it."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(key)
        if kept is not None and loop.time() < kept[1]:
            self._kept.move_to_end(key)
            return kept[0]
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = _begun(self._found(key, whose))
        await asyncio.wait([task])
        return task.result()

    async def _found(self, key: K, whose: str) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with self._turn.held(whose):
                start = loop.time()
                value = await self._find(key)
                took_s = loop.time() - start
                if len(self._under_way) >= _MANY:
                    await asyncio.sleep(min(_REST * took_s, _MOST_REST_S))
        finally:
            del self._under_way[key]
        all_s = took_s * (len(self._kept) + 1)
        holds_s = min(max(self._least_s, all_s / self._most_part), _MOST_OF_MANY_S)
        self._kept[key] = value, loop.time() + holds_s
        self._kept.move_to_end(key)
        while len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)
        return value


def _begun(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work whose result may have no reader: its error is then ignored."""
    task = whole(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
