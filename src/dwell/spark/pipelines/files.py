"""Micro-batches in files: a repeated batch replaces its earlier files."""

import re
import secrets

from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from dwell.errors import InvalidSettings

#: The columns in the names of the folders.
TARGET, BATCH = "target", "batch"

_EMPTY = "__EMPTY__"
#: Names of folders that stand for no text, and names that resemble them.
_STANDING = "^_+(EMPTY|HIVE_DEFAULT_PARTITION)__$"
_ID_CHARS = 8
_OWNER = "owner"
#: Characters with a meaning in a pattern of Hadoop's.
_SPECIAL = re.compile(r"[\\*?\[\]{}]")


def write(rows: DataFrame, number: int, out: str, format_: str, options: dict[str, str]) -> None:
    """Write the rows of a batch to OUT/target=.../batch=....

    Spark repeats a micro-batch if the driver died before the batch was in its log, and the first
    run may have written all, some or none of it. So each batch has folders of its own, named by the
    query and the number of the batch; their content is deleted, and then written again. The batch
    may also have fewer rows, or other targets, than the first time, if leases ended in between:
    those rows come again in a later batch, so that no folder of the old run may stay.

    The query's id is part of the name, because a query that starts with a new checkpoint counts
    from 0 again, and must not replace the folders of its predecessor.
    """
    name = batch_name(rows.sparkSession, number)
    delete(rows.sparkSession, f"{literal(out)}/{TARGET}=*/{BATCH}={name}")
    named = rows.withColumns({BATCH: F.lit(name), TARGET: _folder_name(F.col(TARGET))})
    writer = named.write.format(format_).mode("append").options(**options)
    writer.partitionBy(TARGET, BATCH).save(out)


def check_newest(spark: SparkSession, number: int, out: str) -> None:
    """Refuse a checkpoint whose next batch is before the last that was written from it.

    It was put back from a backup: the batches that come again have other rows, and writing them
    would delete the only place of earlier rows, whose messages are acked. The last batch that was
    written is not checked, as Spark may repeat it. Raises InvalidSettings.
    """
    name = batch_name(spark, number)
    query = name.partition("-")[0]
    found = names(spark, f"{literal(out)}/{TARGET}=*/{BATCH}={query}-*")
    last = max((one.removeprefix(f"{BATCH}=") for one in found), default=name)
    if last > name:
        raise InvalidSettings(
            f"--checkpoint: its next batch is {name}, but {out} has {last} already, expected the "
            "newest checkpoint, or a new one"
        )


def _folder_name(target: Column) -> Column:
    """Return the name of a target's folder, unique for each target.

    For Spark an empty text is not the name of a folder, and would share the folder of null. A name
    that resembles a special name gets one more underscore.
    """
    named = F.when(target == "", _EMPTY).when(target.rlike(_STANDING), F.concat(F.lit("_"), target))
    return named.otherwise(target)


def batch_name(spark: SparkSession, number: int) -> str:
    """Return the unique name of a batch, across queries; names sort by number."""
    query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "none"
    return f"{query[:_ID_CHARS]}-{number:09}"


def owner(spark: SparkSession, checkpoint: str) -> str:
    """Return the owner of a checkpoint's messages: the same in every run.

    Spark's own name exists only from the first logged batch on, and a driver that dies before that
    would leave messages under lease.
    """
    system, pattern = _path(spark, f"{literal(checkpoint)}/{_OWNER}-*")
    for found in system.globStatus(pattern) or []:
        return str(found.getPath().getName())
    name = f"{_OWNER}-{secrets.token_hex(8)}"
    system.mkdirs(_path(spark, f"{checkpoint}/{name}")[1])
    return name


def literal(name: str) -> str:
    """Return a pattern that matches exactly one name."""
    return _SPECIAL.sub(r"\\\g<0>", name)


def names(spark: SparkSession, pattern: str) -> list[str]:
    """Return the names that match a pattern."""
    system, path = _path(spark, pattern)
    return [str(found.getPath().getName()) for found in system.globStatus(path) or []]


def rename(spark: SparkSession, old: str, new: str) -> None:
    """Rename a file, replacing an existing one."""
    system, path = _path(spark, new)
    system.delete(path, True)
    system.rename(_path(spark, old)[1], path)


def delete(spark: SparkSession, pattern: str) -> None:
    """Delete all folders of a pattern."""
    system, path = _path(spark, pattern)
    for found in system.globStatus(path) or []:
        system.delete(found.getPath(), True)


def _path(spark: SparkSession, name: str) -> tuple[JavaObject, JavaObject]:
    """Return the file system of a name, of any kind, and the path in it."""
    jvm = spark._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(name)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path
