"""Counts that a server makes for its clients: by due time, by waiting time, and by owner."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np

from dwell.batch.spans import Spans
from dwell.batch.stats import ALL_TOPICS, Holder, Stats
from dwell.client.answers import Holders, Load, Oldest, StatsAnswer, reading
from dwell.message import I64
from dwell.store.base import RemoteStore

Page = TypeVar("Page", StatsAnswer, Oldest)


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
        found = Stats()
        async for page in self._pages("/v1/stats", StatsAnswer):
            found.topics |= page.topics
            found.totals = found.totals or page.totals
        return found

    async def count_due(self, topics: Sequence[str], spans: Spans) -> I64:
        """Return how many delayed messages fall due in each span."""
        ask = {"topics": list(topics), **msgspec.structs.asdict(spans)}
        found: Load = await self._post("/v1/load", ask, Load, is_safe=True)
        with reading():
            return np.array(found.counts, np.int64) + spans.none()

    async def oldest_ready(self) -> dict[str, int]:
        """Return since when the longest waiting has been due, by topic."""
        topics: dict[str, int] = {}
        async for page in self._pages("/v1/oldest", Oldest):
            topics |= page.topics
        return topics

    async def _pages(self, path: str, kind: type[Page]) -> AsyncIterator[Page]:
        """Yield the answers to a request whose topics may need several answers."""
        page: Page = await self._get(path, kind)
        yield page
        while page.next is not None:
            page = await self._get(f"{path}?after={quote(page.next)}", kind)
            yield page

    async def holders(self, limit: int, prefixes: tuple[str, ...] = ALL_TOPICS) -> list[Holder]:
        """Return the lease owners and counts, of the topics that the token may read."""
        if not prefixes:
            return []
        only = "" if "" in prefixes else f"&prefixes={quote(','.join(prefixes))}"
        found: Holders = await self._get(f"/v1/holders?limit={limit}{only}", Holders)
        return found.holders
