"""Delivery: whether an answer that hands over messages reached its client's system."""

import asyncio
from collections.abc import Callable

from dwell.server.inflight import InFlight


class Delivery:
    """What is written on one connection, and who is told when that is lost.

    There is one request at a time. Over TLS (not plain), what is encrypted counts as sent. What the
    system does not take counts at ``in_flight``.
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
            # An answer is handed over when the system has all of it: so the transport, which keeps
            # what the system does not take, says when it keeps something and when it does no more.
            # Over TLS it would pause for ever, as there it never has less than nothing to write.
            transport.set_write_buffer_limits(high=0)

    def deliver(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` unless the system takes all of the answer that was just written.

        What the system has is out of our hands: whether it was read, only an ack can tell. A client
        that has ended its half may be gone, so there the client's system has to take it.
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
        """Call ``then`` when all that was written is sent, or nobody will read it."""
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
        """Say that the client has ended its half: nothing waits for messages any more."""
        self.is_ended = True
        if self.on_lost is not None:
            self.on_lost()

    def lose(self) -> None:
        """Say that nobody will read an answer any more."""
        self.is_lost = True
        self._let_go()
        self.end()
        unsent, self._unsent = self._unsent, []
        for undo in unsent:
            undo()
