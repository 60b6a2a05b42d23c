"""The HTTP status of a relay or a worker: ``/metrics``, ``/healthz`` and ``/readyz``."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from dwell.errors import InvalidUrl
from dwell.urls import host_and_port


class Status:
    """A small HTTP server for the ``numbers`` of a process and whether it ``is_ready``.

    Raises InvalidUrl for an invalid address.
    """

    def __init__(
        self, address: str, numbers: Collector, is_ready: Callable[[], str | None]
    ) -> None:
        host, self._port = host_and_port(address, "--http")
        self._host = host.strip("[]")
        self._registry = CollectorRegistry()
        self._registry.register(numbers)
        self._is_ready = is_ready
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; raises InvalidUrl if the address cannot be bound."""
        app = web.Application(client_max_size=1024)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", _healthy)
        app.router.add_get("/readyz", self._ready)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise InvalidUrl(
                f"--http: cannot listen on {self._host}:{self._port}: {error.strerror}"
            ) from None

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _ready(self, _request: web.Request) -> web.Response:
        why = self._is_ready()
        return web.Response(text=f"{why or 'ready'}\n", status=200 if why is None else 503)


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")
