"""Listening: the socket of a port, and its connections, up to a limit.

A connection is counted from its accept on, so that a TLS handshake that never ends counts as well.
If the process has no file left, or the limit is reached, the log says so.
"""

import asyncio
import contextlib
import logging
import socket
import ssl as tls
from collections.abc import Callable

from dwell.server.allocator import give_back_memory
from dwell.server.unix import PREFIX, UnixSocket

_log = logging.getLogger(__name__)

_BACKLOG = 4096
#: How many connections are accepted in one turn of the event loop.
_AT_ONCE = 64
#: The limits of a TLS handshake and of a TLS shutdown: a client may keep silent, and a stop waits
#: for the end of its connections.
_HANDSHAKE_S, _GOODBYE_S = 10.0, 1.0
#: How many handshakes may run at once; each takes some 60 KiB. A good handshake takes milliseconds,
#: so beyond the limit the oldest is ended.
_MOST_HANDSHAKES = 400
#: How long accepting pauses when the system has no files or memory left.
_REST_S = 1.0
#: When the number of open connections has fallen by this many, their memory is returned to the
#: system after some seconds, so that the last of them have ended.
_FEWER, _GIVE_BACK_S = 1000, 2.0
#: How often, at most, the log says that connections are refused.
_LOG_EVERY_S = 10.0


def bound(host: str, port: int, mode: int) -> socket.socket:
    """Return a socket at an address; raises OSError when that cannot be had.

    A ``host`` that begins with ``unix:`` is the path of a file with that mode. Of others the
    protocol is named, or asyncio would let small answers linger (Nagle's algorithm).
    """
    if host.startswith(PREFIX):
        return UnixSocket(host.removeprefix(PREFIX), mode)
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def address_of(sock: socket.socket) -> tuple[str, int]:
    """Return host and port of a socket that was bound; of one at a path ``unix:PATH`` and 0."""
    name = sock.getsockname()
    return (PREFIX + name, 0) if sock.family == socket.AF_UNIX else name[:2]


class Connection(asyncio.BaseProtocol):
    """The part of a connection that a listener needs.

    ``is_let_in``: it has sent a request that it has the right to.
    """

    __slots__ = ("is_let_in",)

    def __init__(self) -> None:
        self.is_let_in = False

    def abort(self) -> None:
        """End the connection at once."""
        raise NotImplementedError


class Listener:
    """Accepts connections; :meth:`left` reports that a connection is gone.

    A connection is a stranger until it was let in (:meth:`let_in`). At the limit of connections,
    the oldest stranger is closed for a new connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[], Connection],
        most: Callable[[], int],
        ssl: tls.SSLContext | None,
    ) -> None:
        self._socket = sock
        self._make = make
        self._most = most
        self._ssl = ssl
        self._open: set[Connection] = set()
        # The most open connections since memory was returned.
        self._most_open = 0
        # In order of arrival.
        self._strangers: dict[Connection, None] = {}
        # Connections that are not made yet, the oldest first.
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        self._logged_at = -_LOG_EVERY_S
        self._refused = 0
        self._resting: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Begin to accept, in the event loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        self._socket.listen(_BACKLOG)
        self._loop.add_reader(self._socket, self._accept)

    async def close(self) -> None:
        """Stop accepting, and end the handshakes that are under way.

        Connections that were accepted before have joined when this returns.
        """
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for sock in self._tasks.values():
            self._give_up(sock)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def let_in(self, connection: Connection) -> None:
        """Note that a connection is let in."""
        connection.is_let_in = True
        self._strangers.pop(connection, None)

    def left(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        self._open.discard(connection)
        self._strangers.pop(connection, None)
        if len(self._open) <= self._most_open - _FEWER:
            self._most_open = len(self._open)
            self._loop.call_later(_GIVE_BACK_S, give_back_memory)

    # --- inside ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            is_full = len(self._open) >= self._most()
            if is_full and self._tasks and not self._strangers and self._ssl is None:
                # Those that were just accepted are strangers' in a moment.
                return
            try:
                sock, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                # Without files or memory, accepting again at once would only fail again.
                self._say(f"cannot accept connections: {error.strerror}")
                self._loop.remove_reader(self._socket)
                self._resting = self._loop.call_later(_REST_S, self._go_on)
                return
            if is_full:
                self._refused += 1
                self._say(f"{len(self._open)} connections are open, and no more may be")
                if not self._make_room():
                    sock.close()
                    continue
            self._begin(sock)

    def _make_room(self) -> bool:
        """End the oldest connection of a stranger, if there is one."""
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        self.left(oldest)
        oldest.abort()
        return True

    def _go_on(self) -> None:
        self._resting = None
        self._loop.add_reader(self._socket, self._accept)

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        protocol = self._make()
        self._open.add(protocol)
        self._most_open = max(self._most_open, len(self._open))
        task = self._loop.create_task(self._connect(sock, protocol))
        self._tasks[task] = sock
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if len(self._tasks) > _MOST_HANDSHAKES:
            self._give_up(self._tasks.pop(next(iter(self._tasks))))

    def _give_up(self, sock: socket.socket) -> None:
        """Shut down the socket of a handshake. Without TLS a connection is made at once.

        The task is not cancelled: uvloop would not report the end of the connection to a protocol
        that it connected in the same turn.
        """
        if self._ssl is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def _connect(self, sock: socket.socket, protocol: Connection) -> None:
        limits: dict[str, float] = {}
        if self._ssl is not None:
            limits = {"ssl_handshake_timeout": _HANDSHAKE_S, "ssl_shutdown_timeout": _GOODBYE_S}
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=self._ssl, **limits
            )
        except OSError:
            # A failed handshake has no client to report to.
            self.left(protocol)
            sock.close()
            return
        if protocol in self._open and not protocol.is_let_in:
            self._strangers[protocol] = None

    def _say(self, words: str) -> None:
        now = self._loop.time()
        if now >= self._logged_at + _LOG_EVERY_S:
            _log.warning(words, extra={"refused": self._refused})
            self._logged_at, self._refused = now, 0
