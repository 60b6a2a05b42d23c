"""The verbs that count: what will fall due when, what waits, and who holds what."""

from collections.abc import Sequence

from dwell.batch.spans import Spans
from dwell.batch.stats import ALL_TOPICS, Holder
from dwell.errors import InvalidLimit, InvalidTime
from dwell.given import values
from dwell.given.values import Delay, Due
from dwell.message import I64
from dwell.queue.selecting import Selecting

#: How many spans one call counts in at most: a day by the minute, and more.
MOST_SPANS = 1500


class Counting(Selecting):
    """What :class:`dwell.Queue` counts."""

    async def count_due(
        self,
        topics: str | Sequence[str] = (),
        *,
        start: Due | None = None,
        span: Delay = "1m",
        count: int = 60,
    ) -> I64:
        """Return how many delayed messages fall due in each of ``count`` spans from ``start`` on.

        Without topics those of all count, and without ``start`` the spans begin now. They are as
        long as ``span`` says, and 1500 at most. What is moved meanwhile may count twice, or not at
        all.
        """
        wanted = values.topics(topics) if topics else ()
        now_ms = self._store.clock.now_ms()
        start_ms = now_ms if start is None else values.due_ms(start, now_ms, "start")
        span_ms = values.delay_ms(span, "span")
        if not span_ms:
            raise values.refusal(InvalidTime, "span", span, "a millisecond or more")
        count = values.whole(count, 1, MOST_SPANS, "count", InvalidLimit, "a whole number")
        self.check_open()
        return await self._store.count_due(wanted, Spans(start_ms, span_ms, count))

    async def oldest_ready(self) -> dict[str, int]:
        """Return since when the message that waits longest for a taker has been due, by topic.

        It is in epoch milliseconds; topics without a ready message are left out.
        """
        self.check_open()
        return await self._store.oldest_ready()

    async def holders(
        self, limit: int = 1000, *, prefixes: tuple[str, ...] = ALL_TOPICS
    ) -> list[Holder]:
        """Return who has how many messages of which topic under lease, the most first.

        Only topics count whose names begin as one of ``prefixes`` says.
        """
        limit = values.limit(limit)
        self.check_open()
        return await self._store.holders(limit, prefixes)
