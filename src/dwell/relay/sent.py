"""The messages that a lane has sent: names that identify those not to be sent again.

A name is the number of a message and a digest of its id. The number alone is reused after a store
was restored or replaced; the id alone when a sender reuses it.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import NamedTuple

from dwell.batch.batch import Batch

_NUMBER_BYTES = 8
_DIGEST_BYTES = 8
_NAME_BYTES = _NUMBER_BYTES + _DIGEST_BYTES


class Owner(NamedTuple):
    """The owner of messages that are sent exactly once, whatever store holds them.

    ``group`` distinguishes relays that read for different purposes.
    """

    hold: str
    group: str

    def of(self, store: int) -> str:
        """Return the name of the owner of messages in a store, by the store's number."""
        return f"{self.group}.{store:016x}"


def store_of(batch: Batch) -> int:
    """Return the number of the store that a batch, which is not empty, was taken from."""
    assert batch.receipts is not None
    return int(batch.receipts[0, 0]) >> 32


def name_of(number: int, id_: str) -> bytes:
    """Return the name of one message."""
    digest = blake2b(id_.encode(), digest_size=_DIGEST_BYTES).digest()
    return number.to_bytes(_NUMBER_BYTES, "little") + digest


def names_of(batch: Batch) -> list[bytes]:
    """Return the names of the messages of a batch."""
    return list(map(name_of, batch.numbers.tolist(), batch.ids))


def numbers_of(names: Iterable[bytes]) -> list[int]:
    """Return the numbers in names."""
    return [int.from_bytes(name[:_NUMBER_BYTES], "little") for name in names]


def encoded(names: Collection[bytes]) -> bytes:
    """Return names in the form for a broker."""
    return b"".join(names)


def decoded(data: bytes) -> list[bytes]:
    """Return names from the form for a broker; raises ValueError for invalid data."""
    if len(data) % _NAME_BYTES:
        raise ValueError(f"got {len(data)} bytes, expected a multiple of {_NAME_BYTES}")
    names = (data[at : at + _NAME_BYTES] for at in range(0, len(data), _NAME_BYTES))
    # No message has a higher number, and the queue would refuse the question.
    return [name for name in names if name[_NUMBER_BYTES - 1] < 128]
