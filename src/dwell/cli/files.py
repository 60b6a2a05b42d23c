"""Tables in files: Parquet, Arrow, CSV, read batch by batch for ``dwell put --from``."""

from pathlib import Path
from typing import Any

from dwell.errors import InvalidInput
from dwell.given.options import TABLE_COLUMNS

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
#: Columns of CSV that are whole numbers, like the milliseconds; all others are text.
_NUMBERS = ("priority", "max_attempts", "delay_level")


def kind_of(name: str) -> str:
    """Return the suffix of a file's name; raises InvalidInput."""
    kind = Path(name).suffix.removeprefix(".").lower()
    if kind not in _FORMATS and kind not in LINES:
        allowed = ", ".join(f".{one}" for one in (*_FORMATS, *LINES))
        raise InvalidInput(f"from: got {name!r:.200}, expected a name that ends with {allowed}")
    return kind


def opened(name: str) -> tuple[Any, int | None]:
    """Return a reader of record batches, and the number of rows if that is known at once.

    Raises InvalidInput if the file cannot be read.
    """
    try:
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.dataset
        import pyarrow.ipc
    except ImportError as error:
        raise InvalidInput(f"from: needs pip install 'dwell[arrow]': {error}") from None
    how = _FORMATS[kind_of(name)]
    try:
        if how == "stream":
            return pa.ipc.open_stream(pa.memory_map(name)), None
        if how == "csv":
            return pa.csv.open_csv(name, convert_options=_csv_options(pa)), None
        data = pa.dataset.dataset(name, format=how)
        return data.scanner(batch_size=_ROWS).to_reader(), data.count_rows()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"from: cannot read {name!r:.200}: {str(error)[:300]}") from None


def _csv_options(pa: Any) -> Any:
    types = {
        name: pa.int64() if name in _NUMBERS or name.endswith("_ms") else pa.string()
        for name in TABLE_COLUMNS
    }
    # An empty text field is null, except for a body.
    return pa.csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=[""])
