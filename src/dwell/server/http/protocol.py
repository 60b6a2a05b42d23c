"""The protocol: one connection, with bounds on what it may hold and on how long it may take."""

import asyncio
import fcntl
import socket
import sys
import termios
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import is_ssl

from dwell.server.http.connection import Connection
from dwell.server.http.corked import Corked

#: The head of a request: method, path and headers. What comes in one piece is let in.
MAX_HEAD_BYTES = 64 * 1024

#: What is parsed at a time where a head may begin: so no more requests are begun than fit in it
#: before the first one has its answer.
_HEAD_BYTES = 512

#: What came and is not parsed yet, beyond which nothing more is read.
_MOST_HELD_BYTES = 64 * 1024

#: How long a request may take to arrive, from its first byte to its last.
REQUEST_TIMEOUT_S = 60.0

#: How long a connection may be idle. Clients should keep theirs for less.
IDLE_TIMEOUT_S = 120.0

#: How long a client may read nothing of an answer.
UNREAD_TIMEOUT_S = 120.0

#: The answer where a request could not be read for no fault of its own. Made beforehand, as there
#: may be no memory to make it in.
_NO_MEMORY = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\n"
    b"content-length: 0\r\n\r\n"
)


#: Where all connections of a process read into, one after another.
_BUFFER = memoryview(bytearray(64 * 1024))

_UPGRADE = "upgrade: this server speaks HTTP/1.1 only, expected no Upgrade header"


class Protocol(HttpToolsProtocol, asyncio.BufferedProtocol):
    """One connection; who is slower, or sends a larger head, than is allowed is hung up on.

    Nothing is parsed while a request is being answered, and little is read: what a connection may
    hold before it has shown a token is bounded.
    """

    def __init__(self, left: Callable[[asyncio.BaseProtocol], None], **options: Any) -> None:
        super().__init__(**options)
        self.timeout_keep_alive = IDLE_TIMEOUT_S  # type: ignore[assignment]
        self._left = left
        self._is_partial = False
        self._is_head = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._held = b""
        self._at = 0
        self._arriving: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._connection = Connection()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; what is written goes out once in a turn of the event loop."""
        corked = Corked(transport, self.loop)
        self._connection.begin(corked, is_plain=not is_ssl(transport))
        if not is_ssl(transport):
            # An answer is handed over when the system has all of it: so the transport, which keeps
            # what the system does not take, says when it keeps something and when it does no more.
            # Over TLS it would pause for ever, as there it never has less than nothing to write.
            transport.set_write_buffer_limits(high=0)
        super().connection_made(corked)  # type: ignore[arg-type]
        self._note_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers, and end what waits."""
        for timer in (self._arriving, self._unread):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        self._left(self)
        self._connection.lose()
        super().connection_lost(exc)

    # --- what the parser finds ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Count a head from its first byte."""
        self._is_partial = self._is_head = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope["state"]["connection"] = self._connection

    def on_headers_complete(self) -> None:
        """Forget the head, which was small enough; raises ValueError for what is no request."""
        self._is_head = False
        if self.parser.should_upgrade():
            # The parser would take the body for the next request.
            raise ValueError(_UPGRADE)
        sizes = [value for name, value in self.headers if name == b"content-length"]
        self._body_bytes = int(sizes[0]) if sizes else 0
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Count as a head what follows, which may be headers again, until it is a body."""
        self._is_head = True
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        """Note that this is no head."""
        self._is_head = False
        self._body_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that nothing of the request is missing."""
        self._is_partial = self._is_head = False
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None
        super().on_message_complete()

    # --- what arrives -------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read into."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.data_received(bytes(_BUFFER[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take what came, and parse as much as may be answered."""
        held = self._held
        self._held, self._at = held[self._at :] + data if self._at < len(held) else data, 0
        self._proceed()

    def on_response_complete(self) -> None:
        """Go on with what came meanwhile."""
        super().on_response_complete()
        self._proceed()

    def _proceed(self) -> None:
        """Parse what came until a request is whole that has no answer yet."""
        while self._at < len(self._held) and not (self._is_answering or self._is_over):
            begin = self._at
            self._at += max(self._body_bytes if self._is_partial else 0, _HEAD_BYTES)
            self._parse(self._held[begin : self._at])
        if self._is_over or self._at >= len(self._held):
            self._held, self._at = b"", 0
        elif len(self._held) - self._at >= _MOST_HELD_BYTES:
            self.flow.pause_reading()

    @property
    def _is_answering(self) -> bool:
        """Whether a request has come whole and has no answer yet."""
        return bool(self.pipeline) or not (
            self._is_partial or self.cycle is None or self.cycle.response_complete
        )

    @property
    def _is_over(self) -> bool:
        return self.parser is None or self.transport.is_closing()

    def _parse(self, data: bytes) -> None:
        """Give up a request whose head is too large, or which takes too long."""
        if self._is_head:
            self._head_bytes += len(data)
        # What is no part of a request, such as empty lines, makes no connection less idle.
        idle, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if idle is not None and not self._is_partial and not self._is_answering:
            self.timeout_keep_alive_task = idle
        elif idle is not None:
            idle.cancel()
        if not self._is_partial:
            self._note_idle()
        elif self._arriving is None:
            self._arriving = self.loop.call_later(REQUEST_TIMEOUT_S, self._give_up)
        if self._is_head and self._head_bytes > MAX_HEAD_BYTES:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; one for which there was no memory is none of those."""
        error = sys.exception()
        cause = None if error is None else error.__context__
        if isinstance(cause, MemoryError):
            self.transport.write(_NO_MEMORY)
            self.transport.close()
        else:
            super().send_400_response(_UPGRADE if isinstance(cause, ValueError) else msg)

    def _give_up(self) -> None:
        self._arriving = None
        if self.flow.read_paused:
            # The rest cannot come: the request before this one is still being answered.
            self._arriving = self.loop.call_later(REQUEST_TIMEOUT_S, self._give_up)
        else:
            self.transport.close()

    def _note_idle(self) -> None:
        """Hang up in time when no request is under way, as after an answer."""
        if self.timeout_keep_alive_task is None and (
            self.cycle is None or self.cycle.response_complete
        ):
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # --- what is not read ---------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Wait for the client to read, but not for ever."""
        super().pause_writing()
        self._watch(self._unread_bytes())

    def resume_writing(self) -> None:
        """Go on: the client has read, and the system has the rest."""
        self._connection.note_sent()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _watch(self, unread_bytes: int) -> None:
        self._unread = self.loop.call_later(UNREAD_TIMEOUT_S, self._check_reader, unread_bytes)

    def _check_reader(self, before_bytes: int) -> None:
        """Hang up on a client that has read nothing since; a slow one may go on."""
        unread_bytes = self._unread_bytes()
        if unread_bytes < before_bytes:
            self._watch(unread_bytes)
        else:
            self.transport.abort()

    def _unread_bytes(self) -> int:
        """Return what the client's system has not taken yet, of what is written.

        What the transport keeps is not all: it goes on in steps of megabytes.
        """
        return self.transport.get_write_buffer_size() + _queued_bytes(
            self.transport.get_extra_info("socket")
        )


def _queued_bytes(sock: socket.socket) -> int:
    """Return what the system keeps of what a socket was given (Linux: SIOCOUTQ); 0 if unknown."""
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0
