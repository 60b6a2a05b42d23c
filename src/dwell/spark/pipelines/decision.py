"""A decision: the plan of a run, written to files before any of it is done.

When a machine is lost, Spark recomputes its caches and shuffles from the queue as it is at that
time. So a run works from files; and a killed run can be completed by the next run, which finds
them.
"""

import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from dwell.errors import InvalidSettings
from dwell.spark.pipelines import files
from dwell.spark.pipelines.page import inside, save

_ABOUT = "about.json"


@contextlib.contextmanager
def folder(spark: SparkSession, given: str | None) -> Iterator[str]:
    """Yield the folder of a decision; a temporary folder is deleted at the end.

    Raises InvalidSettings without a folder that all machines reach.
    """
    if given is not None:
        yield given
        return
    shared = spark.conf.get("spark.checkpoint.dir", None)
    if shared is not None:
        place = inside(shared, f"dwell-{secrets.token_hex(8)}")
        try:
            yield place
        finally:
            files.delete(spark, files.literal(place))
        return
    if not str(spark.sparkContext.master).startswith("local"):
        raise InvalidSettings(
            "--checkpoint: got none, expected a folder that all machines of Spark reach"
        )
    with tempfile.TemporaryDirectory(prefix="dwell-") as local:
        yield f"file://{local}"


def kept(rows: DataFrame, place: str, name: str) -> DataFrame:
    """Write rows to the decision, and return them as stored."""
    rows.write.mode("overwrite").parquet(inside(place, name))
    return found(rows.sparkSession, place, name)


def found(spark: SparkSession, place: str, name: str) -> DataFrame:
    """Return stored rows."""
    return spark.read.parquet(files.literal(inside(place, name)))


def seal(spark: SparkSession, place: str, settings: msgspec.Struct, **about: int) -> None:
    """Mark a decision as whole, with its settings."""
    new = inside(place, f"{_ABOUT}.new")
    text = msgspec.json.encode({"settings": msgspec.to_builtins(settings), **about})
    save(spark, new, text.decode())
    files.rename(spark, new, inside(place, _ABOUT))


def about(spark: SparkSession, place: str) -> dict[str, Any] | None:
    """Return the settings of the decision in a folder; None without a whole decision."""
    file = files.literal(inside(place, _ABOUT))
    if not files.names(spark, file):
        return None
    (row,) = spark.read.text(file, wholetext=True).collect()
    return msgspec.json.decode(row.value, type=dict[str, Any])


def unfinished(spark: SparkSession, place: str, settings: msgspec.Struct) -> dict[str, Any] | None:
    """Return the settings of the decision of an unfinished run; None without one.

    Raises InvalidSettings if it was made with other settings.
    """
    before = about(spark, place)
    if before is not None and before["settings"] != msgspec.to_builtins(settings):
        raise InvalidSettings(
            f"--checkpoint: got {place}, where a run with other settings was not ended; "
            "expected the same settings, or another folder"
        )
    return before


def forget(spark: SparkSession, place: str, *names: str) -> None:
    """Delete a decision when it is done: the mark of a whole decision goes first."""
    for name in (_ABOUT, *names):
        files.delete(spark, files.literal(inside(place, name)))
