"""The stream of the view ``events``: the offset is a position, so every event comes once.

The offset also has the history of the event before the position. If the server has another history,
or no such position, its store was restored from an older copy or is another one: the read events
are not its own, and going on would skip events silently.
"""

from collections.abc import Iterator, Sequence
from typing import NotRequired, TypedDict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dwell.spark.events import (
    check_history,
    check_kept,
    ends_of,
    parts_of,
    read_events,
    seen_at,
)
from dwell.spark.options import ReadOptions
from dwell.spark.remote import Remote
from dwell.spark.tables import event_table


class Offset(TypedDict):
    """The position of the next event of a stream, and the history of the event before it.

    Offsets of older versions have no history. ``begin`` is the start of a batch that does not
    follow the previous batch.
    """

    position: int
    history: NotRequired[str]
    begin: NotRequired[int]


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
        first, end = ends_of(self._remote.queue)
        if not isinstance(named, int):
            named = end if named == "latest" else first
        return {"position": named, "history": seen_at(self._remote.queue, named).history}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how many events a micro-batch may have."""
        most = self._options.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override]  # noqa: N802
        """Return where the next micro-batch ends; raises EventsDropped or AnotherHistory."""
        options, position = self._options, start["position"]
        found, first, end = seen_at(self._remote.queue, position)
        goes_on = check_history(options, position, start.get("history", ""), found, end)
        if goes_on:
            check_kept(options, position, first)
        begin = max(position, first) if goes_on else first
        if self._target is not None:
            end = min(end, self._target)
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        if goes_on and end <= position:
            return start
        latest: Offset = {
            "position": end,
            "history": seen_at(self._remote.queue, end).history,
        }
        return latest if goes_on else {**latest, "begin": begin}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the present end of the events: the query ends there too."""
        self._target = ends_of(self._remote.queue)[1]

    def partitions(  # type: ignore[override]
        self, start: Offset, end: Offset
    ) -> Sequence[InputPartition]:
        """Return the parts of a micro-batch, each for one task."""
        begin = end.get("begin", start["position"])
        return parts_of(self._options, begin, end["position"], end.get("history", ""))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part."""
        return read_events(self._options, self._schema, partition)

    def stop(self) -> None:
        """Disconnect from the server."""
        self._remote.close()
