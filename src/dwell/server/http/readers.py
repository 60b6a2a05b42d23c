"""Readers that are waited for: clients that have not read all of an answer, while they read."""

import asyncio
from collections.abc import Callable

from dwell.server.http.unread import acked_bytes, is_reset, queued_bytes

#: How long a client may read nothing of an answer.
UNREAD_TIMEOUT_S = 120.0

#: After how long it is first looked whether a last answer was read; each time it is twice as long,
#: up to the second.
_FIRST_LOOK_S, _LOOK_S = 0.001, 0.1


class Watch:
    """Closes the connection of a client that reads nothing; a slow client may go on."""

    __slots__ = ("_timer", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer: asyncio.TimerHandle
        self._wait(self._unread_bytes())

    def cancel(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _wait(self, unread_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(UNREAD_TIMEOUT_S, self._check, unread_bytes)

    def _check(self, before_bytes: int) -> None:
        unread_bytes = self._unread_bytes()
        if unread_bytes < before_bytes:
            self._wait(unread_bytes)
        else:
            self._transport.abort()

    def _unread_bytes(self) -> int:
        """Return how many written bytes the client's system has not acknowledged yet.

        The transport's own buffer is not enough to tell: it empties in steps of megabytes.
        """
        return self._transport.get_write_buffer_size() + queued_bytes(
            self._transport.get_extra_info("socket")
        )


class LastAnswer:
    """Closes when the client has read its answer; gives up a client that has read nothing lately.

    Over TLS all of an answer counts as sent, and closing would cut the unread part. A client that
    has closed its sending side may be gone, which shows when its system resets the connection.
    ``on_read`` is called when the client's system has all of the answer.
    """

    __slots__ = ("_loop", "_on_read", "_timer", "_transport", "_wait_s")

    def __init__(self, transport: asyncio.Transport, on_read: Callable[[], None]) -> None:
        self._transport = transport
        self._on_read = on_read
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._wait_s = _FIRST_LOOK_S
        self._look(self._loop.time(), -1)

    def cancel(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, since: float, before_bytes: int) -> None:
        sock, now = self._transport.get_extra_info("socket"), self._loop.time()
        if is_reset(sock):
            return self._transport.abort()
        if not queued_bytes(sock):
            self._on_read()
            return self._transport.close()
        acked = acked_bytes(sock)
        if acked != before_bytes:
            since = now
        if now - since >= UNREAD_TIMEOUT_S:
            return self._transport.abort()
        self._timer = self._loop.call_later(self._wait_s, self._look, since, acked)
        self._wait_s = min(2 * self._wait_s, _LOOK_S)
        return None
