"""Tables in files: Parquet, Arrow, CSV, read part by part for ``dwell put --from``."""

import contextlib
import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple, Self, TextIO

from dwell.errors import InvalidInput

#: Rows that are read at once.
_ROWS = 10_000
#: The suffixes of file names, and the format of each.
_FORMATS = {
    "parquet": "parquet",
    "pq": "parquet",
    "csv": "csv",
    "arrow": "arrow",
    "feather": "arrow",
    "ipc": "arrow",
    "arrows": "stream",
}
#: Suffixes of JSON lines, which are put as with --many.
LINES = ("ndjson", "jsonl")
#: The longest field of CSV. A body is shorter, and a field that is too long is a bad row.
_MAX_FIELD_CHARS = 2**30
#: The most lines that are left with a record that is no CSV.
_MOST_SKIPPED = 1_000
#: Quotes in a row, and quotes that close a field: pairs of quotes belong to its text.
_QUOTES, _CLOSES = re.compile('"+'), re.compile(r'(?<!")"(?:"")*(?=,|\s*$)')


class Part(NamedTuple):
    """Rows of a file: a table of Arrow, the number of each of its rows, and the bad rows."""

    table: Any
    numbers: Sequence[int]
    bad: Sequence[tuple[int, str]] = ()


def kind_of(name: str) -> str:
    """Return the suffix of a file's name; raises InvalidInput."""
    kind = Path(name).suffix.removeprefix(".").lower()
    if kind not in _FORMATS and kind not in LINES:
        allowed = ", ".join(f".{one}" for one in (*_FORMATS, *LINES))
        raise InvalidInput(f"from: got {name!r:.200}, expected a name that ends with {allowed}")
    return kind


@contextlib.contextmanager
def opened(name: str) -> Iterator[tuple[Iterator[Part], int | None]]:
    """Yield the parts of a file, and the number of rows if that is known at once.

    Raises InvalidInput if the file cannot be read, at once or at the part that cannot.
    """
    try:
        import pyarrow as pa
        import pyarrow.dataset
        import pyarrow.ipc
    except ImportError as error:
        raise InvalidInput(f"from: needs pip install 'dwell[arrow]': {error}") from None
    how, rows = _FORMATS[kind_of(name)], None
    with contextlib.ExitStack() as stack:
        try:
            if how == "csv":
                # Bytes that are no UTF-8 make a bad row, and end nothing.
                file = stack.enter_context(
                    open(name, encoding="utf-8-sig", errors="surrogateescape", newline="")
                )
                parts = _csv_parts(pa, name, file)
            elif how == "stream":
                source = stack.enter_context(pa.memory_map(name))
                parts = _arrow_parts(pa, name, pa.ipc.open_stream(source))
            else:
                data = _data_set(pa, name, how)
                parts = _arrow_parts(pa, name, data.scanner(batch_size=_ROWS).to_reader())
                rows = data.count_rows()
        except InvalidInput:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _refusal(name, error) from None
        yield parts, rows


def _data_set(pa: Any, name: str, how: str) -> Any:
    """Return a file or a folder with the columns of all its files, and not of the first alone."""
    data = pa.dataset.dataset(name, format=how)
    schemas = [fragment.physical_schema for fragment in data.get_fragments()]
    if len(schemas) < 2:
        return data
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    return pa.dataset.dataset(name, format=how, schema=schema)


def _arrow_parts(pa: Any, name: str, reader: Any) -> Iterator[Part]:
    row = 0
    try:
        for batch in reader:
            numbers = range(row, row := row + len(batch))
            yield Part(pa.Table.from_batches([batch]), numbers)
    except (pa.ArrowException, OSError) as error:
        raise _refusal(name, error, row) from None


def _refusal(name: str, error: Exception, row: int = 0) -> InvalidInput:
    after = f" from row {row} on" if row else ""
    return InvalidInput(f"from: cannot read {name!r:.200}{after}: {str(error)[:300]}")


def _csv_parts(pa: Any, name: str, file: TextIO) -> Iterator[Part]:
    """Return the parts of a CSV file, whose columns are text; an empty field but a body is null."""
    csv.field_size_limit(_MAX_FIELD_CHARS)
    found = _csv_records(file)
    names = next(found, [])
    fault = names if isinstance(names, str) else _fault(names, names)
    if isinstance(names, str) or fault:
        raise InvalidInput(f"from: column names of {name!r:.200}: {fault}")

    def parts() -> Iterator[Part]:
        records = enumerate(found)
        while some := list(islice(records, _ROWS)):
            yield _csv_part(pa, names, some)

    return parts()


def _csv_records(file: TextIO) -> Iterator[list[str] | str]:
    """Yield the fields of each record, or what is wrong with a line where no record begins."""
    lines = _Lines(file)
    # If it were not strict, a quote that is not closed would take all that follows into its field.
    reader = csv.reader(lines, strict=True)
    with contextlib.suppress(StopIteration):
        while True:
            lines.read.clear()
            try:
                # Lines without a field are no records.
                if record := next(reader):
                    yield record
            except csv.Error as error:
                yield from repeat(f"is no CSV: {error}", lines.skip())


class _Lines:
    """The lines of a file; ``read`` has the lines since a record began."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._again = deque[str]()
        self.read: list[str] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._file)
        self.read.append(line)
        return line

    def skip(self) -> int:
        """Leave a record that is no CSV; return how many of its lines are told.

        If the quote at fault opens a field of a later line, the field of the first was not closed,
        and the lines behind that are read again. If it stands in a text, no line up to the end of
        this text is a record.
        """
        quotes = (run for run in _QUOTES.finditer(self.read[-1]) if len(run[0]) % 2)
        fault = next(quotes, None)
        if len(self.read) == 1 or fault is None or self.read[-1][: fault.start()][-1:] in ("", ","):
            self._again.extendleft(reversed(self.read[1:]))
            return 1
        rest = self.read[-1][fault.end() :]
        while not _CLOSES.search(rest) and len(self.read) < _MOST_SKIPPED:
            rest = next(self, "")
            if not rest:
                break
        return len(self.read)


def _csv_part(pa: Any, names: list[str], records: list[tuple[int, list[str] | str]]) -> Part:
    bad = [(number, reason) for number, record in records if (reason := _fault(names, record))]
    left = dict(records)
    for number, _ in bad:
        del left[number]
    fields = zip(*left.values(), strict=True) if left else [()] * len(names)
    arrays = [
        pa.array(column if name == "body" else [text or None for text in column], pa.string())
        for name, column in zip(names, fields, strict=True)
    ]
    return Part(pa.table(arrays, names), [*left], bad)


def _fault(names: list[str], record: list[str] | str) -> str | None:
    """Return what is wrong with a record of CSV, None for a good one."""
    if isinstance(record, str):
        return record
    if len(record) != len(names):
        return f"got {len(record)} fields, expected {len(names)}"
    if not all(map(str.isascii, record)):
        try:
            "".join(record).encode()
        except UnicodeEncodeError:
            return "got bytes that are no UTF-8"
    return None
