"""The Spark session of a job: quiet, on two cores, with its tables in the job's own folder."""

from pathlib import Path

from pyspark.sql import SparkSession

import dwell.spark

#: Two cores, and a task that a killed server has failed is tried again.
PATIENT = "local[2,4]"


def session(
    name: str, folder: Path, master: str = PATIENT, more: dict[str, str] | None = None
) -> SparkSession:
    """Return a session that knows the data source; ``more`` are settings of its own."""
    settings = {
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        **(more or {}),
    }
    spark = dwell.spark.session(name, master, settings)
    dwell.spark.register(spark)
    return spark
