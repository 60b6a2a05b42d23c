"""What a server counts for its clients: by due, by how long they wait, and by who has them."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from dwell.batch.spans import Spans
from dwell.batch.stats import ALL_TOPICS, Holder, Stats
from dwell.client.answers import Holders, Load, Oldest, StatsAnswer, reading
from dwell.message import I64
from dwell.store.base import RemoteStore


class Counting(RemoteStore):
    """The verbs that count, each a request."""

    @abstractmethod
    async def _get(self, path: str, kind: type[Any]) -> Any:
        """Return the answer to a request."""

    @abstractmethod
    async def _post(self, path: str, ask: object, kind: type[Any], *, is_safe: bool) -> Any:
        """Return the answer to a request with a body."""

    async def stats(self) -> Stats:
        """Return the counts, of as many topics after one another as an answer holds."""
        found: StatsAnswer = await self._get("/v1/stats", StatsAnswer)
        topics, after = found.topics, found.next
        while after is not None:
            page: StatsAnswer = await self._get(f"/v1/stats?after={quote(after)}", StatsAnswer)
            topics, after = topics | page.topics, page.next
        return Stats(topics, found.totals)

    async def count_due(self, topics: Sequence[str], spans: Spans) -> I64:
        """Return how many delayed messages fall due in each span."""
        ask = {"topics": list(topics), **msgspec.structs.asdict(spans)}
        found: Load = await self._post("/v1/load", ask, Load, is_safe=True)
        with reading():
            return np.array(found.counts, np.int64) + spans.none()

    async def oldest_ready(self) -> dict[str, int]:
        """Return since when the longest waiting has been due, by topic."""
        topics: dict[str, int] = {}
        after: str | None = ""
        while after is not None:
            found: Oldest = await self._get(f"/v1/oldest?after={quote(after)}", Oldest)
            topics |= found.topics
            after = found.next
        return topics

    async def holders(self, limit: int, prefixes: tuple[str, ...] = ALL_TOPICS) -> list[Holder]:
        """Return who has messages under lease, of what the token may see."""
        if not prefixes:
            return []
        only = "" if "" in prefixes else f"&prefixes={quote(','.join(prefixes))}"
        found: Holders = await self._get(f"/v1/holders?limit={limit}{only}", Holders)
        return found.holders
