"""A queue of Dwell's as a sink: records become messages, due now."""

from collections.abc import Sequence

import msgspec

from dwell.batch.puts import Row
from dwell.errors import DwellError, InvalidInput, TopicFull
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import Result
from dwell.queue import Queue
from dwell.relay import envelope
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.record import Record, Refusal


class QueueSink:
    """The topics of an open queue. Ids are kept, so a repeated record is kept once."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def open(self) -> None:
        """Do nothing: the queue is open."""

    async def send(self, records: Sequence[Record]) -> Sequence[Refusal | None]:
        """Put records, topic by topic."""
        refused: list[Refusal | None] = [None] * len(records)
        topics: dict[str, list[int]] = {}
        for at, record in enumerate(records):
            topics.setdefault(record.topic, []).append(at)
        for topic, places in topics.items():
            await self._put(topic, places, records, refused)
        return refused

    async def _put(
        self,
        topic: str,
        places: Sequence[int],
        records: Sequence[Record],
        refused: list[Refusal | None],
    ) -> None:
        now_ms, rows, good = self._queue.clock.now_ms(), [], []
        for at in places:
            record = records[at]
            try:
                row = row_of(values.body(record.body or b""), now_ms, id=record.id)
                extra = envelope.extra_of(record, None)
            except InvalidInput as error:
                refused[at] = Refusal(str(error), is_final=True)
            else:
                rows.append(msgspec.structs.replace(row, extra=extra))
                good.append(at)
        await self._put_rows(topic, rows, good, refused)

    async def _put_rows(
        self,
        topic: str,
        rows: Sequence[Row],
        places: Sequence[int],
        refused: list[Refusal | None],
    ) -> None:
        """Put rows in order, by halves if a batch is refused for one of them or lack of room."""
        try:
            puts = await self._queue.put_rows(values.topic(topic), rows)
        except (InvalidInput, TopicFull) as error:
            half = len(rows) // 2
            if not half:
                refused[places[0]] = Refusal(str(error), isinstance(error, InvalidInput))
                return
            await self._put_rows(topic, rows[:half], places[:half], refused)
            last = refused[places[half - 1]]
            if last is not None and not last.is_final:
                for at in places[half:]:
                    refused[at] = last
                return
            await self._put_rows(topic, rows[half:], places[half:], refused)
        except DwellError as error:
            raise BrokerUnreachable(f"dwell: {error}") from None
        else:
            dropped = Refusal(
                f"topic {topic!r} is full and drops more, as its on_full says",
                is_final=True,
                is_dropped=True,
            )
            for at, put in zip(places, puts, strict=True):
                if put.result is Result.DROPPED:
                    refused[at] = dropped

    async def close(self) -> None:
        """Do nothing: the caller closes the queue."""
