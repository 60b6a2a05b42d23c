"""Queue-made ids: they contain the place of their message.

A queue-made id is ``~row-arrival`` in hexadecimal. It needs no index.
"""

from collections.abc import Sequence

import numpy as np

from dwell.batch.blobs import queue_id
from dwell.message import U64, Rows


def parse_queue_ids(ids: Sequence[bytes]) -> tuple[Rows, U64]:
    """Return the rows and arrivals that queue-made ids name; (0, 0) for other ids.

    A message has one id: a text of the same numbers with a leading zero is not an id.
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
