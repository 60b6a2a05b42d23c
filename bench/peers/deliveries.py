"""What takers wrote of the messages they saw, and what it says: all figures come from here."""

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.peers.driver import PeerFailed

_LOOK_S = 0.005


class Seen(NamedTuple):
    """Messages as they were seen, in order: their numbers, and the times in milliseconds."""

    numbers: np.ndarray
    at_ms: np.ndarray


def seen(path: Path, offset: int = 0) -> Seen:
    """Return what a file says from a byte on."""
    if not path.exists():
        return Seen(np.zeros(0, np.int64), np.zeros(0))
    # A program that is killed may have written half of a pair.
    count = max((path.stat().st_size - offset) // 16, 0)
    pairs = np.fromfile(path, "<f8", 2 * count, offset=offset).reshape(-1, 2)
    return Seen(pairs[:, 0].astype(np.int64), pairs[:, 1])


class Deliveries:
    """The deliveries of messages with numbers from ``first`` to ``first + count``."""

    def __init__(self, path: Path, first: int, count: int) -> None:
        self._path, self._offset = path, 0
        self.first, self.count = first, count
        self._missing = np.ones(count, bool)
        self._parts: list[Seen] = []

    def wait(self, seconds: float) -> bool:
        """Wait until all were delivered, or a time is over; return whether they were."""
        end = time.monotonic() + seconds
        while self._look() and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return not self._missing.any()

    def wait_all(self, seconds: float) -> None:
        """Wait until all were delivered; raises PeerFailed when the time is over."""
        if not self.wait(seconds):
            there = self.count - len(self.missing)
            late = f"{seconds:.0f} s after the last was put or fell due"
            raise PeerFailed(f"{there} of {self.count} messages were delivered {late}")

    def expect(self, numbers: np.ndarray) -> None:
        """Wait for no others but these, which count from 0 on."""
        self._missing &= np.isin(np.arange(self.count), numbers)

    def _look(self) -> bool:
        """Read what is new; return whether some are missing."""
        numbers, at_ms = seen(self._path, self._offset)
        self._offset += 16 * len(numbers)
        ours = (numbers >= self.first) & (numbers < self.first + self.count)
        part = Seen(numbers[ours] - self.first, at_ms[ours])
        self._missing[part.numbers] = False
        self._parts.append(part)
        return bool(self._missing.any())

    @property
    def missing(self) -> np.ndarray:
        """Those that were not delivered, as numbers from 0 on."""
        return np.flatnonzero(self._missing)

    @property
    def numbers(self) -> np.ndarray:
        """What was delivered, as numbers from 0 on; those that came twice are here twice."""
        return np.concatenate([part.numbers for part in self._parts])

    @property
    def at_ms(self) -> np.ndarray:
        """When each of them was delivered."""
        return np.concatenate([part.at_ms for part in self._parts])

    def late_ms(self, due_ms: np.ndarray) -> np.ndarray:
        """Return by how much each first delivery was late; below 0 it was early."""
        numbers, which = np.unique(self.numbers, return_index=True)
        late: np.ndarray = self.at_ms[which] - due_ms[numbers]
        return late
