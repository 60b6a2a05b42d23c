"""Readers that are waited for: clients that have not read all of an answer, while they read."""

import asyncio

from dwell.server.http.unread import acked_bytes, queued_bytes

#: How long a client may read nothing of an answer.
UNREAD_TIMEOUT_S = 120.0

#: How often it is looked whether an answer over TLS is read, before the connection ends.
_LOOK_S = 0.1


class Watch:
    """Hangs up on a client that reads nothing of what is written; a slow one may go on."""

    __slots__ = ("_timer", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer: asyncio.TimerHandle
        self._wait(self._unread_bytes())

    def cancel(self) -> None:
        """Watch no more."""
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
        """Return what the client's system has not taken yet, of what is written.

        What the transport keeps is not all: it goes on in steps of megabytes.
        """
        return self._transport.get_write_buffer_size() + queued_bytes(
            self._transport.get_extra_info("socket")
        )


class LastAnswer:
    """Closes when the client has read its answer; gives up a client that has read nothing lately.

    Over TLS all of an answer counts as sent, and to close would cut what is not read.
    """

    __slots__ = ("_loop", "_timer", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._look(self._loop.time(), -1)

    def cancel(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, since: float, before_bytes: int) -> None:
        sock, now = self._transport.get_extra_info("socket"), self._loop.time()
        if not queued_bytes(sock):
            return self._transport.close()
        acked = acked_bytes(sock)
        if acked != before_bytes:
            since = now
        if now - since >= UNREAD_TIMEOUT_S:
            return self._transport.abort()
        self._timer = self._loop.call_later(_LOOK_S, self._look, since, acked)
        return None
