"""Departures of US airports in 2001, from the package vega-datasets, with the zone of each airport.

The rows have a local time without a zone, some are there twice, and the zone of an airport that is
not known any more is null.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import airportsdata
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_SOURCE = Path(__file__).parents[2] / ".brokers" / "vega" / "flights-3m.parquet"
_PART_ROWS = 250_000
_MINUTE_US = 60_000_000
_EPOCH = datetime(1970, 1, 1)


class Truth(NamedTuple):
    """What is to become of the rows.

    ``sums`` has the number of messages of each zone, and the sum of their dues in epoch minutes.
    """

    created: int
    kept: int
    bad: int
    sums: Mapping[str, tuple[int, int]]


def load(most: int | None = None) -> pa.Table:
    """Read the departures, or some of them that are spread over the table."""
    table = pq.read_table(_SOURCE)
    if most is not None:
        places = np.arange(min(most, len(table))) * len(table) // min(most, len(table))
        table = table.take(pa.array(places))
    airports = airportsdata.load("IATA")
    names = table["origin"].combine_chunks().dictionary_encode()
    found = (airports.get(name) for name in names.dictionary.to_pylist())
    zones = [None if airport is None else airport["tz"] for airport in found]
    zone = pa.DictionaryArray.from_arrays(names.indices, pa.array(zones, pa.string()))
    return table.append_column("zone", zone.cast(pa.string()))


def save(table: pa.Table, folder: Path) -> None:
    """Write the rows as Parquet, in several files so that several tasks can read them."""
    folder.mkdir(parents=True)
    for at in range(0, len(table), _PART_ROWS):
        pq.write_table(table.slice(at, _PART_ROWS), folder / f"{at:09}.parquet")


def truth(table: pa.Table) -> Truth:
    """Return what is to become of the rows; the zones are those of Python's zoneinfo."""
    known = table.filter(pc.is_valid(table["zone"]))
    once = known.group_by(known.column_names).aggregate([])
    dues = pa.table({"zone": once["zone"], "due": _due_min(once)})
    rows = dues.group_by("zone").aggregate([("due", "count"), ("due", "sum")]).to_pylist()
    sums = {row["zone"]: (row["due_count"], row["due_sum"]) for row in rows}
    return Truth(len(once), len(known) - len(once), len(table) - len(known), sums)


def _due_min(table: pa.Table) -> np.ndarray:
    """Return when each row is due, in epoch minutes; clocks change at full hours."""
    minutes = pc.cast(table["date"], pa.int64()).to_numpy() // _MINUTE_US
    zones = table["zone"].combine_chunks().dictionary_encode()
    names = zones.dictionary.to_pylist()
    pairs = np.stack([zones.indices.to_numpy(), minutes // 60], axis=1)
    different, which = np.unique(pairs, axis=0, return_inverse=True)
    offsets = [_offset_min(names[zone], hour) for zone, hour in different.tolist()]
    found: np.ndarray = minutes - np.array(offsets, np.int64)[which.reshape(-1)]
    return found


def _offset_min(zone: str, hour: int) -> int:
    """Return how far a zone is from UTC in a local hour: before a change in one that is skipped."""
    local = (_EPOCH + timedelta(hours=hour)).replace(tzinfo=ZoneInfo(zone))
    offset = local.utcoffset()
    assert offset is not None, "a zone has an offset at each time"
    return round(offset.total_seconds() / 60)
