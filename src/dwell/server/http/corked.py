"""A transport that sends what is written in one turn of the event loop with one call."""

import asyncio
from typing import Any

#: What costs more to be joined with what goes before it than to be sent by itself.
_LARGE_BYTES = 64 * 1024
_JOINT = b""


class Corked:
    """Gathers writes; everything else is the transport's own.

    ``is_broken`` tells that something which was written did not go out: the other end had gone.
    """

    __slots__ = ("_loop", "_parts", "_transport", "is_broken")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self.is_broken = False

    def write(self, data: bytes) -> None:
        """Send something, with what else is written in this turn."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Send what was written, now."""
        parts, self._parts = self._parts, []
        if not parts:
            return
        if not self._transport.is_closing():
            try:
                if len(parts[-1]) < _LARGE_BYTES:
                    parts = [_JOINT.join(parts)]
                for part in parts:
                    self._transport.write(part)
            except MemoryError:
                # A client whose answer is lost would wait for it.
                self._transport.abort()
        # Nothing closes it in between but a write that fails.
        if self._transport.is_closing():
            self.is_broken = True

    def close(self) -> None:
        """Send what was written, and close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
