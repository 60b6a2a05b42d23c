"""The admin socket: the way into a folder that a program has open, for the command line.

Only one process can open a folder. A program that opens it by ``dwell.open("./data",
admin_socket=True)`` also serves it over HTTP, at a socket in the folder that only its own user can
connect to. ``dwell --store ./data stats`` and other commands then use that socket.
"""

from dwell.errors import InvalidUrl
from dwell.queue import Queue
from dwell.server.hosts import Hosts
from dwell.server.http.port import HttpPort
from dwell.server.inflight import InFlight
from dwell.server.memory import Memory
from dwell.server.service import Service
from dwell.server.settings import ServerSettings
from dwell.server.tokens import Tokens
from dwell.server.unix import PREFIX
from dwell.store.base import Store
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.folder import socket_path

#: Its callers are commands of one user.
_MOST_CONNECTIONS = 100


class AdmittingQueue(Queue):
    """A queue over a folder that has an admin socket while it is open."""

    def __init__(self, store: Store) -> None:
        """Make a queue that is not open; raises InvalidUrl if the store is not a folder."""
        if not isinstance(store, EmbeddedStore):
            raise InvalidUrl("admin_socket: only a folder has one, others are reached by their URL")
        super().__init__(store)
        self._core = store.core
        self._port: HttpPort | None = None

    async def open(self) -> None:
        """Open the store and the socket; raises StoreError, or OSError for the socket."""
        await super().open()
        try:
            self._port = await self._started()
        except BaseException:
            await super().close()
            raise

    async def close(self) -> None:
        """Finish the requests of the socket, and close the queue."""
        port, self._port = self._port, None
        try:
            if port is not None:
                await port.stop()
        finally:
            await super().close()

    async def _started(self) -> HttpPort:
        settings = ServerSettings()
        service = Service(
            self,
            Tokens(),
            InFlight(settings.max_requests, settings.max_requests_bytes, Memory.limited()),
            self.clock.now_ms(),
            most_waiting=settings.max_waiting,
            most_connections=_MOST_CONNECTIONS,
            take_spacing_ms=0.0,
            hosts=Hosts(is_local=True),
        )
        path = socket_path(self._core.folder, self._core.folder_fd)
        # The folder is locked, so nobody listens at a socket that was left there.
        path.unlink(missing_ok=True)
        port = HttpPort(service, f"{PREFIX}{path}", 0)
        await port.start()
        return port
