"""Unparsed: the bytes that connections hold of requests that have not started, with a limit."""

from typing import Protocol

#: From this size on the bytes of a connection are counted; most heads are shorter.
NOTED_BYTES = 1024
#: How much all connections that were not let in may hold together, and how much all others may.
_STRANGERS_BYTES, _OTHERS_BYTES = 16 * 1024 * 1024, 48 * 1024 * 1024


class Holder(Protocol):
    """A connection. ``is_let_in``: it has sent a request that it has the right to."""

    is_let_in: bool

    def abort(self) -> None:
        """End the connection at once."""


class _Held:
    """The bytes of some connections, up to ``most_bytes``; beyond it the largest holders end."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.size_bytes = 0
        self._sizes: dict[Holder, int] = {}

    def add(self, holder: Holder, size_bytes: int) -> None:
        self._sizes[holder] = size_bytes
        self.size_bytes += size_bytes
        if self.size_bytes > self._most_bytes:
            self._make_room()

    def drop(self, holder: Holder) -> None:
        self.size_bytes -= self._sizes.pop(holder, 0)

    def _make_room(self) -> None:
        # Room for some, so that not each read looks for it.
        left_bytes = self._most_bytes - self._most_bytes // 16
        for holder in sorted(self._sizes, key=self._sizes.__getitem__, reverse=True):
            if self.size_bytes <= left_bytes:
                break
            self.drop(holder)
            holder.abort()


class Unparsed:
    """Counts incomplete heads and lines, and bytes received behind a running request.

    The token of a request is known only when its head is complete, so these bytes count for no
    token, and cannot be refused: beyond the limit connections are closed. Strangers
    never cause the end of connections that were let in.
    """

    def __init__(self) -> None:
        self._strangers, self._others = _Held(_STRANGERS_BYTES), _Held(_OTHERS_BYTES)

    @property
    def size_bytes(self) -> int:
        """How much all connections hold that hold more than a little."""
        return self._strangers.size_bytes + self._others.size_bytes

    def note(self, holder: Holder, size_bytes: int) -> bool:
        """Note how much a connection holds now; tell whether that is counted."""
        self._strangers.drop(holder)
        self._others.drop(holder)
        is_counted = size_bytes > NOTED_BYTES
        if is_counted:
            (self._others if holder.is_let_in else self._strangers).add(holder, size_bytes)
        return is_counted
