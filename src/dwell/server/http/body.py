"""The body of a request as received; a large one lies in memory pages that grow in place."""

import io
import mmap
from typing import TypeAlias

#: Bytes in one piece; both can be cut, searched and decoded.
Data: TypeAlias = bytes | mmap.mmap

#: From where on a body has pages of its own; a smaller one is faster in memory used before.
_LARGE_BYTES = 1024 * 1024
_GROWTH_BYTES = 4 * 1024 * 1024
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Body:
    """The parts of a body, one behind the other; ``size_bytes`` is how long they are together."""

    __slots__ = ("_data", "_pages", "size_bytes")

    def __init__(self) -> None:
        self._data: bytes | io.BytesIO = b""
        self._pages: mmap.mmap | None = None
        self.size_bytes = 0

    def add(self, part: bytes) -> None:
        """Take the next part."""
        at, self.size_bytes = self.size_bytes, self.size_bytes + len(part)
        if self.size_bytes > _LARGE_BYTES:
            self._write(part, at)
        elif not at:
            self._data = part
        else:
            # Many small parts would cost more as objects than as bytes.
            if not isinstance(self._data, io.BytesIO):
                first, self._data = self._data, io.BytesIO()
                self._data.write(first)
            self._data.write(part)

    def _write(self, part: bytes, at: int) -> None:
        pages = self._pages
        if pages is None:
            pages = mmap.mmap(-1, _LARGE_BYTES + _GROWTH_BYTES, flags=_PRIVATE)
            pages.write(self.data)
            self._data, self._pages = b"", pages
        if self.size_bytes > len(pages):
            # The system remaps the pages; an allocator would copy the bytes received until now.
            pages.resize(self.size_bytes + _GROWTH_BYTES)
        pages[at : self.size_bytes] = part

    @property
    def data(self) -> Data:
        """All of it, in one piece that is kept only once."""
        if self._pages is not None:
            if len(self._pages) != self.size_bytes:
                self._pages.resize(self.size_bytes)
            return self._pages
        if isinstance(self._data, io.BytesIO):
            self._data = self._data.getvalue()
        return self._data
