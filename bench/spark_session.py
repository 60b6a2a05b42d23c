"""The Spark session of the benchmarks: this machine's two cores, which the server has as well."""

import contextlib
import tempfile
from collections.abc import Iterator

from pyspark.sql import SparkSession

from dwell.spark import session


@contextlib.contextmanager
def local_spark(name: str, more: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """Run Spark as ``local[2]`` until the block ends; ``more`` are settings of its own."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        spark = session(
            f"bench-{name}",
            "local[2]",
            {
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": folder,
                "spark.ui.showConsoleProgress": "false",
                "spark.driver.memory": "3g",
                **(more or {}),
            },
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()
