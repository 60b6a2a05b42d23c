"""Sessions of Spark for these pipelines."""

import os

from pyspark.sql import SparkSession

from dwell.spark.workers import use_this_python

#: Settings that were measured to halve the time of a small micro-batch, with checkpoints on local
#: disks.
_LOCAL_DISKS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

_USUAL = {
    "spark.sql.session.timeZone": "UTC",
    # Otherwise each call finds out where in Python a column was made, which takes half the time of
    # building a query; an error in a query of text includes its text all the same.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


def session(
    name: str, master: str | None = None, settings: dict[str, str] | None = None
) -> SparkSession:
    """Return the session of this process, or a new one; ``settings`` are Spark's own.

    Without a ``master`` it is taken from ``spark-submit`` or ``SPARK_REMOTE``, or else is this
    machine.
    """
    builder = SparkSession.builder.appName(name)
    given = dict(settings or {})
    if master is None and not {"SPARK_ENV_LOADED", "SPARK_REMOTE"} & os.environ.keys():
        master = "local[*]"
    is_local = master is not None and master.startswith("local")
    use_this_python(is_local=is_local)
    if master is not None:
        builder = builder.master(master)
        if is_local:
            given = {**_LOCAL_DISKS, "spark.ui.enabled": "false", **given}
    given = {**_USUAL, **given}
    for key, value in given.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
