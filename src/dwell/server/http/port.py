"""The HTTP port: the sockets, by uvicorn."""

import asyncio
import contextlib
import socket
import ssl as tls
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from dwell.server.http.app import App
from dwell.server.http.protocol import Protocol
from dwell.server.http.waits import Waits
from dwell.server.listening import bound
from dwell.server.service import Service

#: How soon a port that stops looks again whether all answers are given.
_STOP_POLL_S = 0.01


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers, which the process has already, and without its polls."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Let :meth:`serve` come to its end."""
        self.should_exit = True
        self._stop.set()

    async def main_loop(self) -> None:
        """Wait for the end; once a second the header with the date is made anew."""
        seconds = 0
        while not await self.on_tick(10 * seconds):
            seconds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and return when every connection has had its answers."""
        for listener in self.servers:
            listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while state.connections or state.tasks:
            await asyncio.sleep(_STOP_POLL_S)
        for listener in self.servers:
            await listener.wait_closed()

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
        self._most_connections = service.most_connections
        self._ssl = ssl
        self._app = App(service, self._waits)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._sockets: list[socket.socket] = []

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: host, and the port that it was given."""
        found: Any = self._sockets[0].getsockname()
        return found[0], found[1]

    async def start(self) -> None:
        """Begin to accept; raises OSError when the address cannot be had."""
        self._sockets = [bound(self._host, self._port)]
        config = uvicorn.Config(
            self._app,
            http=partial(Protocol, self._most_connections),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            date_header=True,
            backlog=4096,
        )
        config.load()
        config.ssl = self._ssl
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(self._sockets))
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
        for listener in self._sockets:
            listener.close()
        self._server = None
