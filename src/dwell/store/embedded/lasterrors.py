"""Last errors: why messages failed, by row, and their size in a snapshot."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from dwell.batch.blobs import text_bytes

#: Bytes of an error in a snapshot in addition to its text: its row and its length.
_BESIDE_BYTES = 8
#: Rows of a part: a dict of a million errors stops everything else while it grows.
_PART_BITS = 12


class LastErrors:
    """The errors by row."""

    def __init__(self) -> None:
        self._parts: defaultdict[int, dict[int, str]] = defaultdict(dict)
        #: The size of the errors in a snapshot, in bytes.
        self.size_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def __bool__(self) -> bool:
        return bool(self._parts)

    def get(self, row: int) -> str | None:
        """Return the error of a row, None without one."""
        part = self._parts.get(row >> _PART_BITS)
        return None if part is None else part.get(row)

    def items(self) -> Iterator[tuple[int, str]]:
        """Yield rows with their errors, in no order."""
        for part in self._parts.values():
            yield from part.items()

    def copy(self) -> "LastErrors":
        """Return a copy that does not change."""
        copied = LastErrors()
        copied._parts.update((number, part.copy()) for number, part in self._parts.items())
        copied.size_bytes = self.size_bytes
        return copied

    def note(self, told: Mapping[int, str]) -> None:
        """Set the errors of rows, replacing older errors."""
        self.forget(told.keys())
        for row, error in told.items():
            self._parts[row >> _PART_BITS][row] = error
        self.size_bytes += sum(map(_size_bytes, told.values()))

    def forget(self, rows: Iterable[int]) -> None:
        """Delete the errors of rows, if any."""
        if not self._parts:
            return
        for row in rows:
            number = row >> _PART_BITS
            if number in self._parts and (error := self._parts[number].pop(row, None)) is not None:
                self.size_bytes -= _size_bytes(error)
                if not self._parts[number]:
                    del self._parts[number]


def _size_bytes(error: str) -> int:
    return _BESIDE_BYTES + text_bytes(error)
