"""The verbs that count: coming deadlines, waiting messages, and leases by owner."""

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
    """The counting methods of :class:`dwell.Queue`."""

    async def count_due(
        self,
        topics: str | Sequence[str] = (),
        *,
        start: Due | None = None,
        span: Delay = "1m",
        count: int = 60,
    ) -> I64:
        """Return how many delayed messages fall due in each of ``count`` spans from ``start`` on.

        Without topics, all topics count, and without ``start`` the spans begin now. Each span is as
        long as ``span``, and there are at most 1500. A message that is moved during the count may
        count twice or not at all.
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
        """Return the due of the message that has waited longest for a taker, by topic.

        It is in epoch milliseconds; topics without a ready message are left out.
        """
        self.check_open()
        return await self._store.oldest_ready()

    async def holders(
        self, limit: int = 1000, *, prefixes: tuple[str, ...] = ALL_TOPICS
    ) -> list[Holder]:
        """Return how many messages each owner holds in each topic, the most first.

        Only topics whose names begin with an entry of ``prefixes`` count.
        """
        limit = values.limit(limit)
        self.check_open()
        return await self._store.holders(limit, prefixes)
