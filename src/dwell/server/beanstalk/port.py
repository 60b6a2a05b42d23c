"""The port: sockets that speak the beanstalk protocol. It does not interpret their bytes."""

import asyncio
import ssl as tls
from collections.abc import Callable
from functools import partial
from typing import cast

from dwell.server.beanstalk.desk import Desk
from dwell.server.beanstalk.session import Session
from dwell.server.listening import Connection as Accepted
from dwell.server.listening import Listener, address_of, bound
from dwell.server.service import Service
from dwell.server.turns import BUFFER, Turns

#: How many bytes of replies may wait to be read before commands pause.
_MOST_UNREAD_BYTES = 256 * 1024
#: How long the end waits for clients that do not read their last replies.
_GRACE_S = 5.0


class Connection(asyncio.BufferedProtocol, Accepted):
    """One socket, and the session that it carries."""

    __slots__ = ("_port", "_session", "_transport", "_turns", "_unread")

    def __init__(self, port: "BeanstalkPort", turns: Turns) -> None:
        super().__init__()
        self._port = port
        self._turns = turns
        self._unread: Callable[[], None] | None = None
        self._session: Session
        self._transport: asyncio.Transport

    # --- callbacks of the event loop ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a session."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_MOST_UNREAD_BYTES)
        self._session = self._port.joined(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read into."""
        return self._turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the received bytes, when it is the connection's turn."""
        size_bytes = len(self._turns.buffer)
        may_parse = self._turns.may_parse(nbytes)
        self._session.feed(bytes(BUFFER[:nbytes]), is_turn=may_parse)
        if not self.is_let_in and self._session.has_spoken:
            self._port.let_in(self)
        if not may_parse or nbytes == size_bytes:
            self._session.rest(nbytes)

    def eof_received(self) -> bool:
        """Finish the commands; a client that has closed its sending side may still read."""
        self._session.finish()
        # Over TLS the connection ends with the first end that comes.
        return self._transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        """Pause: the other end does not read. The unread bytes count as in flight."""
        size_bytes = self._transport.get_write_buffer_size()
        in_flight = self._port.desk.hall.in_flight
        in_flight.keep(size_bytes)
        self._unread = partial(in_flight.leave, size_bytes)
        self._session.block()

    def resume_writing(self) -> None:
        """Continue: the other end reads again."""
        self._count_out()
        self._session.unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session."""
        self._count_out()
        self._session.end()
        self._port.left(self)

    def _count_out(self) -> None:
        unread, self._unread = self._unread, None
        if unread is not None:
            unread()

    # --- calls of the port and the session -----------------------------------------------------

    @property
    def peer(self) -> str:
        """The address of the other end; empty over a socket in the file system."""
        name = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them to be sent."""
        self._transport.write(data)

    def close(self) -> None:
        """Send the pending bytes, and end the connection."""
        self._transport.close()

    def hold(self, size_bytes: int) -> bool:
        """Note how much is kept that is not done; tell whether that is counted."""
        return self._port.unparsed.note(self, size_bytes)

    def pause_reading(self) -> None:
        """Stop reading; the operating system buffers further bytes."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def stop(self) -> None:
        """Finish the received commands, and end the connection."""
        self._session.stop()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()


class BeanstalkPort:
    """Serves a queue by the beanstalk protocol. ``port`` 0 takes a free port."""

    def __init__(
        self, service: Service, host: str, port: int, *, ssl: tls.SSLContext | None = None
    ) -> None:
        self._service = service
        self.unparsed = service.unparsed
        self.desk = Desk(service)
        self._host, self._port = host, port
        self._ssl = ssl
        self._connections: set[Connection] = set()
        self._address = (host, port)
        self._listener: Listener | None = None
        self._is_stopping = False
        self._empty: asyncio.Event

    @property
    def address(self) -> tuple[str, int]:
        """Its address: the host, and the actual port."""
        return self._address

    async def start(self) -> None:
        """Begin to accept; raises OSError when the address cannot be had."""
        self._empty = asyncio.Event()
        sock = bound(self._host, self._port, self._service.socket_mode)
        self._address = address_of(sock)
        self._listener = Listener(
            sock,
            lambda: Connection(self, self._service.turns),
            lambda: self._service.most_connections,
            self._ssl,
        )
        self._listener.start()

    async def stop(self) -> None:
        """Stop accepting, end every wait, finish the commands, and close every connection."""
        if self._listener is None or self._is_stopping:
            return
        self._is_stopping = True
        await self._listener.close()
        self._empty.clear()
        for connection in list(self._connections):
            connection.stop()
        if self._connections:
            try:
                await asyncio.wait_for(self._empty.wait(), _GRACE_S)
            except TimeoutError:
                await self._abort()
        await self.desk.settled()

    async def _abort(self) -> None:
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()

    def joined(self, connection: Connection) -> Session:
        """Add a connection; after the stop has started, it is closed at once."""
        self._connections.add(connection)
        session = self.desk.welcome(connection)
        if self._is_stopping:
            session.leave()
        return session

    def let_in(self, connection: Connection) -> None:
        """Note that the first bytes of a connection are a command of the protocol."""
        assert self._listener is not None
        self._listener.let_in(connection)

    def left(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        assert self._listener is not None
        self._listener.left(connection)
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
