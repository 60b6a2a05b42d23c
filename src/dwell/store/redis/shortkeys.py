"""Short keys: those of the messages of a block behind one another, for who needs no more of it."""

from collections.abc import Sequence

import numpy as np

from dwell.batch.blobs import joined
from dwell.message import I64

#: What an extra begins with that has a key, without and with headers; and what is added to the size
#: of a text of less than 32 bytes to mark it (MessagePack: fixarray, fixstr).
_LISTS = (0x91, 0x92)
_TEXT, _TEXTS = 0xA0, 32


class ShortKeys:
    """The keys of a put's messages, each with its size in the byte before it.

    A message without a key, or with a longer one, has a size of 0 in ``sizes``.
    """

    def __init__(self, extras: Sequence[bytes], extra_sizes: I64) -> None:
        data = np.frombuffer(joined(extras) + bytes(2), np.uint8)
        starts = np.cumsum(extra_sizes) - extra_sizes
        sizes = data[starts + 1].astype(np.int64) - _TEXT
        are_short = (extra_sizes > 0) & np.isin(data[starts], _LISTS) & (sizes >= 0)
        are_short &= sizes < _TEXTS
        self.sizes = np.where(are_short, sizes + 1, 0)
        self._ends = np.cumsum(self.sizes)
        firsts = self._ends - self.sizes
        places = np.arange(self.sizes.sum()) + (starts + 1 - firsts).repeat(self.sizes)
        self._texts = data[places]
        self._texts[firsts[are_short]] -= _TEXT

    def of(self, part: slice) -> bytes:
        """Return those of some messages; nothing if not all of them have one."""
        if not self.sizes[part].all():
            return b""
        first = self._ends[part.start] - self.sizes[part.start]
        texts: bytes = self._texts[first : self._ends[part.stop - 1]].tobytes()
        return texts
