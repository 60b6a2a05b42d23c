"""The view ``events``: the events of the queue, by position."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dwell.batch.events import EventPage, goes_on
from dwell.errors import StoreError
from dwell.message import MAX_BATCH_MESSAGES
from dwell.spark.ahead import pages
from dwell.spark.options import ReadOptions
from dwell.spark.parts import Places, places
from dwell.spark.tables import event_table
from dwell.threads.sync import SyncQueue

#: How many events one task reads, unless the options say how many tasks there are.
_EVENTS = 250_000
_ANYWHERE = 2**62


class EventsDropped(StoreError):
    """Events to be read are no longer kept."""


class AnotherHistory(StoreError):
    """The server's events differ from the events that were read before."""


class Seen(NamedTuple):
    """A server's view of a position: the history of the event before it, and its event range."""

    history: str
    first: int
    end: int


def seen_at(queue: SyncQueue, position: int) -> Seen:
    """Return the history of the event before a position, and where the events begin and end."""
    page = queue.events(position, 1)
    return Seen(page.since, page.first_position, page.end_position)


def ends_of(queue: SyncQueue) -> tuple[int, int]:
    """Return the positions of the oldest kept event, and of the next event."""
    return seen_at(queue, _ANYWHERE)[1:]


def parts_of(
    options: ReadOptions, start: int, stop: int, history: str = ""
) -> list[InputPartition]:
    """Return the parts of a range of positions, each for one task."""
    return places(start, stop, options.partitions, _EVENTS, history)


def read_events(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a part.

    Raises EventsDropped if they are no longer kept, and AnotherHistory if the server has other
    events there by now.
    """
    if not isinstance(partition, Places) or partition.start == partition.stop:
        return
    table, stop = event_table(schema), partition.stop

    def following(page: EventPage) -> int | None:
        return page.next_position if page.next_position < stop and page.events else None

    with options.opened() as queue:
        place = partition.start
        for page in pages(
            lambda at: queue.events(at, min(MAX_BATCH_MESSAGES, stop - at)), following, place
        ):
            check_kept(options, place, page.first_position)
            # If older events are no longer kept, an answer may begin after the part.
            events = page.events[: int(np.searchsorted(page.events.positions, stop))]
            if events:
                yield table.batch(events)
            place = page.next_position
            if place == stop:
                check_history(options, stop, partition.history, page.history, page.end_position)
        # A server that has gone back no longer has them.
        check_history(options, stop, "", "", max(page.end_position, place))


def check_kept(options: ReadOptions, position: int, first: int) -> None:
    """Refuse to skip events; raises EventsDropped."""
    if position < first and options.fail_on_data_loss:
        raise EventsDropped(
            f"events: got position {position}, and the oldest event that is kept is {first}; "
            "set failOnDataLoss=false to go on from there, and let the server keep more "
            "(--events-bytes)"
        )


def check_history(options: ReadOptions, position: int, known: str, found: str, end: int) -> bool:
    """Tell whether a server goes on where it was read (see goes_on); raises AnotherHistory."""
    if goes_on(position, known, found, end):
        return True
    if not options.fail_on_data_loss:
        return False
    why = f"the server's end at {end}" if position > end else f"another event {position - 1} by now"
    raise AnotherHistory(
        f"events: got position {position} to go on from, and {why}: its store is another than the "
        "one that was read, or was put back from an older copy; begin with a new checkpoint or "
        "table, or set failOnDataLoss=false to read anew from the oldest event that is kept"
    )


class EventsReader(DataSourceReader):
    """Reads the events that are kept now, or the events between two positions."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        event_table(schema)
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the events, each for one task."""
        options = self._options
        with options.opened() as queue:
            first, end = ends_of(queue)
            stop = end if options.end_position is None else min(options.end_position, end)
            history = seen_at(queue, stop).history
        named = options.start_position
        start = named if isinstance(named, int) else end if named == "latest" else first
        if not check_history(options, start, "", "", end):
            start = first
        check_kept(options, start, first)
        return parts_of(options, max(start, first), stop, history)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part."""
        return read_events(self._options, self._schema, partition)
