"""The HTTP port: its address, and its connections."""

import asyncio
import ssl as tls

from dwell.server.http.app import App
from dwell.server.http.ends import Ends
from dwell.server.http.protocol import Protocol
from dwell.server.http.waits import Waits
from dwell.server.listening import Listener, address_of, bound
from dwell.server.service import Service


class HttpPort:
    """Serves a queue over HTTP. ``port`` 0 takes a free port."""

    def __init__(
        self, service: Service, host: str, port: int, *, ssl: tls.SSLContext | None = None
    ) -> None:
        self.waits = Waits()
        self._host, self._port = host, port
        self._service = service
        self._ssl = ssl
        self._ends = Ends(service.tokens, self.waits.check_all)
        self._app = App(service, self.waits)
        self.connections: set[Protocol] = set()
        self._corked: list[Protocol] = []
        self._address = (host, port)
        self._listener: Listener | None = None
        self._empty: asyncio.Event

    @property
    def address(self) -> tuple[str, int]:
        """Its address: the host, and the actual port."""
        return self._address

    async def start(self) -> None:
        """Begin to accept; raises OSError when the address cannot be had."""
        sock = bound(self._host, self._port, self._service.socket_mode)
        self._address = address_of(sock)
        self._empty = asyncio.Event()
        self._empty.set()
        self._listener = Listener(
            sock,
            lambda: Protocol(self._app, self, self._service.turns),
            lambda: self._service.most_connections,
            self._ssl,
        )
        self._listener.start()
        self._ends.start()

    def joined(self, connection: Protocol) -> None:
        """Add a connection; after the stop has started, it is closed at once."""
        self.connections.add(connection)
        self._empty.clear()
        if self.waits.is_over:
            connection.shutdown()

    def let_in(self, connection: Protocol) -> None:
        """Note that a connection has sent a request that it has the right to."""
        assert self._listener is not None
        self._listener.let_in(connection)

    def left(self, connection: Protocol) -> None:
        """Note that a connection is gone; its request may still be running."""
        assert self._listener is not None
        self._listener.left(connection)

    def ended(self, connection: Protocol) -> None:
        """Note that a connection has nothing under way."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def cork(self, protocol: Protocol) -> None:
        """Flush a connection when all answers of this turn of the event loop are made.

        One write wakes a client once, instead of once for each answer.
        """
        if not self._corked:
            asyncio.get_running_loop().call_soon(self._flush)
        self._corked.append(protocol)

    def hold(self, protocol: Protocol, size_bytes: int) -> bool:
        """Note how much it holds that is not answered; tell whether that is counted."""
        return self._service.unparsed.note(protocol, size_bytes)

    def _flush(self) -> None:
        corked, self._corked = self._corked, []
        for protocol in corked:
            protocol.flush()

    async def stop(self) -> None:
        """Stop accepting, end every wait, finish the answers, and close every connection."""
        if self._listener is None or self.waits.is_over:
            return
        self._ends.stop()
        self.waits.end_all()
        try:
            await self._listener.close()
            for connection in list(self.connections):
                connection.shutdown()
            await self._empty.wait()
        except asyncio.CancelledError:
            # The grace period is over: abort, which releases the messages taken for answers.
            for connection in list(self.connections):
                connection.abort()
            await self._empty.wait()
        finally:
            await self.waits.returns.settled()
