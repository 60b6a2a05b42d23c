"""Home: the event loop that opened a queue; calls from other loops are refused."""

import asyncio
import os
from threading import get_ident

_forks = [0]


def _note_fork() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_note_fork)


class Home:
    """One event loop, in its thread and its process.

    To ask which loop runs costs a call of the system each time, and this is asked with every verb.
    """

    __slots__ = ("_forks", "_thread", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._thread = get_ident()
        self._forks = _forks[0]

    def check(self) -> None:
        """Raise RuntimeError anywhere else: no answer would come."""
        if get_ident() != self._thread or not self.loop.is_running() or _forks[0] != self._forks:
            raise RuntimeError(
                "the queue was opened in another event loop, and only that may call it"
            )
