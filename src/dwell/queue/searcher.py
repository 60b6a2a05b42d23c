"""Searchers of a topic: this process, page by page, or the server of the store."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from dwell.batch.batch import Batch
from dwell.batch.changed import Changed
from dwell.batch.page import Cursor, Page
from dwell.batch.selection import Selection
from dwell.message import MAX_BATCH_BYTES, U64, State
from dwell.queue import changes, search
from dwell.queue.changes import Change
from dwell.queue.matcher import Matcher
from dwell.store.base import RemoteStore, Store

#: Returns matching messages of one state, from a cursor on, up to a limit.
Look: TypeAlias = Callable[[State, Cursor | None, int], Awaitable[Page]]


class Searcher:
    """Searches a store that this process keeps."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def look(self, topic: str, which: Selection) -> Look:
        """Return a function that finds matching messages, page by page."""
        matcher = Matcher(which)

        async def find(state: State, cursor: Cursor | None, limit: int) -> Page:
            return await search.find(
                self._store, topic, matcher, state, cursor, limit, most_bytes=MAX_BATCH_BYTES
            )

        return find

    async def take_where(
        self, topic: str, which: Selection, limit: int, lease_ms: int, owner: str
    ) -> Batch:
        """Take at most ``limit`` ready messages that match."""
        page = await search.take_where(
            self._store, topic, Matcher(which), None, limit, lease_ms, owner
        )
        return page.messages

    async def take_ids(
        self,
        topic: str,
        ids: Sequence[bytes],
        lease_ms: int,
        owner: str,
        versions: U64 | None,
    ) -> Batch:
        """Take the given messages that are ready."""
        return await search.take_ids(self._store, topic, ids, lease_ms, owner, versions)

    async def change(
        self, topic: str, which: Selection, how: Change, limit: int, dry_run: bool
    ) -> Changed:
        """Change at most ``limit`` messages that match; ``dry_run`` only counts them."""
        changed, _ = await changes.change(
            self._store, topic, Matcher(which), how, limit, dry_run=dry_run
        )
        return changed

    async def clear(self, topic: str) -> int:
        """Cancel every message that nobody has taken; return how many."""
        return (await search.clear(self._store, topic))[0]


class RemoteSearcher(Searcher):
    """Asks the process that keeps the store, which goes through it there."""

    def __init__(self, store: RemoteStore) -> None:
        super().__init__(store)
        self._remote = store

    def look(self, topic: str, which: Selection) -> Look:
        """Return a function that requests matching messages, page by page."""

        async def find(state: State, cursor: Cursor | None, limit: int) -> Page:
            return await self._remote.find(topic, which, state, cursor, limit)

        return find

    async def take_where(
        self, topic: str, which: Selection, limit: int, lease_ms: int, owner: str
    ) -> Batch:
        """Take at most ``limit`` ready messages that match."""
        return await self._remote.take_where(topic, which, limit, lease_ms, owner)

    async def take_ids(
        self,
        topic: str,
        ids: Sequence[bytes],
        lease_ms: int,
        owner: str,
        versions: U64 | None,
    ) -> Batch:
        """Take the given messages that are ready."""
        return await self._remote.take_ids(topic, ids, lease_ms, owner, versions)

    async def change(
        self, topic: str, which: Selection, how: Change, limit: int, dry_run: bool
    ) -> Changed:
        """Change at most ``limit`` messages that match; ``dry_run`` only counts them."""
        words = {**how.words, "dry_run": dry_run}
        return await self._remote.change(topic, how.verb, which, limit, words)

    async def clear(self, topic: str) -> int:
        """Cancel every message that nobody has taken; return how many."""
        return await self._remote.clear(topic)
