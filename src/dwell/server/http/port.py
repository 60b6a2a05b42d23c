"""The HTTP port: the sockets, by uvicorn."""

import asyncio
import contextlib
import socket
import ssl as tls
from collections.abc import Iterator

import uvicorn

from dwell.server.http.app import App
from dwell.server.http.protocol import Protocol
from dwell.server.http.waits import Waits
from dwell.server.listening import Listener, bound
from dwell.server.service import Service

#: How soon a port that stops looks again whether all answers are given.
_STOP_POLL_S = 0.01


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers, which the process has already, and without its polls."""

    def __init__(self, config: uvicorn.Config, service: Service, sock: socket.socket) -> None:
        super().__init__(config)
        self._stop = asyncio.Event()
        self._listener = Listener(
            sock, self._make_protocol, lambda: service.most_connections, config.ssl
        )

    def stop(self) -> None:
        """Let :meth:`serve` come to its end."""
        self.should_exit = True
        self._stop.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, with connections counted from the first moment on."""
        await self.lifespan.startup()
        self._listener.start()
        self.started = True

    def _make_protocol(self) -> Protocol:
        return Protocol(
            self._listener.left,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def main_loop(self) -> None:
        """Wait for the end; once a second the header with the date is made anew."""
        seconds = 0
        while not await self.on_tick(10 * seconds):
            seconds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and return when every connection has had its answers."""
        self._listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while state.connections or state.tasks:
            await asyncio.sleep(_STOP_POLL_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


class HttpPort:
    """Serves a queue over HTTP. ``port`` 0 takes one that is free."""

    def __init__(
        self, service: Service, host: str, port: int, *, ssl: tls.SSLContext | None = None
    ) -> None:
        self._waits = Waits()
        self._host, self._port = host, port
        self._service = service
        self._ssl = ssl
        self._app = App(service, self._waits)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._address = (host, port)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: host, and the port that it was given."""
        return self._address

    async def start(self) -> None:
        """Begin to accept; raises OSError when the address cannot be had."""
        sock = bound(self._host, self._port)
        self._address = sock.getsockname()[:2]
        config = uvicorn.Config(
            self._app,
            http=Protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            date_header=True,
        )
        config.load()
        config.ssl = self._ssl
        self._server = _Server(config, self._service, sock)
        self._task = asyncio.get_running_loop().create_task(self._server.serve())
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError("the HTTP server ended at once")
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Accept no more, end every wait, answer what was asked, and close every connection."""
        if self._server is None or self._task is None:
            return
        self._waits.end_all()
        self._server.stop()
        await self._task
        await self._waits.returns.settled()
        self._server = None
