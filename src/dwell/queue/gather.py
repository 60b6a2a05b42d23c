"""Gathering: calls that coroutines make in one turn of the event loop become one batch."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from dwell.errors import DwellError, StoreClosed
from dwell.message import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES
from dwell.queue.home import Home
from dwell.queue.turns import ENOUGH, Turns
from dwell.tasks import whole

K = TypeVar("K")
I = TypeVar("I")  # noqa: E741 - an item, beside K for its key and A for its answer
A = TypeVar("A")


class _Group(Generic[I, A]):
    """The calls of one batch: what each gave, and where each waits for its answer."""

    __slots__ = ("count", "futures", "items", "size_bytes", "turn")

    def __init__(self) -> None:
        self.items: list[I] = []
        self.futures: list[asyncio.Future[A]] = []
        self.size_bytes = 0
        self.count = 0
        self.turn: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Let it run, if it waits for its turn."""
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)


class Partly(Exception):
    """Some of a batch are done; ``answers`` has None for each item that is to be run again."""

    def __init__(self, answers: Sequence[object]) -> None:
        self.answers = answers


class Gatherer(Generic[K, I, A]):
    """Collects the calls of one verb by key and runs each key's as one batch.

    ``run(key, items)`` answers one value an item, or an error for its caller. Errors of the classes
    ``alone`` belong to one caller: the batch changed nothing, and is run again in halves, until who
    it belongs to is alone. Any other error is everybody's. A batch takes no more items once it has
    ``most`` messages, and begins when it is its turn.
    """

    def __init__(
        self,
        run: Callable[[K, Sequence[I]], Awaitable[Sequence[A]]],
        turns: Turns,
        alone: tuple[type[DwellError], ...] = (),
    ) -> None:
        self.most = MAX_BATCH_MESSAGES
        self._run = run
        self._turns = turns
        self._alone = alone
        self._groups: dict[K, _Group[I, A]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._home: Home | None = None

    def open(self, home: Home) -> None:
        """Take calls, in this event loop."""
        self._home = home

    async def close(self) -> None:
        """Take no more calls; those that were made get their answers first."""
        self._home = None
        if self._tasks:
            await asyncio.wait(self._tasks)

    def call(self, key: K, item: I, size_bytes: int = 0, count: int = 1) -> "asyncio.Future[A]":
        """Add one item, of ``count`` messages, to its batch; return where its answer will be."""
        home = self._home
        if home is None:
            raise StoreClosed("the queue is not open")
        home.check()
        group = self._groups.get(key)
        if (
            group is None
            or group.count + count > self.most
            or group.size_bytes + size_bytes > MAX_BATCH_BYTES
        ):
            group = self._start(key, home.loop)
        future: asyncio.Future[A] = home.loop.create_future()
        group.items.append(item)
        group.futures.append(future)
        group.size_bytes += size_bytes
        group.count += count
        if group.count >= ENOUGH:
            group.begin()
        return future

    def _start(self, key: K, loop: asyncio.AbstractEventLoop) -> _Group[I, A]:
        """Begin a group, which is complete when all who run in this turn of the loop have run."""
        group: _Group[I, A] = _Group()
        self._groups[key] = group
        task = whole(self._run_in_turn(key, group, loop))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, key, group))
        return group

    def _ended(self, key: K, group: _Group[I, A], task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            # Nobody else will answer those that wait.
            self._close_group(key, group)
            for future in group.futures:
                future.cancel()

    def _close_group(self, key: K, group: _Group[I, A]) -> None:
        if self._groups.get(key) is group:
            del self._groups[key]

    async def _run_in_turn(
        self, key: K, group: _Group[I, A], loop: asyncio.AbstractEventLoop
    ) -> None:
        if group.count < ENOUGH and not self._turns.is_free:
            group.turn = loop.create_future()
            self._turns.wait(group.begin)
            await group.turn
        with self._turns.taken(group.count):
            await self._run_group(key, group)

    async def _run_group(self, key: K, group: _Group[I, A]) -> None:
        self._close_group(key, group)
        items, futures = group.items, group.futures
        if any(future.done() for future in futures):
            # Who was cancelled before the batch started is left out of it.
            live = [pair for pair in zip(items, futures, strict=True) if not pair[1].done()]
            items, futures = [item for item, _ in live], [future for _, future in live]
        if items:
            await self._answer(key, items, futures)

    async def _answer(
        self, key: K, items: Sequence[I], futures: Sequence["asyncio.Future[A]"]
    ) -> None:
        try:
            answers = await self._run(key, items)
        except self._alone as error:
            if len(items) == 1:
                return fail(futures, error)
            half = len(items) // 2
            await self._answer(key, items[:half], futures[:half])
            await self._answer(key, items[half:], futures[half:])
        except Partly as partly:
            await self._go_on(key, items, futures, partly.answers)
        except Exception as error:
            fail(futures, error)
        else:
            _tell(futures, answers)
        return None

    async def _go_on(
        self,
        key: K,
        items: Sequence[I],
        futures: Sequence["asyncio.Future[A]"],
        answers: Sequence[Any],
    ) -> None:
        """Tell those that are done, and run the others again, each by itself."""
        for item, future, answer in zip(items, futures, answers, strict=True):
            if answer is None:
                await self._answer(key, [item], [future])
            else:
                _tell([future], [answer])


def _tell(futures: Sequence["asyncio.Future[A]"], answers: Sequence[A | Exception]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if isinstance(answer, Exception):
            fail([future], answer)
        elif not future.done():
            future.set_result(answer)


def fail(futures: Sequence["asyncio.Future[A]"], error: Exception) -> None:
    """Give each waiting caller an error of its own, since raising one writes to its traceback."""
    for future in futures:
        if not future.done():
            own = copy.copy(error).with_traceback(error.__traceback__)
            own.__cause__ = error.__cause__
            future.set_exception(own)
