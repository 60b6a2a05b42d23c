"""Receipts as they are given: texts, messages that have one, batches and arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dwell.batch.batch import Batch
from dwell.errors import InvalidReceipt
from dwell.given import values
from dwell.given.columns import check_count, sized
from dwell.message import U64, Message, receipts_from_bytes, receipts_from_text

_TAKEN = "a message that was taken, its receipt, or a sequence of these"


def receipt_bytes(what: object, field: str = "receipt") -> bytes:
    """Return the 16 bytes of one receipt, given as text or as the message that has it."""
    text = what.receipt if isinstance(what, Message) else what
    if text is None:
        raise InvalidReceipt(
            f"{field}: got a message that nobody took, expected one that was taken"
        )
    try:
        data = bytes.fromhex(text) if isinstance(text, str) and len(text) == 32 else b""
    except ValueError:
        data = b""
    if len(data) != 16:
        raise values.refusal(InvalidReceipt, field, what, "32 hexadecimal digits")
    return data


def _receipts_of(many: Sequence[Any]) -> U64:
    """Return receipts, given as texts or in messages; a bad one is named by its place."""
    try:
        return receipts_from_text(many)
    except InvalidReceipt:
        each = enumerate(many)
        return joined_receipts([receipt_bytes(one, f"receipts[{at}]") for at, one in each])


def given_receipts(what: object) -> U64:
    """Return the receipts of a batch, or of a sequence of messages and texts; shape (n, 2).

    An array like a batch's ``receipts`` is returned unchanged.
    """
    if isinstance(what, Batch):
        found = _batch_receipts(what)
    elif isinstance(what, np.ndarray):
        if what.dtype != np.uint64 or what.ndim != 2 or what.shape[1] != 2:
            got = f"{what.dtype} of shape {what.shape}"
            raise InvalidReceipt(f"receipts: got an array, {got}, expected uint64 of shape (n, 2)")
        found = what
    else:
        many = sized(what, "receipts", InvalidReceipt, _TAKEN)
        found = _receipts_of(many)
    check_count(len(found), "receipts")
    return found


def joined_receipts(data: Sequence[bytes]) -> U64:
    """Return receipts of 16 bytes each as an array of shape (n, 2)."""
    return receipts_from_bytes(b"".join(data))


def _batch_receipts(batch: Batch) -> U64:
    if len(batch) == 0:
        return joined_receipts([])
    if batch.receipts is None:
        raise InvalidReceipt("receipts: got messages that nobody took, expected those of a take")
    return batch.receipts
