"""Last errors: why messages failed, by row, and their size in a snapshot."""

from collections.abc import Iterable, Mapping

from dwell.batch.blobs import text_bytes

#: Bytes of an error in a snapshot in addition to its text: its row and its length.
_BESIDE_BYTES = 8


class LastErrors(dict[int, str]):
    """The errors by row; change them only by the methods here."""

    def __init__(self) -> None:
        super().__init__()
        #: The size of the errors in a snapshot, in bytes.
        self.size_bytes = 0

    def note(self, told: Mapping[int, str]) -> None:
        """Set the errors of rows, replacing older errors."""
        self.forget(told.keys())
        self.size_bytes += sum(map(_size_bytes, told.values()))
        self.update(told)

    def forget(self, rows: Iterable[int]) -> None:
        """Delete the errors of rows, if any."""
        if self:
            for row in self.keys() & set(rows):
                self.size_bytes -= _size_bytes(self.pop(row))


def _size_bytes(error: str) -> int:
    return _BESIDE_BYTES + text_bytes(error)
