"""Ids that the queue makes: they say where a message is.

A queue-made id is ``~row-arrival`` in hexadecimal. It needs no index.
"""

from collections.abc import Sequence

import numpy as np

from dwell.batch.blobs import queue_id
from dwell.message import U64, Rows


def parse_queue_ids(ids: Sequence[bytes]) -> tuple[Rows, U64]:
    """Return the rows and arrivals that queue-made ids name; (0, 0) where an id is not one.

    A message has one id: what only reads as the same numbers, with a zero ahead, is not one.
    """
    rows = np.zeros(len(ids), dtype=np.intp)
    seqs = np.zeros(len(ids), dtype=np.uint64)
    for index, text in enumerate(ids):
        try:
            row, seq = text[1:].split(b"-")
            place = int(row, 16), int(seq, 16)
            if queue_id(*place).encode() == text:
                rows[index], seqs[index] = place
        except (ValueError, OverflowError):
            rows[index] = seqs[index] = 0
    return rows, seqs
