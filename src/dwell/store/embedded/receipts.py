"""Receipts: in which row a message was taken, which message that was, and which of its takes."""

import numpy as np

from dwell.errors import ForeignReceipt
from dwell.message import U64, Rows, State
from dwell.store.embedded.table import Table

_ROW_MASK = np.uint64(0xFFFFFFFF)
_NUMBER_SHIFT = np.uint64(32)
_TAKES_BITS = np.uint64(24)
_TAKES_MASK = np.uint64((1 << 24) - 1)


def receipts_of(table: Table, rows: Rows, store_number: int) -> U64:
    """Return the receipts of leased messages, shape (n, 2)."""
    receipts = np.empty((len(rows), 2), dtype=np.uint64)
    receipts[:, 0] = rows
    receipts[:, 0] |= np.uint64(store_number << 32)
    takes = table.takes[rows].astype(np.uint64) & _TAKES_MASK
    receipts[:, 1] = table.seq[rows] << _TAKES_BITS | takes
    return receipts


def leased_rows(table: Table, receipts: U64, store_number: int) -> tuple[Rows, np.ndarray]:
    """Return the row of each receipt, and whether the receipt is still good.

    Raises ForeignReceipt for one that another store has made.
    """
    foreign = receipts[:, 0] >> _NUMBER_SHIFT != np.uint64(store_number)
    if foreign.any():
        raise ForeignReceipt(f"receipt: number {int(np.argmax(foreign))} was made by another store")
    places = receipts[:, 0] & _ROW_MASK
    inside = places < table.top
    rows: Rows = np.where(inside, places, 0).astype(np.intp)
    if not table.top:
        return rows, inside
    good = inside & (table.state[rows] == State.LEASED)
    good &= table.seq[rows] == receipts[:, 1] >> _TAKES_BITS
    takes = table.takes[rows].astype(np.uint64) & _TAKES_MASK
    good &= takes == receipts[:, 1] & _TAKES_MASK
    return rows, good
