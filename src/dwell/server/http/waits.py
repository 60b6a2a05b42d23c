"""Waits: the requests that wait for messages, and how they end."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias, TypeVar

from dwell.errors import DwellError
from dwell.server.http.delivery import Delivery
from dwell.server.http.receipts import Receipts
from dwell.server.http.returns import Returns

T = TypeVar("T")

_MOST_UNDONE = 10_000

#: A waiting request: the name of its token, and its own name. Tokens see only their own waits.
Name: TypeAlias = tuple[str, str]


class Stream:
    """One reader: how much credit is left, and when there is more."""

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self._more = asyncio.Event()

    def add(self, credit: int) -> None:
        """Add credit for further messages."""
        self.credit += credit
        self._more.set()

    async def wait(self, seconds: float) -> None:
        """Return when credit was added, or at the end of a timeout."""
        self._more.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._more.wait(), seconds)


class Undone:
    """The call numbers of takes that repeats have undone, the newest: they may yet arrive."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def add(self, numbers: Iterable[int]) -> None:
        """Add numbers, and drop the oldest if they are too many."""
        self._numbers.update(dict.fromkeys(numbers))
        while len(self._numbers) > _MOST_UNDONE:
            del self._numbers[next(iter(self._numbers))]

    def __contains__(self, number: int) -> bool:
        return number in self._numbers


class Waits:
    """All waiting requests of a port. Each ends with an answer, or when its caller has gone."""

    def __init__(self) -> None:
        self._waiting: set[_Wait] = set()
        self._named: dict[Name, _Wait] = {}
        self.is_over = False
        self.streams: dict[str, Stream] = {}
        self.undone = Undone()
        self.returns = Returns()
        self.receipts = Receipts()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(
        self,
        delivery: Delivery,
        work: Coroutine[Any, Any, T],
        check: Callable[[], None],
        name: Name | None = None,
    ) -> T | None:
        """Return the result of the work, or None if the wait was ended before.

        The work is cancelled when the caller disconnects, when :meth:`end` is called with the name
        of the wait, or when the port stops. It is also cancelled when rights were changed and
        ``check``, which has allowed it, raises; this method then raises the same error.
        """
        task = asyncio.current_task()
        assert task is not None
        wait = _Wait(task, check)
        self._waiting.add(wait)
        if name:
            self._named[name] = wait
        delivery.on_lost = wait.end
        if self.is_over or delivery.is_ended:
            wait.end()
        try:
            return await work
        except asyncio.CancelledError:
            if not wait.is_ended or task.uncancel():
                raise
            check()
            return None
        finally:
            delivery.on_lost = None
            self._waiting.discard(wait)
            if name and self._named.get(name) is wait:
                del self._named[name]

    def end(self, name: Name) -> bool:
        """End the wait of a name; tell whether there was one."""
        found = self._named.get(name)
        if found is not None:
            found.end()
        return found is not None

    def check_all(self) -> None:
        """End the waits of callers whose right has ended."""
        for wait in list(self._waiting):
            try:
                wait.check()
            except DwellError:
                wait.end()

    def end_all(self) -> None:
        """End every wait, and every wait that begins from now on."""
        self.is_over = True
        for wait in list(self._waiting):
            wait.end()


class _Wait:
    """One request that waits, in the task that answers it."""

    __slots__ = ("_task", "check", "is_ended")

    def __init__(self, task: "asyncio.Task[Any]", check: Callable[[], None]) -> None:
        self._task = task
        self.check = check
        self.is_ended = False

    def end(self) -> None:
        """End the wait without an answer."""
        if not self.is_ended:
            self.is_ended = True
            self._task.cancel()
