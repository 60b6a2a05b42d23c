"""Frames as each tool makes them, and the messages that their rows mean."""

from dataclasses import dataclass
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

from dwell.message import DEFAULT_PRIORITY
from tests.frames.kinds import COLUMNS, NOW_MS, WHEN, Bad, Kind

#: What a message has that a frame can say.
Meaning = tuple[bytes, int, str | None, int, dict[str, str]]
_MOST_ROWS = 6


@dataclass
class Frame:
    """A drawn frame: the kind of each column, and its rows."""

    tool: str
    kinds: dict[str, Kind]
    rows: list[dict[str, Any]]

    def made(self) -> Any:
        """Return it as the tool's own table."""
        return {
            "pyarrow": self._arrow,
            "polars": lambda: pl.from_arrow(self._arrow()),
            "pandas": self._pandas,
            "duckdb": self._duckdb,
        }[self.tool]()

    def _arrow(self) -> pa.Table:
        arrays = {
            name: array_of(kind.type, [row[name] for row in self.rows])
            for name, kind in self.kinds.items()
        }
        return pa.table(arrays)

    def _pandas(self) -> pd.DataFrame:
        # A row that is dropped leaves an index that Arrow writes as a column.
        frame = self._arrow().to_pandas()
        return pd.concat([frame.head(1), frame]).reset_index(drop=True).drop(0)

    def _duckdb(self) -> Any:
        plain = self._arrow()
        casts = [
            f'CAST("{name}" AS {kind.in_duckdb}) AS "{name}"' if kind.in_duckdb else f'"{name}"'
            for name, kind in self.kinds.items()
        ]
        return duckdb.from_arrow(plain).project(", ".join(casts))

    def meanings(self) -> list[Meaning | None]:
        """Return the message of each row, None for a bad row."""
        return [self._meaning(row) for row in self.rows]

    def _meaning(self, row: dict[str, Any]) -> Meaning | None:
        found: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            if row[name] is None:
                if COLUMNS[name][1]:
                    return None
                continue
            try:
                found[name] = kind.means(row[name])
            except Bad:
                return None
        due_ms = next((found[name] for name in WHEN if name in found), NOW_MS)
        return (
            found["body"],
            due_ms,
            found.get("id"),
            found.get("priority", DEFAULT_PRIORITY),
            found.get("headers", {}),
        )


def array_of(kind: pa.DataType, many: list[Any]) -> pa.Array:
    """Return values as an array; PyArrow makes none of some types itself."""
    if isinstance(kind, pa.UuidType):
        stored = [None if one is None else one.bytes for one in many]
        return pa.ExtensionArray.from_storage(kind, pa.array(stored, pa.binary(16)))
    if isinstance(kind, pa.JsonType):
        return pa.ExtensionArray.from_storage(kind, pa.array(many, kind.storage_type))
    if pa.types.is_dictionary(kind):
        return pa.array(many, kind.value_type).dictionary_encode()
    return pa.array(many, kind)


@st.composite
def frames(draw: Any, tool: str) -> Frame:
    """Draw a frame of a tool: a body, at most one column that says when, and some others."""
    names = ["body", *draw(st.lists(st.sampled_from(["id", "priority", "headers"]), unique=True))]
    names += draw(st.lists(st.sampled_from(WHEN), max_size=1))
    kinds = {}
    for name in names:
        able = [kind for kind in COLUMNS[name][0] if tool in kind.tools.split()]
        if able:
            kinds[name] = draw(st.sampled_from(able))
    drawn = {name: st.none() | kind.drawn for name, kind in kinds.items()}
    rows = draw(st.lists(st.fixed_dictionaries(drawn), min_size=1, max_size=_MOST_ROWS))
    for at, row in enumerate(rows):
        if isinstance(row.get("id"), str) and kinds["id"].name == "names":
            # The second of two rows with an id would be kept.
            row["id"] = row["id"] and f"{row['id']}{at}"
    return Frame(tool, kinds, rows)
