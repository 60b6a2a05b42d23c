"""Short keys: the concatenated keys of a block's messages, for calls that need only these."""

from collections.abc import Sequence

import numpy as np

from dwell.batch.blobs import joined
from dwell.message import I64

#: The first bytes of an extra with a key, without and with headers; and the mark that is added to
#: the size of a text of less than 32 bytes (MessagePack: fixarray, fixstr).
_LISTS = (0x91, 0x92)
_TEXT, _TEXTS = 0xA0, 32


class ShortKeys:
    """The keys of a put's messages, each preceded by its size in one byte.

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
        """Return the keys of some messages; empty unless all of them have one."""
        if not self.sizes[part].all():
            return b""
        first = self._ends[part.start] - self.sizes[part.start]
        texts: bytes = self._texts[first : self._ends[part.stop - 1]].tobytes()
        return texts
