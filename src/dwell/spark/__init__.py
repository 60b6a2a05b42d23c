"""The queue as a table and a stream of Spark: the data source ``dwell``.

::

    spark.read.format("dwell").option("url", "http://localhost:8410").load()

Spark finds it if this package is installed; :func:`register` makes it known elsewhere.
"""

from pyspark.sql import SparkSession

from dwell.spark.session import session
from dwell.spark.source import DwellSource

__all__ = ["DwellSource", "register", "session"]


def register(spark: SparkSession) -> None:
    """Register the data source with a session if Spark has not found it."""
    if not _is_known(spark):
        spark.dataSource.register(DwellSource)


def _is_known(spark: SparkSession) -> bool:
    """Tell whether Spark has found the data source; over Spark Connect it is unknown.

    A second registration would make Spark warn about a replaced data source.
    """
    java = getattr(spark, "_jsparkSession", None)
    if java is None:
        return False
    return bool(java.sessionState().dataSourceManager().dataSourceExists(DwellSource.name()))
