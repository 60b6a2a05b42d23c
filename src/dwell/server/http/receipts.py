"""Receipts of popped messages in memory, so that a finish of the job protocol needs no search."""

import sys
from collections import OrderedDict
from typing import NamedTuple

from dwell.message import Message

#: The memory that receipts may take: some thousands, or fewer if ids are long.
MOST_BYTES = 4 * 1024 * 1024
#: The memory of a receipt in addition to its texts.
_ONE_BYTES = 256


class Popped(NamedTuple):
    """The topic and the receipt of a popped message, and the end of its lease."""

    topic: str
    receipt: str
    until_ms: int


class Receipts:
    """The receipts of the last popped messages, by id.

    The oldest are dropped when the room is full, and all at the end of their leases. The store is
    searched for a dropped receipt.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Popped] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._kept

    def __getitem__(self, id_: str) -> Popped:
        return self._kept[id_]

    def add(self, message: Message, now_ms: int) -> None:
        """Keep the receipt of a popped message."""
        if message.id in self._kept:
            self.pop(message.id)
        popped = Popped(message.topic, message.receipt or "", message.lease_until_ms)
        self._kept[message.id] = popped
        self._size_bytes += _size_of(message.id, popped)
        while self._kept:
            oldest = next(iter(self._kept))
            if self._size_bytes <= MOST_BYTES and self._kept[oldest].until_ms > now_ms:
                break
            self.pop(oldest)

    def pop(self, id_: str) -> Popped:
        """Remove a receipt and return it."""
        popped = self._kept.pop(id_)
        self._size_bytes -= _size_of(id_, popped)
        return popped

    def clear(self) -> None:
        """Remove all receipts."""
        self._kept.clear()
        self._size_bytes = 0


def _size_of(id_: str, popped: Popped) -> int:
    texts = id_, popped.topic, popped.receipt
    return _ONE_BYTES + sum(map(sys.getsizeof, texts))
