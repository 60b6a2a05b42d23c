"""Receipts of the store in memory: the message by its arrival, and the number of the take."""

from collections.abc import Iterator, Mapping

import numpy as np

from dwell.errors import ForeignReceipt
from dwell.message import U64
from dwell.store.memory.rows import Row

_LOW_HALF = 0xFFFF_FFFF


def receipts_of(rows: list[Row], store_number: int) -> U64:
    """Return the receipts of leased messages, shape (n, 2)."""
    high = store_number << 32
    words = [(high | row.arrival & _LOW_HALF, row.take) for row in rows]
    return np.array(words, np.uint64).reshape(-1, 2)


def taken_rows(taken: Mapping[int, Row], receipts: U64, store_number: int) -> Iterator[Row | None]:
    """Return the row of each receipt, None for a stale one, looked up only when needed.

    ``taken`` are the leased rows by take. Raises ForeignReceipt for a receipt of another store.
    """
    foreign = receipts[:, 0] >> np.uint64(32) != store_number
    if foreign.any():
        at = int(foreign.argmax())
        raise ForeignReceipt(f"receipt {at} of {len(receipts)} was made by another store")
    return (_taken_row(taken, first, take) for first, take in receipts.tolist())


def _taken_row(taken: Mapping[int, Row], first: int, take: int) -> Row | None:
    row = taken.get(take)
    return row if row is not None and row.arrival & _LOW_HALF == first & _LOW_HALF else None
