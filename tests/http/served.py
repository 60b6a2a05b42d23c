"""A store behind a real HTTP port, in the event loop of the test."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from dwell.client.store import HttpStore
from dwell.clock import RealClock
from dwell.queue import Queue
from dwell.server.http.port import HttpPort
from dwell.server.inflight import InFlight
from dwell.server.sealed import sealed
from dwell.server.service import Service
from dwell.server.tokens import Tokens
from dwell.store.base import Store
from dwell.store.memory import MemoryStore
from tests.http.wire import Wire


class Served:
    """A queue with its service and port; ``url`` is where it is."""

    def __init__(
        self, store: Store, *, tokens: Tokens | None = None, in_flight: InFlight | None = None
    ):
        self.queue = Queue(sealed(store))
        self.service = Service(
            self.queue,
            tokens or Tokens(),
            in_flight or InFlight(10_000, 1 << 28),
            store.clock.now_ms(),
        )
        self.port = HttpPort(self.service, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port.address[1]}"

    async def start(self) -> None:
        await self.queue.open()
        await self.port.start()

    async def stop(self) -> None:
        await self.port.stop()
        await self.queue.close()


@contextlib.asynccontextmanager
async def served(store: Store | None = None, **options) -> AsyncIterator[Served]:
    """Serve a store, in memory if none is given; wires that are left open end with it."""
    server = Served(store or MemoryStore(RealClock()), **options)
    await server.start()
    try:
        yield server
    finally:
        Wire.close_all()
        await server.stop()


@contextlib.contextmanager
def served_aside(store: Callable[[], Store]) -> Iterator[str]:
    """Serve a store in a thread of its own, so that plain clients can ask it; yield its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = Served(store())
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield server.url
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class ServedStore(HttpStore):
    """A store of the suite: a client, and the server behind it with the store that it serves."""

    def __init__(self, backing: Store) -> None:
        self._server = Served(backing)
        self._backing = backing

    async def open(self) -> None:
        await self._server.start()
        super().__init__(self._server.url)
        # The time is simulated, so it stands still for the client, too.
        self.clock.now_ms = self._backing.clock.now_ms
        await super().open()

    async def close(self) -> None:
        await super().close()
        if self._server.queue.is_open:
            await self._server.stop()

    async def tick(self, now_ms: int) -> int | None:
        return await self._backing.tick(now_ms)
