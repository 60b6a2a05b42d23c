"""Gathering: calls that are made at about the same time become one batch, a call of the store."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from dwell.errors import DwellError, StoreClosed
from dwell.message import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, U64
from dwell.queue.calling import calling_now
from dwell.queue.home import Home
from dwell.queue.turns import Turn, Turns
from dwell.tasks import whole

K = TypeVar("K", bound=Hashable)
I = TypeVar("I")  # noqa: E741 - an item; K is its key and A its answer
A = TypeVar("A")
P = TypeVar("P")


# --- rounds: requests that are made together --------------------------------------------------


class _Round(Turn, Generic[P]):
    """The requests of one round."""

    __slots__ = ("parts", "size_bytes")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[P] = []
        self.size_bytes = 0


class Rounds(Generic[K, P]):
    """Gathers requests by key, and runs them a round at a time when their turn comes.

    ``do(key, parts)`` calls the store and answers every caller, also with errors. If the event loop
    ends before ``do`` has, ``lose(parts)`` is called. A round accepts no further requests once it
    has ``most`` messages.
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

    def add(
        self, key: K, part: P, count: int = 1, size_bytes: int = 0, *, is_alone: bool = False
    ) -> None:
        """Add a request about ``count`` messages to the round of its key.

        A request that ``is_alone`` gets a round of its own.
        """
        gathered = self._gathering.get(key)
        if (
            gathered is None
            or is_alone
            or gathered.count + count > self.most
            or gathered.size_bytes + size_bytes > MAX_BATCH_BYTES
        ):
            gathered = self._start(key)
            if is_alone:
                self._close(key, gathered)
        gathered.parts.append(part)
        gathered.count += count
        gathered.size_bytes += size_bytes
        self._turns.note(gathered)

    @property
    def is_busy(self) -> bool:
        """Whether a round is running or gathering."""
        return bool(self._tasks)

    async def settled(self) -> None:
        """Return when no round is running or gathering."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, key: K) -> _Round[P]:
        """Begin a round, which gathers at least for the current turn of the event loop."""
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
            # No other code answers the waiting callers.
            self._close(key, gathered)
            self._lose(gathered.parts)


# --- calls: requests that each have an answer -------------------------------------------------


class Partly(Exception):
    """Some of a batch are done; ``answers`` has None for each item that is to be run again."""

    def __init__(self, answers: Sequence[object]) -> None:
        self.answers = answers


#: An item, the future of its answer, and how many messages it has, with their call numbers: an int
#: for one message, or 0 without numbers.
_Part: TypeAlias = tuple[I, asyncio.Future[A], int, int | U64]


class Gatherer(Generic[K, I, A]):
    """Collects the calls of one verb by key and runs each key's round as one batch.

    ``run(key, items)`` returns one value an item, or an error for its caller. If messages have call
    numbers, it also gets ``calls``, an array with one for each message. Errors of the classes
    ``alone`` belong to one caller: the batch changed nothing, and is run again in halves, until
    that caller is alone. Of a batch that was done in part, ``run`` raises Partly. Any other error
    is raised to every caller. Calls for which ``away_of`` returns different numbers are not joined.
    """

    def __init__(
        self,
        run: Callable[..., Awaitable[Sequence[Any]]],
        turns: Turns,
        alone: tuple[type[DwellError], ...] = (),
        away_of: Callable[[I], int] = lambda _: 0,
    ) -> None:
        self._run = run
        self._alone = alone
        self._away_of = away_of
        self._rounds: Rounds[tuple[K, int], _Part[I, A]] = Rounds(self._do, _lose, turns)
        self._home: Home | None = None

    def open(self, home: Home, most: int) -> None:
        """Take calls, in this event loop; a batch has ``most`` messages at most."""
        self._home = home
        self._rounds.most = most

    async def close(self) -> None:
        """Refuse further calls, and wait until every earlier call has its answer."""
        self._home = None
        await self._rounds.settled()

    def call(self, key: K, item: I, size_bytes: int = 0, count: int = 1) -> "asyncio.Future[A]":
        """Add one item, of ``count`` messages, to its batch; return where its answer will be."""
        home = self._home
        if home is None:
            raise StoreClosed("the queue is not open")
        home.check()
        future: asyncio.Future[A] = home.loop.create_future()
        calling = calling_now()
        calls = 0 if calling is None else calling.numbers(count)
        # A repeat must not be in one batch with the request that it repeats.
        is_alone = calling is not None and calling.is_again
        part = (item, future, count, calls)
        self._rounds.add((key, self._away_of(item)), part, count, size_bytes, is_alone=is_alone)
        return future

    async def _do(self, where: tuple[K, int], parts: Sequence[_Part[I, A]]) -> None:
        # Leaves out calls that were cancelled before the batch started.
        live = [part for part in parts if not part[1].done()]
        if live:
            await self._answer(where[0], live)

    async def _answer(self, key: K, parts: Sequence[_Part[I, A]]) -> None:
        items, futures, counts, calls = zip(*parts, strict=True)
        try:
            answers = await self._run(key, items, **_joined(counts, calls))
        except self._alone as error:
            if len(items) == 1 or error.is_partly:
                return fail(futures, error)
            half = len(items) // 2
            await self._answer(key, parts[:half])
            await self._answer(key, parts[half:])
        except Partly as partly:
            await self._go_on(key, parts, partly.answers)
        except Exception as error:
            fail(futures, error)
        else:
            _tell(futures, answers)
        return None

    async def _go_on(self, key: K, parts: Sequence[_Part[I, A]], answers: Sequence[Any]) -> None:
        """Answer the finished calls, and run each of the others again in its own batch."""
        for part, answer in zip(parts, answers, strict=True):
            if answer is None:
                await self._answer(key, [part])
            else:
                _tell([part[1]], [answer])


def _joined(counts: Sequence[int], calls: Sequence[int | U64]) -> dict[str, U64]:
    """Return the call numbers as arguments of a batch: empty if no message has a number."""
    if all(isinstance(own, int) for own in calls):
        return {"calls": np.repeat(np.array(calls, np.uint64), counts)} if any(calls) else {}
    each = zip(counts, calls, strict=True)
    return {
        "calls": np.concatenate([np.broadcast_to(np.uint64(own), count) for count, own in each])
    }


def _tell(futures: Sequence["asyncio.Future[A]"], answers: Sequence[A | Exception]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if isinstance(answer, Exception):
            fail([future], answer)
        elif not future.done():
            future.set_result(answer)


def _lose(parts: Sequence[_Part[Any, Any]]) -> None:
    for _, future, *_ in parts:
        future.cancel()


def fail(futures: Sequence["asyncio.Future[A]"], error: Exception) -> None:
    """Give each waiting caller an error of its own, since raising one writes to its traceback."""
    for future in futures:
        if not future.done():
            future.set_exception(_copy_of(error))


def _copy_of(error: Exception) -> Exception:
    try:
        own = copy.copy(error).with_traceback(error.__traceback__)
    except Exception:
        # Not every error class can be copied from its arguments, and no caller may wait for ever.
        return error
    own.__cause__ = error.__cause__
    return own
