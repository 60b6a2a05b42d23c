"""Callers' ids as stored on the disk with their messages, verified against the index."""

import numpy as np

from dwell.batch.blobs import Blobs, LazyIds
from dwell.message import MAX_BATCH_MESSAGES, U32, Rows
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.core import Core
from dwell.store.embedded.distinct import runs_of
from dwell.store.embedded.finder import Finder


async def ids_of(core: Core, finder: Finder, rows: Rows) -> list[str | None]:
    """Return the id of each message, also of one whose body is damaged.

    It is None when the id itself cannot be read, or when the message is gone by now.
    """
    table = core.machine.table
    columns = (table.size_bytes[rows], table.id_bytes[rows], table.extra_bytes[rows])
    reader = BlobReader(core.journal, table.position[rows], *columns) if len(rows) else None
    made, topics = LazyIds(rows, table.seq[rows], None), table.topic[rows]
    await core.committed()
    ids: list[str | None] = list(made)
    if reader is not None and reader.has_ids:
        own = reader.id_blobs()
        at = np.flatnonzero(own.sizes)
        are_known = have_own(core, finder, rows[at], topics[at], own.picked(at))
        for place, is_known in zip(at.tolist(), are_known.tolist(), strict=True):
            ids[place] = own[place].decode() if is_known else None
    return ids


def have_own(core: Core, finder: Finder, rows: Rows, topics: U32, ids: Blobs) -> np.ndarray:
    """Tell whether each id belongs to the message in its row, according to the index."""
    names, are_own = core.machine.topics.names, np.zeros(len(rows), dtype=bool)
    order = np.argsort(topics, kind="stable")
    starts, counts = runs_of(topics[order])
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        for at in range(start, start + count, MAX_BATCH_MESSAGES):
            some = order[at : min(at + MAX_BATCH_MESSAGES, start + count)]
            owners, are_there = finder.find(names[int(topics[some[0]])], ids.picked(some))
            are_own[some] = are_there & (owners == rows[some])
    return are_own
