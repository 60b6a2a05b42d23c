"""Delivery: whether an answer that hands over messages reached its client's system."""

import asyncio
from collections.abc import Callable


class Delivery:
    """What is written on one connection, and who is told when that is lost.

    There is one request at a time. Over TLS (not plain), what is encrypted counts as sent.
    """

    __slots__ = ("_is_plain", "_transport", "_unsent", "is_lost", "on_lost")

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._is_plain = True
        self._unsent: list[Callable[[], None]] = []
        self.is_lost = False
        self.on_lost: Callable[[], None] | None = None

    def begin(self, transport: asyncio.Transport, *, is_plain: bool) -> None:
        """Say where answers are written."""
        self._transport = transport
        self._is_plain = is_plain

    def deliver(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` unless the system takes all of the answer that was just written.

        What the system has is out of our hands: whether it was read, only an ack can tell.
        """
        if self.is_lost or self._transport.is_closing():
            undo()
        elif self._is_plain and self._transport.get_write_buffer_size():
            self._unsent.append(undo)

    def note_sent(self) -> None:
        """Say that the system has all that was written."""
        self._unsent.clear()

    def lose(self) -> None:
        """Say that nobody will read an answer any more."""
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost()
        unsent, self._unsent = self._unsent, []
        for undo in unsent:
            undo()
