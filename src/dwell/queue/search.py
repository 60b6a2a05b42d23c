"""Going through a topic page by page: what matches, what of it can be taken, and all of it.

``most`` bounds how much one call does, and its answer says where to go on: so a server can answer
before its client loses patience. Between two pages everybody else has a turn.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.page import Cursor, Page
from dwell.errors import InvalidQuery, StoreError
from dwell.message import Result, State
from dwell.store.base import Store
from dwell.tasks import finished, whole

#: No bound.
EVERYTHING = 2**62

_PAGE = 1000

#: Returns the places of the messages of a page that match, in their order.
Places: TypeAlias = Callable[[Batch], Awaitable[list[int]]]


def predicate(where: object) -> Places:
    """Return what finds the messages whose bodies match an expression; raises InvalidQuery."""
    try:
        # Imported here, as who asks for nothing by its body does not need the extra.
        from dwell.queue.query import Query
    except ModuleNotFoundError as error:
        raise InvalidQuery(f"where: a predicate needs dwell[query]: {error}") from None
    return Query(where).places


async def search(
    scan: Callable[[Cursor | None, int], Awaitable[Page]],
    matching: Places,
    cursor: Cursor | None,
    limit: int,
    *,
    most: int = EVERYTHING,
    until_ms: int = EVERYTHING,
) -> tuple[list[Batch], Cursor | None]:
    """Return at most ``limit`` messages that match, in parts, and where to go on.

    At most ``most`` are looked at, none after the first that is due at ``until_ms`` or later.
    """
    found: list[Batch] = []
    missing, looked = limit, 0
    while missing and looked < most:
        page = await scan(cursor, _PAGE)
        looked += len(page.messages)
        places = (await matching(page.messages))[:missing]
        missing -= len(places)
        if places:
            found.append(_at(page.messages, places))
        if not missing and places[-1] + 1 < len(page.messages):
            # The same page again, up to the last that was wanted, says where that one stands.
            page = await scan(cursor, places[-1] + 1)
        cursor = page.cursor
        last_ms = page.messages.due_ms[-1] if len(page.messages) else until_ms
        if cursor is None or last_ms >= until_ms:
            return found, None
        await asyncio.sleep(0)
    return found, cursor


def _at(page: Batch, places: list[int]) -> Batch:
    return page if len(places) == len(page) else page.picked(places)


async def find(
    store: Store,
    topic: str,
    matching: Places,
    state: State,
    cursor: Cursor | None,
    limit: int,
    *,
    most: int = EVERYTHING,
) -> Page:
    """Return messages of one state that match, from after ``cursor``, and where to go on."""

    async def scan(cursor: Cursor | None, limit: int) -> Page:
        return await store.scan(topic, state, cursor, limit)

    parts, cursor = await search(scan, matching, cursor, limit, most=most)
    return Page(Batch.joined(parts, receipts=False), cursor)


async def take_where(
    store: Store,
    topic: str,
    matching: Places,
    cursor: Cursor | None,
    limit: int,
    lease_ms: int,
    owner: str,
    *,
    most: int = EVERYTHING,
) -> Page:
    """Take ready messages that match, from after ``cursor``; the answer says where to go on.

    Its cursor is None when there are no more, or as many as were wanted. When the call is
    cancelled, or the store fails, what it had taken is given back.
    """
    if (await store.settings(topic)).paused:
        return Page(Batch.empty(), None)
    taken: list[Batch] = []
    looked = 0
    try:
        while looked < most:
            page = await store.scan(topic, State.READY, cursor, _PAGE)
            looked += len(page.messages)
            cursor, places = page.cursor, await matching(page.messages)
            # Others may have taken some of them since the scan: the next ones stand in for those.
            while places and (missing := limit - sum(map(len, taken))):
                ids = [page.messages.ids[at].encode() for at in places[:missing]]
                await _take(store, topic, ids, lease_ms, owner, taken)
                places = places[missing:]
            if cursor is None or sum(map(len, taken)) == limit:
                return Page(Batch.joined(taken), None)
            await asyncio.sleep(0)
    except BaseException:
        await finished(whole(_give_back(store, taken)))
        raise
    return Page(Batch.joined(taken), cursor)


async def take_ids(
    store: Store, topic: str, ids: Sequence[bytes], lease_ms: int, owner: str
) -> Batch:
    """Take those of some messages that are ready; give them back when the call is cancelled."""
    taken: list[Batch] = []
    try:
        await _take(store, topic, ids, lease_ms, owner, taken)
    except BaseException:
        await finished(whole(_give_back(store, taken)))
        raise
    return taken[0] if taken else Batch.empty()


async def _take(
    store: Store, topic: str, ids: Sequence[bytes], lease_ms: int, owner: str, taken: list[Batch]
) -> None:
    """Add to ``taken`` those of some messages that are ready, even when the call is cancelled."""
    task = whole(store.take_ids(topic, ids, lease_ms, owner))
    try:
        await finished(task)
    finally:
        if not task.cancelled() and task.exception() is None and len(task.result()):
            taken.append(task.result())


async def _give_back(store: Store, taken: list[Batch]) -> None:
    """Release what nobody will hear of; its attempt does not count."""
    with contextlib.suppress(StoreError):
        for batch in taken:
            assert batch.receipts is not None
            await store.release(batch.receipts, 0, None, counted=False)


async def clear(store: Store, topic: str, *, most: int = EVERYTHING) -> tuple[int, bool]:
    """Cancel messages that nobody has taken; return how many, and whether those were all.

    It stops when it has cancelled ``most``, or a few more.
    """
    count = 0
    for state in (State.DELAYED, State.READY, State.DEAD):
        cursor: Cursor | None = None
        while count < most:
            page = await store.scan(topic, state, cursor, _PAGE)
            ids = [id_.encode() for id_ in page.messages.ids]
            results = await store.cancel(topic, ids) if ids else np.zeros(0, np.uint8)
            cancelled = int(np.count_nonzero(results == Result.CANCELLED))
            count += cancelled
            # What stays, as it was taken meanwhile, must not be met again and again.
            cursor = None if cancelled else page.cursor
            if cursor is None and not cancelled:
                break
            await asyncio.sleep(0)
        else:
            return count, False
    return count, True
