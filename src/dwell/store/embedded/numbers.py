"""Ids that the queue makes, and the numbers of messages: both say where a message is.

A queue-made id is ``~row-arrival`` in hexadecimal. It needs no index.
"""

from collections.abc import Sequence

import numpy as np

from dwell.batch.blobs import queue_id
from dwell.message import U64, Rows

#: 2**28 rows are twice what a machine's memory holds; with 35 bits the number stays below 2**63.
_ROW_BITS = np.uint64(28)
_ROW_MASK = np.uint64((1 << 28) - 1)
_SEQ_MASK = np.uint64((1 << 35) - 1)


def numbers_of(rows: Rows, seqs: U64) -> U64:
    """Return the numbers of messages: where each is, and enough of its arrival to know it by.

    The arrival is above the row, so that numbers grow as messages come. Two messages of one
    row have the same number only if 2**35 others came in between.
    """
    return (seqs & _SEQ_MASK) << _ROW_BITS | rows.astype(np.uint64)


def rows_of(numbers: U64) -> Rows:
    """Return the rows that numbers name; whether those are theirs, :func:`numbers_of` tells."""
    return (numbers & _ROW_MASK).astype(np.intp)


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
