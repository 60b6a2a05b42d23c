"""Bad rows: rows that the queue refuses, with the reasons."""

import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame

from dwell.errors import InvalidInput
from dwell.spark.plain import shown
from dwell.spark.rows import REFUSED

_SHOWN_CHARS = 300


class BadRow(InvalidInput):
    """A row that the queue refuses, with the reason."""


class BadRows:
    """Keeps the bad rows of one task in a file of a folder; without a folder the first raises.

    The file is named after the task, so that a repeated task writes the same file.
    """

    def __init__(self, folder: str | None, name: str) -> None:
        self._folder, self._name = folder, name
        self._rows: list[pa.RecordBatch] = []
        self._reasons: list[str] = []

    def add(self, row: pa.RecordBatch, error: InvalidInput) -> None:
        """Add a row; raises BadRow without a folder."""
        if REFUSED in row.schema.names:
            # The reason contains it.
            row = row.drop_columns([REFUSED])
        if self._folder is None:
            raise BadRow(f"row {_shown(row)}: {error}")
        self._rows.append(row)
        self._reasons.append(str(error))

    def close(self) -> None:
        """Write the rows, if there are any."""
        if self._folder is None or not self._rows:
            return
        table = _storable(pa.Table.from_batches(self._rows))
        name = _reason_name(table.column_names)
        table = table.append_column(name, pa.array(self._reasons, pa.string()))
        files, folder = _opened(self._folder)
        files.create_dir(folder, recursive=True)
        # Two attempts may end at once, and readers skip names that start with a dot.
        new = f"{folder}/.bad-{self._name}-{secrets.token_hex(4)}.parquet"
        pyarrow.parquet.write_table(table, new, filesystem=files)
        files.move(new, f"{folder}/bad-{self._name}.parquet")


def _reason_name(taken: list[str]) -> str:
    """Return the name of the column of reasons: Spark ignores case in names."""
    lower, name = {one.lower() for one in taken}, "reason"
    while name in lower:
        name = f"bad_{name}"
    return name


def _storable(table: pa.Table) -> pa.Table:
    """Return a table with texts in place of columns that Parquet cannot store."""
    for at, field in enumerate(table.schema):
        try:
            pyarrow.parquet.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowException:
            values = [
                shown(chunk.slice(row))
                for chunk in table.column(at).chunks
                for row in range(len(chunk))
            ]
            table = table.set_column(at, field.name, pa.array(values, pa.string()))
    return table


def set_aside(rows: DataFrame, folder: str, name: str, reason: str) -> None:
    """Write all rows of a frame to a folder, for one reason; ``name`` identifies the frame.

    A frame that is written again replaces its earlier rows.
    """

    def keep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "rows are kept in a task"
        bad = BadRows(folder, f"{name}-{context.partitionId()}")
        for batch in batches:
            for at in range(len(batch)):
                bad.add(batch.slice(at, 1), InvalidInput(reason))
            yield pa.RecordBatch.from_pydict({"kept": [len(batch)]})
        bad.close()

    rows.mapInArrow(keep, "kept LONG").collect()


def _opened(folder: str) -> tuple[Any, str]:
    if "://" in folder:
        files, path = pyarrow.fs.FileSystem.from_uri(folder)
        return files, path
    return pyarrow.fs.LocalFileSystem(), folder


def _shown(row: pa.RecordBatch) -> str:
    try:
        text = str(row.to_pylist()[0])
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
        # Python cannot represent one of the values, which may be why the row is bad.
        text = ", ".join(f"{name}: {shown(row.column(name))}" for name in row.schema.names)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
