"""A connection, as the requests on it see it: whether it is still there."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dwell.server.http.corked import Corked


class Connection:
    """Tells the request that waits on it when it is lost; there is one request at a time."""

    __slots__ = ("_is_plain", "_transport", "_unsent", "is_lost", "on_lost")

    def __init__(self) -> None:
        self._transport: Corked
        self._is_plain = True
        self._unsent: list[Callable[[], None]] = []
        self.is_lost = False
        self.on_lost: Callable[[], None] | None = None

    def begin(self, transport: "Corked", *, is_plain: bool) -> None:
        """Say where answers are written; over TLS (not plain), what is encrypted counts as sent."""
        self._transport = transport
        self._is_plain = is_plain

    def deliver(self, undo: Callable[[], None]) -> None:
        """Send the answer that was written; call ``undo`` unless the system takes all of it.

        What the system has is out of our hands: whether it was read, only an ack can tell.
        """
        transport = self._transport
        transport.flush()
        if self.is_lost or transport.is_broken:
            undo()
        elif self._is_plain and transport.get_write_buffer_size():
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
