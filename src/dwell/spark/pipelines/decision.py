"""A decision: what is to be done, written down before any of it is done.

What Spark keeps in its caches and shuffles it makes again when a machine is lost, from the queue as
it is by then. So what a run goes by stands in files; and a run that was killed can be ended by the
next one, which finds them.
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
    """Yield the folder of a decision; one that was not given is gone at the end.

    Raises InvalidSettings where there is none that all machines reach.
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
    """Write rows down, and return them as they stand there."""
    rows.write.mode("overwrite").parquet(inside(place, name))
    return found(rows.sparkSession, place, name)


def found(spark: SparkSession, place: str, name: str) -> DataFrame:
    """Return rows that were written down."""
    return spark.read.parquet(files.literal(inside(place, name)))


def seal(spark: SparkSession, place: str, settings: msgspec.Struct, **about: int) -> None:
    """Say that a decision is whole, and what it is about."""
    new = inside(place, f"{_ABOUT}.new")
    text = msgspec.json.encode({"settings": msgspec.to_builtins(settings), **about})
    save(spark, new, text.decode())
    files.rename(spark, new, inside(place, _ABOUT))


def about(spark: SparkSession, place: str) -> dict[str, Any] | None:
    """Return what the decision in a folder is about; None where there is no whole one."""
    file = files.literal(inside(place, _ABOUT))
    if not files.names(spark, file):
        return None
    (row,) = spark.read.text(file, wholetext=True).collect()
    return msgspec.json.decode(row.value, type=dict[str, Any])


def unfinished(spark: SparkSession, place: str, settings: msgspec.Struct) -> dict[str, Any] | None:
    """Return what the decision of a run is about that was not ended; None where there is none.

    Raises InvalidSettings for one that was made with other settings.
    """
    before = about(spark, place)
    if before is not None and before["settings"] != msgspec.to_builtins(settings):
        raise InvalidSettings(
            f"--checkpoint: got {place}, where a run with other settings was not ended; "
            "expected the same settings, or another folder"
        )
    return before


def forget(spark: SparkSession, place: str, *names: str) -> None:
    """Forget a decision, as all of it is done: what says that it is whole goes first."""
    for name in (_ABOUT, *names):
        files.delete(spark, files.literal(inside(place, name)))
