"""Delivery: whether an answer that hands over messages reached its client's system."""

import asyncio
from collections.abc import Callable

from dwell.server.inflight import InFlight


class Delivery:
    """Tracks whether the answers on one connection are sent, and reports when it is lost.

    A connection has one request at a time. Over TLS (not plain), encrypted bytes count as sent. The
    bytes that the system has not accepted count in ``in_flight``.
    """

    __slots__ = (
        "_kept",
        "_then",
        "_transport",
        "_unsent",
        "in_flight",
        "is_ended",
        "is_lost",
        "is_plain",
        "on_lost",
    )

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self.is_plain = True
        self.in_flight: InFlight | None = None
        self._kept: tuple[InFlight, int] | None = None
        self._then: Callable[[], None] | None = None
        self._unsent: list[Callable[[], None]] = []
        self.is_ended = self.is_lost = False
        self.on_lost: Callable[[], None] | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Say where answers are written."""
        self._transport = transport
        self.is_plain = transport.get_extra_info("sslcontext") is None
        if self.is_plain:
            # An answer is delivered when the system has accepted all of it. So the transport
            # reports when it buffers bytes that the system did not accept, and when its buffer is
            # empty. Over TLS this limit would pause for ever, as its buffer is never below zero.
            transport.set_write_buffer_limits(high=0)

    def deliver(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` unless the system accepts all of the answer that was just written.

        Whether the client reads bytes that the system has accepted, only an ack can tell. A client
        that has closed its sending side may be gone, so its system must have acknowledged them.
        """
        if self.is_lost or self._transport.is_closing():
            undo()
        elif self.is_plain and (self.is_ended or self._transport.get_write_buffer_size()):
            self._unsent.append(undo)

    def note_unsent(self) -> None:
        """Say that the system does not take all that was written: it counts until it does."""
        if self.in_flight is not None and self._kept is None:
            self._kept = self.in_flight, self._transport.get_write_buffer_size()
            self.in_flight.keep(self._kept[1])

    def after_sent(self, then: Callable[[], None]) -> None:
        """Call ``then`` when all written bytes are sent, or the connection is lost."""
        if self._kept is None or self.is_lost:
            then()
        else:
            self._then = then

    def note_sent(self) -> None:
        """Say that the system has all that was written."""
        self._unsent.clear()
        self._let_go()

    def _let_go(self) -> None:
        if self._kept is not None:
            in_flight, size_bytes = self._kept
            self._kept = None
            in_flight.leave(size_bytes)
        then, self._then = self._then, None
        if then is not None:
            then()

    def end(self) -> None:
        """Record that the client has closed its sending side, and end waits for messages."""
        self.is_ended = True
        if self.on_lost is not None:
            self.on_lost()

    def lose(self) -> None:
        """Record that no answer will be read, and undo the undelivered answers."""
        self.is_lost = True
        self._let_go()
        self.end()
        unsent, self._unsent = self._unsent, []
        for undo in unsent:
            undo()
