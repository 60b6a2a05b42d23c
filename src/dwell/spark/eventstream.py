"""The stream of the view ``events``: the offset is a position, so every event comes once."""

from collections.abc import Iterator, Sequence
from typing import TypedDict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dwell.spark.events import check_kept, ends_of, parts_of, read_events
from dwell.spark.options import ReadOptions
from dwell.spark.remote import Remote
from dwell.spark.tables import event_table


class Offset(TypedDict):
    """Where the next event of a stream stands."""

    position: int


class EventStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the events."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        event_table(schema)
        self._options, self._schema = options, schema
        self._remote = Remote(options)
        self._target: int | None = None

    def initialOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802
        """Return where a new query begins."""
        named = self._options.start_position
        if isinstance(named, int):
            return {"position": named}
        first, end = ends_of(self._remote.queue)
        return {"position": end if named == "latest" else first}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how many events a micro-batch may have."""
        most = self._options.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override]  # noqa: N802
        """Return where the next micro-batch ends; raises EventsDropped."""
        first, end = ends_of(self._remote.queue)
        check_kept(self._options, start["position"], first)
        begin = max(start["position"], first)
        if self._target is not None:
            end = min(end, self._target)
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        return {"position": max(end, start["position"])}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the events end now: the query ends there too."""
        self._target = ends_of(self._remote.queue)[1]

    def partitions(  # type: ignore[override]
        self, start: Offset, end: Offset
    ) -> Sequence[InputPartition]:
        """Return the parts of a micro-batch, each for one task."""
        return parts_of(self._options, start["position"], end["position"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part."""
        return read_events(self._options, self._schema, partition)

    def stop(self) -> None:
        """Let go of the server."""
        self._remote.close()
