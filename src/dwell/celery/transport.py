"""The transport: connections of kombu to a store, in Celery's event loop or without one."""

from functools import partial
from time import monotonic
from typing import Any
from urllib.parse import quote

from kombu.transport import virtual

from dwell.celery import link
from dwell.celery.channel import Channel, Declared
from dwell.celery.signal import Signal
from dwell.errors import StoreError
from dwell.version import VERSION


class Transport(virtual.Transport):
    """A connection of kombu to the store at a URL, ``dwell+`` and any URL of :func:`dwell.open`."""

    Channel = Channel
    can_parse_url = True
    default_port = None
    driver_type = driver_name = "dwell"
    polling_interval = None
    connection_errors = (*virtual.Transport.connection_errors, StoreError, OSError)
    recoverable_connection_errors = connection_errors
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
    )

    def __init__(self, client: Any, **words: Any) -> None:
        super().__init__(client, **words)
        # kombu cuts the next of several URLs into parts, and knows no options and no IPv6 hosts.
        client.switch = partial(_switch, client)
        self.signal = Signal()
        self.declared: dict[str, Declared] = {}
        self._link: link.Link | None = None
        self._hub: Any = None
        self._turn = 0

    def driver_version(self) -> str:
        """Return the version of Dwell."""
        return VERSION

    @property
    def link(self) -> link.Link:
        """The open store; raises StoreError and InvalidUrl."""
        if self._link is None or self._link.is_elsewhere:
            options = self.client.transport_options.get("store") or {}
            self._link = link.acquire(_url_of(self.client), options)
        return self._link

    def verify_connection(self, connection: Any) -> bool:
        """Tell whether the store is open, in this process."""
        return self._link is not None and not self._link.is_elsewhere

    def close_connection(self, connection: Any) -> None:
        """Close all channels, and the store with the last connection to it."""
        super().close_connection(connection)
        if self._hub is not None:
            self._hub.remove(self.signal.fd)
            self._hub = None
        self.signal.close()
        opened, self._link = self._link, None
        if opened is not None and not opened.is_elsewhere:
            link.release(opened)

    # --- delivering ---------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None, **words: Any) -> None:
        """Deliver one message; raises TimeoutError after ``timeout`` seconds."""
        end = None if timeout is None else monotonic() + timeout
        while not self._deliver():
            self.signal.clear()
            if any(channel.has_more for channel in self.channels):
                continue
            left = None if end is None else end - monotonic()
            if (left is not None and left <= 0) or not self.signal.wait(left):
                raise TimeoutError("no message came in time")

    def _deliver(self) -> bool:
        """Deliver a message of one channel, each in turn; tell whether there was one."""
        channels = list(self.channels)
        for place in range(len(channels)):
            channel = channels[(self._turn + place) % len(channels)]
            if channel.deliver():
                self._turn = (self._turn + place + 1) % len(channels)
                return True
        return False

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages in an event loop of kombu as they come."""
        self._hub = loop
        loop.add_reader(self.signal.fd, self._on_signal)
        self.signal.set()

    def _on_signal(self) -> None:
        self.signal.clear()
        self._deliver()
        # One at a time, so that timers and remote control have their turns.
        if any(channel.has_more for channel in self.channels):
            self.signal.set()


def _switch(client: Any, url: str) -> None:
    """Have a connection use another URL, as a whole if it is one of Dwell."""
    scheme, _, own = url.partition("+")
    if scheme != Transport.driver_name or "://" not in own:
        type(client).switch(client, url)
        return
    # A text without a scheme is taken for a host alone.
    type(client).switch(client, "")
    client.hostname, client.transport_cls = own, Transport.driver_name


def _url_of(client: Any) -> str:
    """Return the URL of the store: as it was given, or put together again by its parts."""
    url, scheme = str(client.hostname), str(client.transport_cls)
    if "+" not in scheme:
        return url
    login = ":".join(quote(str(part), safe="") for part in (client.userid, client.password) if part)
    port = f":{client.port}" if client.port else ""
    path = "" if client.virtual_host == "/" else f"/{client.virtual_host.lstrip('/')}"
    return f"{scheme.split('+', 1)[1]}://{login}{'@' if login else ''}{url}{port}{path}"
