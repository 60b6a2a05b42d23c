"""A segment: one file of the journal, of a fixed size, allocated in full when it is made.

A position in the journal is ``segment number * segment size + offset``, and never reused.
"""

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dwell.message import U8, U64
from dwell.store.embedded.disk import Disk

_WORD_BYTES = 8


class Segment:
    """An open segment.

    ``map``, ``data``, ``bytes`` and ``words`` show the current content of the file.

    Slices of the map are copies (bytes), slices of the others are views. ``words[i]`` are the eight
    bytes from offset ``i`` on, aligned or not.

    ``unchecked_bytes`` counts the bytes at its beginning not read since the store was opened, and
    ``damage`` has the broken places found in them: first offset and end.
    """

    __slots__ = (
        *("_disk", "bytes", "damage", "data", "fd", "map", "number", "path", "unchecked_bytes"),
        "words",
    )

    def __init__(self, disk: Disk, path: Path, number: int, fd: int) -> None:
        self._disk = disk
        self.path = path
        self.number = number
        self.fd = fd
        self.unchecked_bytes = 0
        self.damage: list[tuple[int, int]] = []
        self._show()

    def _show(self) -> None:
        # A damaged file may be too short to be mapped; it reads as zeros.
        is_short = self._disk.file_bytes(self.fd) < _WORD_BYTES
        self.map = mmap.mmap(-1, _WORD_BYTES) if is_short else self._disk.map(self.fd)
        self.data = memoryview(self.map)
        self.bytes: U8 = np.frombuffer(self.data, dtype=np.uint8)
        self.words: U64 = np.ndarray(
            len(self.data) - _WORD_BYTES + 1, np.uint64, self.data, strides=(1,)
        )

    def lengthen(self, size_bytes: int) -> None:
        """Give a file that was cut short its full size; raises OSError."""
        if len(self.data) < size_bytes:
            self._disk.allocate(self.fd, size_bytes)
            self._show()

    def written(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield the parts from an offset on that may hold more than zeros, first offset and end.

        Most of a segment is usually unwritten: reading its zeros would take longer than everything
        else.
        """
        return self._disk.written(self.fd, offset, len(self.data))

    def let_go(self) -> None:
        """Release the pages that were read.

        The system keeps them in its cache, but no longer counts them as this process's memory:
        otherwise a reader of a large store would seem to hold all of it.
        """
        self.map.madvise(mmap.MADV_DONTNEED)


_NAME = re.compile(r"journal-([0-9]{8,})\.dwl")


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment."""
    return folder / f"journal-{number:08d}.dwl"


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name; None for other names."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])
