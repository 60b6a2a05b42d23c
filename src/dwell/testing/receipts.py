"""The receipts that a store has given, each with the model's number of the lease."""

import numpy as np

from dwell.batch.batch import Batch
from dwell.message import U64
from dwell.testing.model import Item, Model
from dwell.testing.views import receipt_words, view_of_message


class Receipts:
    """The receipts of all takes, good and stale, in the order of the takes."""

    def __init__(self) -> None:
        self._given: list[tuple[int, tuple[int, int]]] = []

    def __bool__(self) -> bool:
        return bool(self._given)

    @property
    def count(self) -> int:
        """How many receipts were given."""
        return len(self._given)

    def newest(self, start: int) -> list[tuple[int, int]]:
        """Return the receipts given from ``start`` on, the newest first."""
        return [words for _, words in reversed(self._given[start:])]

    def check_new(self, batch: Batch) -> None:
        """Check that no receipt was given before."""
        known = {words for _, words in self._given}
        assert not known & set(receipt_words(batch)), "a receipt was given twice"

    def check_held(self, items: list[Item], batch: Batch) -> None:
        """Check that held messages have the receipts of their takes."""
        known = dict(self._given)
        for item, words in zip(items, receipt_words(batch), strict=True):
            assert known.get(item.lease, words) == words

    def learn(self, items: list[Item], batch: Batch, store_number: int) -> None:
        """Add the receipts of messages that equal the model's."""
        assert all(words[0] >> 32 == store_number for words in receipt_words(batch))
        for item, message, words in zip(items, batch, receipt_words(batch), strict=True):
            assert view_of_message(message).attempt == item.attempt
            assert message.body == item.put.body
            assert message.lease_until_ms == item.lease_until_ms
            self._given.append((item.lease, words))

    def picked(self, picks: list[int], model: Model) -> tuple[list[int], U64]:
        """Pick receipts, good before stale: leases and receipts."""
        good = {item.lease for item in model.items.values() if item.lease}
        newest = self._given[::-1]
        known = sorted(newest, key=lambda receipt: receipt[0] not in good)
        chosen = [known[pick % len(known)] for pick in picks if known]
        words = np.array([words for _, words in chosen], np.uint64).reshape(-1, 2)
        return [lease for lease, _ in chosen], words
