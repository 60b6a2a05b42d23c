"""Lines of JSON, each one message: read, checked one by one, and gathered into batches."""

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import msgspec

from dwell.batch.puts import Row
from dwell.clock import Clock
from dwell.errors import InvalidInput
from dwell.given import columns, values
from dwell.given.rows import row_of
from dwell.message import MAX_BATCH_BYTES, MAX_BODY_BYTES
from dwell.wire.rows import Line, body_of, words_of
from dwell.wire.unknown import explained

BATCH_LINES = 1000

#: Longer than any valid line: a body with every byte escaped, and the other fields.
MAX_LINE_BYTES = 8 * MAX_BODY_BYTES


class Reader:
    """Reads lines into batches of rows; ``size_bytes`` is how much it has read.

    Relative times count from ``now_ms``; ``levels_ms`` are the topic's delay levels.
    """

    def __init__(
        self, source: BinaryIO, defaults: Line, clock: Clock, levels_ms: Sequence[int]
    ) -> None:
        self.size_bytes = 0
        self.now_ms = clock.now_ms()
        self._source = source
        self._defaults = defaults
        self._levels_ms = levels_ms
        self._decoder = msgspec.json.Decoder(Line)

    def batches(self) -> Iterator[list[Row]]:
        """Yield the rows in batches; raises InvalidInput, or a child of it, naming the line."""
        batch: list[Row] = []
        size = 0
        for row in self._rows():
            if len(batch) == BATCH_LINES or size + len(row.body) > MAX_BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += len(row.body)
        if batch:
            yield batch

    def _rows(self) -> Iterator[Row]:
        for number, data in enumerate(self._lines(), 1):
            self.size_bytes += len(data)
            try:
                if not data.isspace():
                    yield self._row(data)
            except InvalidInput as error:
                raise type(error)(f"line {number}: {error}") from None

    def _lines(self) -> Iterable[bytes]:
        return iter(lambda: self._source.readline(MAX_LINE_BYTES + 1), b"")

    def _row(self, data: bytes) -> Row:
        if len(data) > MAX_LINE_BYTES:
            raise InvalidInput(f"got more than {MAX_LINE_BYTES} bytes in one line")
        try:
            # The body is stored as written, so nothing else would check its bytes.
            line = self._decoder.decode(data.decode())
            return self._checked(_merged(line, self._defaults))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(explained(error, Line)) from None

    def _checked(self, line: Line) -> Row:
        """Return a line as a row; raises the errors of :meth:`dwell.Queue.put`."""
        body = values.body(body_of(line))
        return row_of(body, self.now_ms, self._levels_ms, **words_of(line))


#: Groups of fields; a message states at most one field of each.
_TIMES = ("delay", "due", "due_ms", "delay_level")
_ENDS = ("ttl", "expires")


def _merged(line: Line, defaults: Line) -> Line:
    """Return a line with its missing fields taken from the options of the command."""
    said = {
        name
        for group in (_TIMES, _ENDS)
        if any(getattr(line, one) is not None for one in group)
        for name in group
    }
    missing = {
        name: default
        for name in Line.__struct_fields__
        if getattr(line, name) is None
        and (default := getattr(defaults, name)) is not None
        and name not in said
    }
    merged = msgspec.structs.replace(line, **missing)
    columns.one_of(**{name: getattr(merged, name) for name in _TIMES})
    return merged
