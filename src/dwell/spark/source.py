"""The data source ``dwell``: selects the view or verb for the options."""

import sys

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from dwell.errors import InvalidSettings

#: The program of Spark that asks a reader for the filters it accepts. Elsewhere Spark refuses a
#: reader that accepts some, if its setting disables pushdown.
_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class DwellSource(DataSource):
    """The queue as a table and a stream; docs/reference/spark.md has the options.

    The modules of a view or a verb are imported on use, so that finding the source is cheap.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "dwell"

    def schema(self) -> str:
        """Return the columns of the view."""
        from dwell.spark.options import ReadOptions, parsed
        from dwell.spark.schemas import VIEWS

        # Refused here, because Spark hides the reason of a refused stream behind an error of its
        # own.
        options = parsed(ReadOptions, self.options)
        options.check()
        return VIEWS[options.view]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a view as it is now."""
        from dwell.spark.events import EventsReader
        from dwell.spark.messages import FilteredMessagesReader, MessagesReader
        from dwell.spark.options import ReadOptions, parsed

        options = parsed(ReadOptions, self.options)
        if options.view == "events":
            return EventsReader(options, schema)
        if options.view == "messages":
            chosen = FilteredMessagesReader if _PUSHDOWN in sys.modules else MessagesReader
            return chosen(options, schema)
        raise InvalidSettings("view: got due in a batch, expected a stream (readStream)")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader that follows a view."""
        from dwell.spark.options import ReadOptions, parsed

        options = parsed(ReadOptions, self.options)
        if options.view == "messages":
            raise InvalidSettings("view: got messages in a stream, expected events or due")
        try:
            from dwell.spark.due import DueStream
            from dwell.spark.eventstream import EventStream
        except ImportError as error:
            raise InvalidSettings(f"readStream needs Spark 4.2 or later: {error}") from None
        return (DueStream if options.view == "due" else EventStream)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch of rows."""
        from dwell.spark.options import WriteOptions, parsed
        from dwell.spark.writing import BatchWriter

        if overwrite:
            raise InvalidSettings('mode: got overwrite, expected append (mode("append"))')
        return BatchWriter(parsed(WriteOptions, self.options), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer of the rows of each micro-batch."""
        from dwell.spark.options import WriteOptions, parsed
        from dwell.spark.writing import StreamWriter

        if overwrite:
            raise InvalidSettings("outputMode: got complete, expected append or update")
        return StreamWriter(parsed(WriteOptions, self.options), schema)
