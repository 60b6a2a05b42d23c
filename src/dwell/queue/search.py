"""Going through a topic page by page: what matches, what of it can be taken, and all of it.

``most`` and ``most_bytes`` bound how many messages one call looks at, and how much it gives; its
answer says where to go on: so a server can answer before its client loses patience. Between two
pages everybody else has a turn.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

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

#: Before every message that a scan can give.
_BEGINNING = Cursor(-1, 0)


class Looked(NamedTuple):
    """The places of the messages of a page that match, in their order, among the first so many."""

    places: list[int]
    seen: int


#: Looks at a page; at fewer than all of its messages where this is enough for one call.
Matching: TypeAlias = Callable[[Batch], Awaitable[Looked]]


def predicate(where: object, most_steps: int = EVERYTHING) -> Matching:
    """Return what finds the messages whose bodies match an expression; raises InvalidQuery."""
    try:
        # Imported here, as who asks for nothing by its body does not need the extra.
        from dwell.queue.query import Query
    except ModuleNotFoundError as error:
        raise InvalidQuery(f"where: a predicate needs dwell[query]: {error}") from None
    query = Query(where, most_steps)

    async def matching(page: Batch) -> Looked:
        return Looked(*await query.places(page))

    return matching


async def search(
    scan: Callable[[Cursor | None, int], Awaitable[Page]],
    matching: Matching,
    cursor: Cursor | None,
    limit: int,
    *,
    most: int = EVERYTHING,
    most_bytes: int = EVERYTHING,
    until_ms: int = EVERYTHING,
) -> tuple[list[Batch], Cursor | None]:
    """Return at most ``limit`` messages that match, in parts, and where to go on.

    At most ``most`` are looked at, none after the first that is due at ``until_ms`` or later. The
    first is given however large it is, and all of them are ``most_bytes`` at most otherwise.
    """
    found: list[Batch] = []
    missing, looked = limit, 0
    while missing and looked < most:
        page = await scan(cursor, _PAGE)
        size = len(page.messages)
        places, seen = await matching(page.messages)
        fitting, size_bytes = _fitting(page.messages, places[:missing], most_bytes, bool(found))
        if len(fitting) < len(places):
            seen = places[len(fitting)]
        missing, most_bytes, looked = missing - len(fitting), most_bytes - size_bytes, looked + seen
        if fitting:
            found.append(_at(page.messages, fitting))
        if seen < size:
            # The same page again, up to where this call goes, says where that is.
            return found, (await scan(cursor, seen)).cursor if seen else cursor
        cursor = page.cursor
        last_ms = page.messages.due_ms[-1] if size else until_ms
        if cursor is None or last_ms >= until_ms:
            return found, None
        await asyncio.sleep(0)
    return found, cursor


def _fitting(
    page: Batch, places: list[int], most_bytes: int, has_others: bool
) -> tuple[list[int], int]:
    """Return the first places whose messages have room, one at least if there are no others."""
    size_bytes = 0
    for count, place in enumerate(places):
        one_bytes = len(page.bodies[place]) + len(page.extras[place])
        if size_bytes + one_bytes > most_bytes and (count or has_others):
            return places[:count], size_bytes
        size_bytes += one_bytes
    return places, size_bytes


def _at(page: Batch, places: list[int]) -> Batch:
    return page if len(places) == len(page) else page.picked(places)


async def find(
    store: Store,
    topic: str,
    matching: Matching,
    state: State,
    cursor: Cursor | None,
    limit: int,
    *,
    most: int = EVERYTHING,
    most_bytes: int = EVERYTHING,
) -> Page:
    """Return messages of one state that match, from after ``cursor``, and where to go on."""

    async def scan(cursor: Cursor | None, limit: int) -> Page:
        return await store.scan(topic, state, cursor, limit)

    parts, cursor = await search(scan, matching, cursor, limit, most=most, most_bytes=most_bytes)
    return Page(Batch.joined(parts, receipts=False), cursor)


async def take_where(
    store: Store,
    topic: str,
    matching: Matching,
    cursor: Cursor | None,
    limit: int,
    lease_ms: int,
    owner: str,
    *,
    most: int = EVERYTHING,
    most_bytes: int = EVERYTHING,
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
            places, seen = await matching(page.messages)
            looked += seen
            fitting, size_bytes = _fitting(page.messages, places, most_bytes, bool(taken))
            if len(fitting) < len(places):
                seen = places[len(fitting)]
            most_bytes -= size_bytes
            # Others may have taken some of them since the scan: the next ones stand in for those.
            left = [page.messages.ids[at].encode() for at in fitting]
            while left and (missing := limit - sum(map(len, taken))):
                await _take(store, topic, left[:missing], lease_ms, owner, taken)
                left = left[missing:]
            if sum(map(len, taken)) == limit:
                return Page(Batch.joined(taken), None)
            if seen < len(page.messages):
                # What was taken is not met again: the others say where this call stopped.
                cursor = await _after(store, topic, cursor or _BEGINNING, seen - len(fitting))
                return Page(Batch.joined(taken), cursor)
            cursor = page.cursor
            if cursor is None:
                return Page(Batch.joined(taken), None)
            await asyncio.sleep(0)
    except BaseException:
        await finished(whole(_give_back(store, taken)))
        raise
    return Page(Batch.joined(taken), cursor)


async def _after(store: Store, topic: str, cursor: Cursor, count: int) -> Cursor | None:
    """Return where so many ready messages after a cursor end."""
    return (await store.scan(topic, State.READY, cursor, count)).cursor if count else cursor


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
