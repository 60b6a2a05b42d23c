"""A segment: one file of the journal, of a fixed size, taken in full when it is made.

A position in the journal is ``segment number * segment size + offset``, and never used twice.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dwell.message import U8, U64
from dwell.store.embedded.disk import Disk


class Segment:
    """An open segment. ``map``, ``data``, ``bytes`` and ``words`` show the file as it is now.

    Slices of the map are copies (bytes), those of the others are views. ``words[i]`` are the eight
    bytes from offset ``i`` on, wherever that is.

    ``unchecked_bytes`` are those at its beginning that nobody has read since the store was opened,
    and ``damage`` is where frames turned out to be broken when they were: first offset and end.
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
        self.map = disk.map(fd)
        self.data = memoryview(self.map)
        self.bytes: U8 = np.frombuffer(self.data, dtype=np.uint8)
        self.words: U64 = np.ndarray(len(self.data) - 7, np.uint64, self.data, strides=(1,))

    def written(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield the parts from an offset on that may hold more than zeros, first offset and end.

        Most of a segment was never written: to read its zeros would take longer than all else.
        """
        return self._disk.written(self.fd, offset, len(self.data))

    def let_go(self) -> None:
        """Let go of the pages that were read.

        The system keeps them in its cache, but no longer counts them as this process's memory: who
        reads a large store would seem to hold all of it.
        """
        self.map.madvise(mmap.MADV_DONTNEED)


def segment_path(folder: Path, number: int) -> Path:
    """Return where a segment is."""
    return folder / f"journal-{number:08d}.dwl"


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name; None for the name of anything else."""
    prefix, _, rest = name.partition("-")
    number, _, suffix = rest.partition(".")
    return int(number) if prefix == "journal" and suffix == "dwl" and number.isdigit() else None
