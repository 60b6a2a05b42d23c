"""Ids that several messages of an export have, each with another key.

Only a Redis with several shards has such messages; another store takes a later message for the
first. An export may have any number of messages, so their hashes go to files that are sorted in
turn, and 16 bytes are kept for each such id.
"""

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dwell.message import I64

#: How many messages are sorted at a time, and the limit of files; beyond it each file has more.
_PART_ROWS, _MOST_PARTS = 1_000_000, 64


class Doubles(NamedTuple):
    """The hashes of topic and id, sorted, and the hash of the first key of each."""

    names: I64
    keys: I64

    def later(self, rows: pa.Table) -> np.ndarray:
        """Tell which rows have an id that an earlier one of the export has with another key."""
        if not len(self.names):
            return np.zeros(len(rows), bool)
        names, keys = _hashes(rows)
        at = np.minimum(np.searchsorted(self.names, names), len(self.names) - 1)
        is_later: np.ndarray = (self.names[at] == names) & (self.keys[at] != keys)
        return is_later


NO_DOUBLES = Doubles(np.empty(0, np.int64), np.empty(0, np.int64))


def doubles_in(groups: Iterable[pa.Table], count: int) -> Doubles:
    """Return the ids that come with several keys in the ``count`` rows of an export."""
    parts = min(count // _PART_ROWS + 1, _MOST_PARTS)
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(parts)]
        for rows in groups:
            pairs = np.stack(_hashes(rows), axis=1)
            part_of = pairs[:, 0] % parts
            for part, file in enumerate(files):
                file.write(pairs[part_of == part].tobytes())
        found = []
        for file in files:
            file.seek(0)
            found.append(_doubles(np.frombuffer(file.read(), np.int64).reshape(-1, 2)))
    every = np.concatenate(found)
    every = every[np.argsort(every[:, 0])]
    return Doubles(every[:, 0], every[:, 1])


def _doubles(pairs: I64) -> I64:
    """Return the first pair of each name that comes with several keys."""
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    is_first = np.ones(len(pairs), bool)
    is_first[1:] = pairs[1:, 0] != pairs[:-1, 0]
    firsts = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    is_other = pairs[:, 1] != pairs[firsts[group], 1]
    found: I64 = pairs[firsts[np.unique(group[is_other])]]
    return found


def _hashes(rows: pa.Table) -> tuple[I64, I64]:
    """Return a hash of topic and id, and one of the key, of each row: the same in this process."""
    names = zip(rows.column("topic").to_pylist(), rows.column("id").to_pylist(), strict=True)
    keys = rows.column("key").to_pylist()
    size = len(rows)
    return (
        np.fromiter(map(hash, names), np.int64, size),
        np.fromiter(map(hash, keys), np.int64, size),
    )
