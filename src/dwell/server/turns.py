"""Turns: how much is parsed in one turn of the event loop, of a connection and of all together."""

import asyncio
from collections import deque
from typing import Protocol

#: How much of one connection is read, and parsed, in one turn; and how much more is parsed in a
#: turn of connections that have used up an earlier one.
TURN_BYTES = 64 * 1024
#: A read of fewer bytes is parsed at once, even if others wait: most requests are smaller.
_SMALL_BYTES = 4 * 1024
#: The least cost of a connection in a turn: refused requests cost more than their bytes.
_LEAST_BYTES = TURN_BYTES // 4
#: The buffer that both ports read into, one read after another.
BUFFER = memoryview(bytearray(TURN_BYTES))
#: How much may wait for its turn before less is read at a time. Each connection that can be read is
#: read once in a turn of the event loop, however many there are.
_MOST_WAITING_BYTES = 8 * 1024 * 1024
_LITTLE = BUFFER[:1024]


class Waiter(Protocol):
    """A connection that waits for its turn."""

    def take_turn(self) -> None:
        """Continue with the bytes read, and read on."""


class Turns:
    """Shares the event loop among connections that send much.

    The connections of all ports share one. A connection that sent too much waits for a turn of its
    own, first in, first out, and neither reads nor parses until then. So a turn of the loop parses
    about 128 KiB, however many connections there are and however much each sends.

    ``buffer`` receives the next read. A read that fills it leaves more to be read.
    """

    def __init__(self) -> None:
        self.buffer = BUFFER
        self._waiting: deque[tuple[Waiter, int]] = deque()
        self._waiting_bytes = 0
        self._parsed_bytes = 0
        self._is_due = False

    def may_parse(self, size_bytes: int) -> bool:
        """Count a read; tell whether it may be parsed in this turn, or its connection has to wait.

        A connection that filled :attr:`buffer` waits afterwards in any case.
        """
        if size_bytes < _SMALL_BYTES:
            return True
        is_first = not self._parsed_bytes
        self._parsed_bytes += size_bytes
        self._call_next()
        return is_first or self._parsed_bytes <= TURN_BYTES

    def wait(self, connection: Waiter, size_bytes: int = 0) -> None:
        """Queue a connection for a later turn; ``size_bytes`` is how much it will parse."""
        size_bytes = max(size_bytes, _LEAST_BYTES)
        self._waiting.append((connection, size_bytes))
        self._waiting_bytes += size_bytes
        if self._waiting_bytes > _MOST_WAITING_BYTES:
            self.buffer = _LITTLE
        self._call_next()

    def _call_next(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        self._parsed_bytes = granted_bytes = 0
        # A connection that waits again waits for another turn of the loop.
        for _ in range(len(self._waiting)):
            connection, size_bytes = self._waiting.popleft()
            self._waiting_bytes -= size_bytes
            if self._waiting_bytes <= _MOST_WAITING_BYTES:
                self.buffer = BUFFER
            connection.take_turn()
            granted_bytes += size_bytes
            if granted_bytes >= TURN_BYTES:
                break
        if self._waiting:
            self._call_next()
