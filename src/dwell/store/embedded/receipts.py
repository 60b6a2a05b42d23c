"""Receipts: the row of a message, its arrival, and the number of the take.

A receipt is two words: the store's number and the row (32 bits each), and the lower 32 bits of the
arrival and the take's number. The first number of a take is drawn at random by each opening of the
store (:meth:`Machine.begin`), so that a store and its copy make different receipts.
"""

import numpy as np

from dwell.errors import ForeignReceipt
from dwell.message import U64, Rows, State
from dwell.store.embedded.table import Table

_HALF = np.uint64(32)
_LOWER = np.uint64(0xFFFFFFFF)


def receipts_of(table: Table, rows: Rows, store_number: int) -> U64:
    """Return the receipts of leased messages, shape (n, 2)."""
    receipts = np.empty((len(rows), 2), dtype=np.uint64)
    receipts[:, 0] = rows
    receipts[:, 0] |= np.uint64(store_number << 32)
    receipts[:, 1] = _second_words(table, rows)
    return receipts


def leased_rows(table: Table, receipts: U64, store_number: int) -> tuple[Rows, np.ndarray]:
    """Return the row of each receipt, and whether the receipt is still good.

    Raises ForeignReceipt for a receipt of another store.
    """
    foreign = receipts[:, 0] >> _HALF != np.uint64(store_number)
    if foreign.any():
        raise ForeignReceipt(f"receipt: number {int(np.argmax(foreign))} was made by another store")
    places = receipts[:, 0] & _LOWER
    inside = places < table.top
    rows: Rows = np.where(inside, places, 0).astype(np.intp)
    if not table.top:
        return rows, inside
    good = inside & (table.state[rows] == State.LEASED)
    good &= _second_words(table, rows) == receipts[:, 1]
    return rows, good


def _second_words(table: Table, rows: Rows) -> U64:
    words: U64 = table.seq[rows] << _HALF | table.takes[rows]
    return words
