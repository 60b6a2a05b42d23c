"""The messages of a put in columns, and their results."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dwell.batch.blobs import picked, sizes_of, total_bytes
from dwell.batch.results import counts_text, results_of
from dwell.batch.schema import arrays_of
from dwell.errors import InvalidHeaders
from dwell.message import I64, MAX_EXTRA_BYTES, U8, U16, U32, U64, Result

#: The values of a message that were counted from the time of its put.
DUE_COUNTED = 1
EXPIRY_COUNTED = 2


class Row(msgspec.Struct, frozen=True, gc=False):
    """One message to put: a value of each column of :class:`Puts`.

    An empty ``extra`` or ``id`` means none.
    """

    body: bytes
    due_ms: int
    priority: int
    lease_ms: int
    max_attempts: int
    expires_ms: int
    extra: bytes
    id: bytes
    counted: int


@dataclass(slots=True)
class Puts:
    """The columns of one put into one topic.

    ``ids`` is None if the queue is to make them. ``lease_ms`` and ``max_attempts`` are 0 for the
    topic's own; ``expires_ms`` is 0 for never. ``extras`` holds key and headers as
    :func:`dwell.message.encode_extra` makes them; None if no message has any. Raises InvalidHeaders
    if an item has more than MAX_EXTRA_BYTES, which no store can keep.

    ``counted`` names the values of each message that were counted from now, by the store's clock:
    its due (``DUE_COUNTED``), its expiry (``EXPIRY_COUNTED``), or both. A store with the clock of
    another machine may count them from its own time; every other due is stored as given. None says
    that nothing was counted.

    ``versions`` has the version that the message of an id must have to be replaced, as a scan gave
    it, 0 for any; None when any will do.

    ``calls`` has the call number of each message (:mod:`dwell.batch.calls`), for a store that keeps
    them; None when the put came with no request.
    """

    topic: str
    bodies: Sequence[bytes]
    due_ms: I64
    priority: U32
    lease_ms: U32
    max_attempts: U16
    expires_ms: I64
    ids: Sequence[bytes] | None = None
    extras: Sequence[bytes] | None = None
    counted: U8 | None = None
    versions: U64 | None = None
    calls: U64 | None = None

    def __post_init__(self) -> None:
        if self.extras is None or not len(self.extras):
            return
        check_extra_size(int(sizes_of(self.extras).max()))

    @classmethod
    def of_rows(cls, topic: str, rows: Sequence[Row]) -> "Puts":
        """Return one row or more as columns; all of them have an id, or none has."""
        columns: dict[str, Any] = dict(
            zip(_ROW_COLUMNS, zip(*map(msgspec.structs.astuple, rows), strict=True), strict=True)
        )
        for name, kind in _ROW_ARRAYS.items():
            columns[name] = np.array(columns[name], kind)
        for name in ("ids", "extras"):
            if not any(columns[name]):
                columns[name] = None
        return cls(topic, **columns)

    def rows(self) -> Iterator[Row]:
        """Yield the messages, one by one."""
        return map(Row, *map(self._values, _ROW_COLUMNS))

    def _values(self, name: str) -> Sequence[Any]:
        column = getattr(self, name)
        if column is None:
            return [0 if name in _ROW_ARRAYS else b""] * len(self)
        values: Sequence[Any] = column.tolist() if name in _ROW_ARRAYS else column
        return values

    def count_anew(self, later_ms: int) -> None:
        """Shift the values that were counted from an earlier now."""
        if self.counted is not None:
            self.due_ms = self.due_ms + later_ms * (self.counted & DUE_COUNTED > 0)
            self.expires_ms = self.expires_ms + later_ms * (self.counted & EXPIRY_COUNTED > 0)

    def __len__(self) -> int:
        return len(self.bodies)

    def picked(self, which: "np.ndarray") -> "Puts":
        """Return the messages at some places."""

        def pick(name: str) -> Any:
            column = getattr(self, name)
            if column is None or isinstance(column, np.ndarray):
                return None if column is None else column[which]
            return picked(column, which)

        # Copies without ``__init__``, as the columns were checked before.
        part = copy.copy(self)
        for name in self.__slots__[1:]:
            setattr(part, name, pick(name))
        return part

    @property
    def size_bytes(self) -> int:
        """How much the messages are together: ids, extras and bodies."""
        parts = (self.bodies, self.ids, self.extras)
        return sum(total_bytes(part) for part in parts if part is not None)


#: The columns of a put that are arrays and always there, with the types of their values; and
#: which columns have the values of a row, in their order.
PUT_ARRAYS = arrays_of(Puts)
_ROW_ARRAYS = {**PUT_ARRAYS, "counted": np.uint8}
_PLURAL = {"body": "bodies", "extra": "extras", "id": "ids"}
_ROW_COLUMNS = [_PLURAL.get(name, name) for name in Row.__struct_fields__]


def check_extra_size(size_bytes: int) -> None:
    """Raise InvalidHeaders for the size of a key and headers that no store has room for."""
    if size_bytes > MAX_EXTRA_BYTES:
        raise InvalidHeaders(
            f"headers: got {size_bytes} bytes with the key, expected at most {MAX_EXTRA_BYTES}"
        )


class Put(msgspec.Struct, frozen=True):
    """The result of one put message."""

    id: str
    result: Result
    number: int = 0


class PutAnswer(Sequence[Put]):
    """The result of each message of a put.

    ``ids``, ``results`` as codes of Result, and ``numbers`` as in :class:`dwell.Message`: the
    numbers of created messages, 0 for the others.
    """

    __slots__ = ("ids", "numbers", "results")

    def __init__(self, ids: Sequence[str], results: U8, numbers: U64) -> None:
        self.ids = ids
        self.results = results
        self.numbers = numbers

    @classmethod
    def empty(cls) -> "PutAnswer":
        """Return the answer to a put of nothing."""
        return cls([], np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.uint64))

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        return f"<PutAnswer of {len(self)}: {counts_text(self.results)}>"

    def __iter__(self) -> Iterator[Put]:
        return map(Put, self.ids, results_of(self.results), self.numbers.tolist())

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return PutAnswer(self.ids[index], self.results[index], self.numbers[index])
        return Put(self.ids[index], Result(int(self.results[index])), int(self.numbers[index]))


def uniform(value: int, size: int, dtype: type[np.generic]) -> np.ndarray:
    """Return a column that holds one value ``size`` times."""
    return np.full(size, value, dtype=dtype)
