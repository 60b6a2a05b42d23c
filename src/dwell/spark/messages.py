"""The view ``messages``: pending messages, read place by place by many tasks at once.

Places say nothing in another store, or in one that was put back from an older copy. So each part
knows the last event before the read, and its task looks for that event at its end.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from dwell.batch.events import goes_on
from dwell.batch.sweep import EVERY, Wanted
from dwell.errors import AccessDenied, InvalidTopic
from dwell.given import values as checks
from dwell.message import MAX_BATCH_MESSAGES
from dwell.spark.ahead import pages
from dwell.spark.events import AnotherHistory, ends_of, seen_at
from dwell.spark.options import ReadOptions
from dwell.spark.parts import Places, cut
from dwell.spark.tables import sweep_table
from dwell.threads.sync import SyncQueue

#: How many places one task reads, unless the options set the number of tasks.
_PLACES = 250_000


class _Part(Places):
    """Places of messages. ``next_event`` is the position of the next event before the read.

    ``history`` is that of the event before it, empty if it is not known.
    """

    def __init__(self, start: int, stop: int, next_event: int, history: str) -> None:
        super().__init__(start, stop, history)
        self.next_event = next_event

    def check(self, queue: SyncQueue) -> None:
        """Raise AnotherHistory for a store that has lost what happened before the read."""
        if not self.history:
            return
        seen = seen_at(queue, self.next_event)
        if not goes_on(self.next_event, self.history, seen.history, seen.end):
            raise AnotherHistory(
                "messages: the store was put back or replaced while it was read, and messages may "
                "be missing; expected one store: read it again"
            )


def _last_event(queue: SyncQueue) -> tuple[int, str]:
    """Return the position after the last event, and the history until there."""
    try:
        _, end = ends_of(queue)
        return end, seen_at(queue, end).history
    except AccessDenied:
        # The token may read messages only.
        return 0, ""


class MessagesReader(DataSourceReader):
    """Reads messages: a message present during the whole read is returned once."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        sweep_table(schema)
        self._options, self._schema = options, schema
        self._wanted = msgspec.structs.replace(EVERY, topics=options.topic_names)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the table, each for one task."""
        with self._options.opened() as queue:
            last = _last_event(queue)
            end = queue.sweep(self._wanted, limit=0).places
        return [_Part(*ends, *last) for ends in cut(0, end, self._options.partitions, _PLACES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part; raises AnotherHistory if the store is another by then."""
        if not isinstance(partition, _Part) or not self._wanted.states:
            return
        table, wanted, stop = sweep_table(self._schema), self._wanted, partition.stop
        with self._options.opened() as queue:
            for sweep in pages(
                lambda place: queue.sweep(wanted, start=place, stop=stop, limit=MAX_BATCH_MESSAGES),
                lambda sweep: sweep.next_place,
                partition.start,
            ):
                if len(sweep.messages):
                    yield table.batch(sweep)
            partition.check(queue)


class FilteredMessagesReader(MessagesReader):
    """The same, with filters on topic, state, key and due evaluated by the server."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Apply the filters that a sweep knows; yield the filters left for Spark."""
        for one in filters:
            found = _narrowed(self._wanted, one)
            if found is None or isinstance(one, _TIMES):
                # A time of Spark has microseconds, so Spark filters the edges again.
                yield one
            self._wanted = found or self._wanted


#: A condition that makes a sweep return nothing.
_NOTHING: dict[str, Any] = {"states": ()}

_TIMES = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def _narrowed(wanted: Wanted, one: Filter) -> Wanted | None:
    """Return the conditions with a filter added; None if the filter is unknown."""
    name = getattr(one, "attribute", ("",))[0]
    if isinstance(one, EqualTo | In):
        values = set(one.value) if isinstance(one, In) else {one.value}
        return _among(wanted, name, values)
    if name == "due" and isinstance(one, _TIMES) and isinstance(one.value, datetime):
        return _within(wanted, one)
    return None


def _among(wanted: Wanted, name: str, values: set[Any]) -> Wanted | None:
    # A comparison with null is never true, and no topic has an invalid name.
    values = values - {None}
    if name == "topic" and not wanted.topics:
        topics = tuple(value for value in values if is_topic(value))
        return msgspec.structs.replace(wanted, **({"topics": topics} if topics else _NOTHING))
    if name == "state":
        states = tuple(state for state in wanted.states if state.name.lower() in values)
        return msgspec.structs.replace(wanted, states=states)
    if name == "key" and wanted.key is None and len(values) == 1:
        return msgspec.structs.replace(wanted, key=str(*values))
    return None


def is_topic(value: object) -> bool:
    """Tell whether a topic may have this name."""
    try:
        checks.topic(value)
    except InvalidTopic:
        return False
    return True


def _within(wanted: Wanted, one: Any) -> Wanted:
    moment = one.value if one.value.tzinfo else one.value.replace(tzinfo=UTC)
    ms = int(moment.timestamp() * 1000)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return msgspec.structs.replace(wanted, due_from_ms=max(wanted.due_from_ms, ms))
    return msgspec.structs.replace(wanted, due_to_ms=min(wanted.due_to_ms, ms + 1))
