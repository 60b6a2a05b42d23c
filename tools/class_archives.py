"""Archives of classes: what the Java programs of the tests load at each start, made ready once.

They are dynamic archives of the JVM (JEP 350), made as a program ends. One that is not there, or
was made for other jars, is passed over by the JVM without a word.
"""

import signal
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from bench.brokers import ARCHIVE, Kafka
from bench.servers import free_port
from dwell.spark.pipelines.books import books
from dwell.spark.schemas import EVENTS
from dwell.spark.session import session


def of_spark(archive: Path) -> None:
    """Make one of what Spark needs for queries, files and a stream."""
    options = f"-Xlog:disable -XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive}"
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.extraJavaOptions": options,
        "spark.ui.showConsoleProgress": "false",
    }
    spark = session("archive", "local[2]", settings)
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as folder:
        _query(spark, Path(folder))
    spark.stop()


def _query(spark: SparkSession, folder: Path) -> None:
    books(spark.createDataFrame([], EVENTS))
    rows = spark.range(10).selectExpr("id", "cast(id as string) as text")
    rows.write.parquet(str(folder / "rows"))
    stream = spark.readStream.schema(rows.schema).parquet(str(folder / "rows"))
    sink = stream.writeStream.format("parquet").trigger(availableNow=True)
    places = {"path": folder / "copies", "checkpointLocation": folder / "checkpoint"}
    sink.options(**{name: str(place) for name, place in places.items()}).start().awaitTermination()


def of_kafka(archive: Path) -> None:
    """Make one of what a Kafka server needs until it answers."""
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        kafka = Kafka(Path(folder), free_port())
        kafka.prepare()
        try:
            kafka.start(f"-XX:ArchiveClassesAtExit={archive}")
        finally:
            kafka.kill(signal.SIGTERM)


if __name__ == "__main__":
    of_kafka(ARCHIVE)
    of_spark(ARCHIVE.with_name("spark.jsa"))
