"""The request that is being answered, which numbers its calls of the store."""

import asyncio
from contextvars import ContextVar
from typing import Any

import numpy as np

from dwell.batch.calls import AGAIN, numbers_of
from dwell.message import U64


class Calling:
    """The numbers of one request's messages, assigned one after another.

    ``first`` is the number that came with the request. The handler of a repeat must ask for
    the same numbers in the same order, also for messages that the first request has changed.
    """

    __slots__ = ("_next", "_which", "is_again")

    def __init__(self, first: int, *, is_again: bool) -> None:
        self._next = first
        self._which: np.ndarray | None = None
        self.is_again = is_again

    @property
    def following(self) -> int:
        """The number of the next message, without the mark of a repeat."""
        return self._next

    def skip(self, which: np.ndarray) -> None:
        """Give the next numbers to some messages of a batch only, those where ``which`` is true."""
        self._which = which

    def coming(self, count: int) -> U64:
        """Return the numbers of the next ``count`` messages, with the mark of a repeat."""
        numbers = numbers_of(self._next, count)
        return numbers | np.uint64(AGAIN) if self.is_again else numbers

    def numbers(self, count: int) -> int | U64:
        """Give out the numbers of the next messages, with the mark of a repeat; an int for one."""
        which, self._which = self._which, None
        if which is None and count == 1:
            number, self._next = self._next, self._next + 1
            return number | AGAIN if self.is_again else number
        numbers = self.coming(count if which is None else len(which))
        self._next += len(numbers)
        return numbers if which is None else numbers[which]


#: The request that a task answers, and that task. Other tasks may inherit the value, and the loop
#: runs callbacks of one request in the context of another, so the task has to be the running one.
_CALLING: ContextVar[tuple[Calling | None, "asyncio.Task[Any] | None"]] = ContextVar(
    "calling", default=(None, None)
)


def begin(calling: Calling | None) -> None:
    """Set the request whose call numbers the running task uses; None clears it."""
    _CALLING.set((calling, asyncio.current_task()))


def calling_now() -> Calling | None:
    """Return the numbers of the request that the running task answers; None if it has none."""
    calling, task = _CALLING.get()
    return calling if calling is not None and task is asyncio.current_task() else None


def numbered(count: int) -> dict[str, U64]:
    """Return the arguments of a store verb for call numbers; empty without a request."""
    calling = calling_now()
    return {} if calling is None else {"calls": np.atleast_1d(np.uint64(calling.numbers(count)))}
