"""Serving: opens the queue, starts the ports, handles signals, and stops all of it in order.

SIGTERM and SIGINT: stop accepting, finish the requests, close the queue, end. A second signal ends
the process at once, which loses nothing that was answered. SIGUSR1: stop taking new messages.
SIGHUP: read the token file and the certificate again.
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any, TypeAlias

import uvloop

from dwell.clock import RealClock
from dwell.errors import InvalidSettings
from dwell.garbage import collect_seldom
from dwell.handle import store_at
from dwell.queue import Queue
from dwell.server import tls
from dwell.server.allocator import keep_memory
from dwell.server.hosts import Hosts
from dwell.server.inflight import InFlight
from dwell.server.linelog import LineLog
from dwell.server.memory import Memory
from dwell.server.notify import notify
from dwell.server.sealed import sealed
from dwell.server.service import Port, Service
from dwell.server.settings import Address, ServerSettings
from dwell.server.tokens import Tokens
from dwell.tasks import Standing
from dwell.version import VERSION

_log = logging.getLogger(__name__)

#: How the process ends when a second signal does not let it stop in order.
INTERRUPTED = 130

#: Files in addition to connections: the store's, and others.
_OTHER_FILES = 1024
#: With fewer connections to a port it is no use to begin.
_FEWEST_CONNECTIONS = 32

#: How long a thread waits for the interpreter lock before it requests it. The event loop releases
#: and retakes the lock many times a millisecond, so a waiting thread is woken too late and waits
#: again: with the usual 5 ms the store's thread stood still for 0.8 s under a flood of requests.
_SWITCH_S = 0.0001

#: How long ports that did not stop in time have to release taken messages.
_LAST_S = 1.0

MakePort: TypeAlias = Callable[[str, Service, Address, ssl.SSLContext | None], Port]


class PortUnavailable(OSError):
    """A port cannot have the address that it was told to listen on."""


def run(settings: ServerSettings) -> None:
    """Serve until a signal says to stop.

    Raises InvalidSettings, StoreError or PortUnavailable when it cannot begin.
    """
    keep_memory()
    sys.setswitchinterval(_SWITCH_S)
    # A port whose packages are missing is reported before a store is created.
    for name in settings.addresses:
        import_module(f"dwell.server.{name}.port")
    collect_seldom()
    server = Server(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run())


def make_port(
    name: str, service: Service, address: Address, context: ssl.SSLContext | None
) -> Port:
    """Return the port that the settings call by a name."""
    # Imported here, so that a server needs only the packages of the ports that it has.
    if name == "http":
        from dwell.server.http.port import HttpPort

        return HttpPort(service, *address, ssl=context)
    from dwell.server.beanstalk.port import BeanstalkPort

    return BeanstalkPort(service, *address, ssl=context)


@contextlib.asynccontextmanager
async def _firing(queue: Queue) -> AsyncIterator[Standing]:
    """Fire the schedules of a queue; yields the firer, which can be stopped earlier."""
    firing = Standing(queue.schedules.fire)
    firing.start()
    try:
        yield firing
    finally:
        await firing.stop()


class Server:
    """One process that serves one queue. ``make_port`` is for tests."""

    def __init__(self, settings: ServerSettings, make_port: MakePort = make_port) -> None:
        self._settings = settings
        self._make_port = make_port
        self._tokens = Tokens.load(settings.token_file) if settings.token_file else Tokens()
        self._tls: ssl.SSLContext | None = None
        if settings.tls_cert:
            self._tls = tls.context(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self._stopping = asyncio.Event()
        self._service: Service | None = None
        self._firing: Standing | None = None
        self._draining: asyncio.Task[None] | None = None
        self._most_connections = settings.max_connections

    async def run(self) -> None:
        """Open, start, serve until a signal comes, and stop."""
        started = time.monotonic()
        self._most_connections = _connections_of_a_port(self._settings)
        async with self._queue() as queue:
            # A signal that comes before this ends the process, and has nothing to wait for.
            self._listen()
            self._service = self._serve(queue)
            async with (
                self._logging(self._service),
                _firing(queue) as self._firing,
                self._started(self._service),
            ):
                collect_seldom()
                self._announce(round((time.monotonic() - started) * 1000))
                await self._stopping.wait()
                notify("STOPPING=1")
        _log.info("stopped")

    # --- start and stop -------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _queue(self) -> AsyncIterator[Queue]:
        settings = self._settings
        options: dict[str, Any] = {}
        if settings.is_folder:
            names = ("sync", "events_bytes", "memory_bytes")
            options = {name: getattr(settings, name) for name in names}
        async with Queue(sealed(store_at(settings.store, RealClock(), options))) as queue:
            yield queue

    def _serve(self, queue: Queue) -> Service:
        settings = self._settings
        return Service(
            queue,
            self._tokens,
            InFlight(settings.max_requests, settings.max_requests_bytes, Memory.limited()),
            queue.clock.now_ms(),
            most_waiting=settings.max_waiting,
            most_connections=self._most_connections,
            most_body_bytes=settings.max_body_bytes,
            token_percent=settings.max_token_percent,
            hosts=Hosts(settings.host_names, is_local=settings.is_http_local),
            socket_mode=int(settings.socket_mode, 8),
        )

    @contextlib.asynccontextmanager
    async def _logging(self, service: Service) -> AsyncIterator[None]:
        """Open and close the access and audit logs, if they are set."""
        settings, started = self._settings, list[LineLog]()
        try:
            for name in ("access", "audit"):
                if path := getattr(settings, f"{name}_log"):
                    log = LineLog(name, path, settings.max_log_bytes)
                    log.start()
                    started.append(log)
                    setattr(service, name, log)
            yield
        finally:
            for log in started:
                log.stop()

    def _audit(self, what: str, status: int, **more: Any) -> None:
        """Write an action by signal to the audit log."""
        if self._service is not None and self._service.audit is not None:
            said = {"port": "signal", "peer": "", "token": "", "endpoint": what, "status": status}
            self._service.audit.write({**said, **more})

    @contextlib.asynccontextmanager
    async def _started(self, service: Service) -> AsyncIterator[None]:
        """Start the ports one after another; in any case, stop the started ports at the end."""
        try:
            for name, address in self._settings.addresses.items():
                port = self._make_port(name, service, address, self._tls)
                await _start(name, address, port)
                service.ports.append(port)
            yield
        finally:
            await self._stop(service.ports)

    async def _stop(self, ports: list[Port]) -> None:
        """Stop all ports at once; ports that do not stop within the grace are abandoned."""
        tasks = [asyncio.ensure_future(port.stop()) for port in ports]
        if not tasks:
            return
        done, late = await asyncio.wait(tasks, timeout=self._settings.grace_ms / 1000)
        for task in late:
            _log.warning("a port did not stop within %s ms", self._settings.grace_ms)
            task.cancel()
        if late:
            # Messages that they took and did not deliver are released before the queue closes.
            await asyncio.wait(late, timeout=_LAST_S)
        for task in done:
            if not task.cancelled() and task.exception() is not None:
                _log.error("a port did not stop as it should", exc_info=task.exception())

    def _announce(self, took_ms: int) -> None:
        assert self._service is not None
        places = zip(self._settings.addresses, self._service.ports, strict=True)
        # For port 0 the port knows its actual number.
        found = {name: str(Address(*port.address[:2])) for name, port in places}
        self._warn()
        fields = {
            "store": self._settings.store_shown,
            **found,
            "tls": self._tls is not None,
            "tokens": len(self._tokens.names),
            "version": VERSION,
            "pid": os.getpid(),
            "took_ms": took_ms,
        }
        _log.info("serving", extra=fields)
        notify("READY=1")

    def _warn(self) -> None:
        settings = self._settings
        exposed = [str(a) for a in settings.addresses.values() if not a.is_loopback]
        if exposed and self._tokens.is_open:
            _log.warning("whoever reaches %s may do everything", " and ".join(exposed))
        elif exposed and self._tls is None:
            _log.warning("tokens and messages pass %s without TLS", " and ".join(exposed))

    # --- signals --------------------------------------------------------------------------------

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGUSR1, self._drain)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _end(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            _log.warning("%s again: ending at once", number.name)
            os._exit(INTERRUPTED)
        _log.info("%s: stopping", number.name)
        self._stopping.set()

    def _drain(self) -> None:
        if self._service is not None and self._firing is not None:
            self._service.is_draining = True
            self._draining = asyncio.get_running_loop().create_task(self._firing.stop())
            self._audit("SIGUSR1 drain", 200)
            _log.info("SIGUSR1: draining, no new messages are taken, and no schedules fire")

    def _reload(self) -> None:
        try:
            # All files are read before any is applied, so that an error changes nothing.
            found = self._tokens.read()
            if self._service is not None:
                self._service.quotas.check(found)
            if self._tls is not None:
                tls.renew(self._tls, self._settings.tls_cert, self._settings.tls_key)
            self._tokens.use(found)
        except InvalidSettings as error:
            self._audit("SIGHUP reload", 400, error=str(error))
            _log.error("SIGHUP: nothing changed: %s", error)
        else:
            self._audit("SIGHUP reload", 200, tokens=self._tokens.names)
            _log.info("SIGHUP: reloaded", extra={"tokens": len(self._tokens.names)})


async def _start(name: str, address: Address, port: Port) -> None:
    try:
        await port.start()
    except OSError as error:
        raise PortUnavailable(f"{name}: cannot listen on {address}: {_reason(error)}") from None


def _reason(error: OSError) -> str:
    # The loops have different texts for these; errors of name resolution have no number.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _connections_of_a_port(settings: ServerSettings) -> int:
    """Raise the limit of files, and return how many connections it leaves to each port.

    The store comes first: without files it could keep nothing. Raises InvalidSettings when there
    are too few for both.
    """
    ports = len(settings.addresses)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ports * settings.max_connections + _OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    left = (most - _OTHER_FILES) // ports
    if left < min(settings.max_connections, _FEWEST_CONNECTIONS):
        raise InvalidSettings(
            f"max_connections: this process may open {most} files, expected at least "
            f"{_OTHER_FILES + ports * _FEWEST_CONNECTIONS} (ulimit -n); the store needs some itself"
        )
    return min(left, settings.max_connections)
