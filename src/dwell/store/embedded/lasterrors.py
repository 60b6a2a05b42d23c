"""Last errors: why messages failed, by row, and how much room they take in a snapshot."""

from collections.abc import Iterable, Mapping

from dwell.batch.blobs import text_bytes

#: What an error takes in a snapshot beside its text: its row and its length.
_BESIDE_BYTES = 8


class LastErrors(dict[int, str]):
    """The errors by row; change them only by the methods here."""

    def __init__(self) -> None:
        super().__init__()
        #: How many bytes they take in a snapshot.
        self.size_bytes = 0

    def note(self, told: Mapping[int, str]) -> None:
        """Note errors of rows, in place of older ones."""
        self.forget(told.keys())
        self.size_bytes += sum(map(_size_bytes, told.values()))
        self.update(told)

    def forget(self, rows: Iterable[int]) -> None:
        """Forget the errors of rows, if they have any."""
        if self:
            for row in self.keys() & set(rows):
                self.size_bytes -= _size_bytes(self.pop(row))


def _size_bytes(error: str) -> int:
    return _BESIDE_BYTES + text_bytes(error)
