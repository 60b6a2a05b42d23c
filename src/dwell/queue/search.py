"""Searches through a topic page by page: find, take and clear messages.

``most`` and ``most_bytes`` bound how many messages one call reads and returns. The answer says
where to go on, so that a server can answer before its client times out. Other tasks run between
pages.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.page import Cursor, Page
from dwell.errors import StoreError
from dwell.message import U64, State
from dwell.queue.matcher import EVERYTHING, Matcher
from dwell.store.base import Store
from dwell.tasks import finished, whole

#: How many messages a page has at first, and at most: they are examined before other tasks run.
_PAGE = 1_000
_MOST = 5_000

#: Before every message that a scan can give.
BEGINNING = Cursor(-1, 0)


async def find(
    store: Store,
    topic: str,
    matcher: Matcher,
    state: State,
    cursor: Cursor | None,
    limit: int,
    *,
    most: int = EVERYTHING,
    most_bytes: int = EVERYTHING,
) -> Page:
    """Return at most ``limit`` messages of one state that match, by due, and where to go on.

    At most ``most`` are examined, fewer if the matcher is spent. The first match is returned at any
    size; otherwise all of them together have ``most_bytes`` at most.
    """
    found: list[Batch] = []
    versions = [np.zeros(0, np.uint64)]
    missing, looked, until_ms = limit, 0, matcher.selection.due_to_ms
    cursor, step = matcher.start(cursor), _PAGE
    while missing and looked < most and not matcher.is_spent:
        page = await store.scan(topic, state, cursor, min(step, most - looked))
        size = len(page.messages)
        places, seen = await matcher.places(page.messages)
        fitting, size_bytes = _fitting(page.messages, places[:missing], most_bytes, bool(found))
        if len(fitting) < len(places):
            seen = places[len(fitting)]
        missing, most_bytes, looked = missing - len(fitting), most_bytes - size_bytes, looked + seen
        if fitting:
            found.append(_at(page.messages, fitting))
            versions.append(page.versions[fitting])
        if seen < size:
            cursor = cursor_before(page, seen)
            break
        cursor = page.cursor
        if cursor is None or _has_come_to(page.messages, until_ms):
            cursor = None
            break
        # Frees this page before the next one is read.
        del page
        # To find a page costs more in some stores than to read it, so those far from the first
        # match are larger; where all match, no more are read than are missing.
        step = min(2 * step, _MOST, missing if len(fitting) == size else _MOST)
        await asyncio.sleep(0)
    return Page(Batch.joined(found, receipts=False), cursor, np.concatenate(versions))


def _fitting(
    page: Batch, places: list[int], most_bytes: int, has_others: bool
) -> tuple[list[int], int]:
    """Return the first places whose messages fit, at least one if there are no others."""
    size_bytes = 0
    for count, place in enumerate(places):
        one_bytes = len(page.bodies[place]) + len(page.extras[place])
        if size_bytes + one_bytes > most_bytes and (count or has_others):
            return places[:count], size_bytes
        size_bytes += one_bytes
    return places, size_bytes


def _has_come_to(page: Batch, until_ms: int) -> bool:
    """Tell whether all messages due before a time are on this page or on earlier pages."""
    # A page whose messages are all damaged is empty, and others may follow it.
    return len(page) > 0 and bool(page.due_ms[-1] >= until_ms)


def _at(page: Batch, places: list[int]) -> Batch:
    return page if len(places) == len(page) else page.picked(places)


async def take_where(
    store: Store,
    topic: str,
    matcher: Matcher,
    cursor: Cursor | None,
    limit: int,
    lease_ms: int,
    owner: str,
    *,
    most: int = EVERYTHING,
    most_bytes: int = EVERYTHING,
    check: Callable[[], None] = lambda: None,
) -> Page:
    """Take ready messages that match, from after ``cursor``; the answer says where to go on.

    Its cursor is None when the topic has no further messages, or ``limit`` messages were taken.
    ``check`` is called before each part is taken, and may end the search by raising an error. When
    the call is cancelled or fails, the messages that it took are released.
    """
    if (await store.settings(topic)).paused:
        return Page(Batch.empty(), None)
    taken: list[Batch] = []
    looked, until_ms = 0, matcher.selection.due_to_ms
    cursor = matcher.start(cursor)
    try:
        while looked < most and not matcher.is_spent:
            page = await store.scan(topic, State.READY, cursor, _PAGE)
            places, seen = await matcher.places(page.messages)
            looked += seen
            fitting, size_bytes = _fitting(page.messages, places, most_bytes, bool(taken))
            if len(fitting) < len(places):
                seen = places[len(fitting)]
            most_bytes -= size_bytes
            # Other takers may have taken some since the scan; the next matches replace those.
            is_last = seen == len(page.messages) and _has_come_to(page.messages, until_ms)
            left = [page.messages.ids[at].encode() for at in fitting]
            following = page.cursor if seen == len(page.messages) else cursor_before(page, seen)
            is_cut, versions = seen < len(page.messages), page.versions[fitting]
            # Frees the page before the taken messages are read again.
            del page
            check()
            await _take_up_to(limit, store, topic, left, versions, lease_ms, owner, taken, check)
            if sum(map(len, taken)) == limit:
                return Page(Batch.joined(taken), None)
            cursor = following
            if cursor is None or is_last:
                return Page(Batch.joined(taken), None)
            if is_cut:
                return Page(Batch.joined(taken), cursor)
            await asyncio.sleep(0)
    except BaseException:
        await finished(whole(_give_back(store, taken)))
        raise
    return Page(Batch.joined(taken), cursor)


def cursor_before(page: Page, place: int) -> Cursor:
    """Return the cursor before a place of a page: a scan from it gives that message and the rest.

    If others use the store, a message may have moved while the page was read. So the cursor is
    before all of the remaining messages, and not after the cursor of the page.
    """
    dues_ms, numbers = page.messages.due_ms[place:], page.messages.numbers[place:]
    due_ms, number = min(zip(dues_ms.tolist(), numbers.tolist(), strict=True))
    found = Cursor(due_ms, number - 1)
    if page.cursor is None:
        return found
    return min(found, page.cursor, key=lambda cursor: (cursor.due_ms, cursor.arrival))


async def take_ids(
    store: Store,
    topic: str,
    ids: Sequence[bytes],
    lease_ms: int,
    owner: str,
    versions: U64 | None,
) -> Batch:
    """Take the given messages that are ready; release them if the call is cancelled."""
    taken: list[Batch] = []
    try:
        return await _take(store, topic, ids, versions, lease_ms, owner, taken)
    except BaseException:
        await finished(whole(_give_back(store, taken)))
        raise


async def _take_up_to(
    limit: int,
    store: Store,
    topic: str,
    ids: Sequence[bytes],
    versions: U64,
    lease_ms: int,
    owner: str,
    taken: list[Batch],
    check: Callable[[], None],
) -> None:
    """Add the given messages that are ready to ``taken``, until it holds ``limit``.

    One call of a store leases a limited number of bytes. So messages that it left out are asked for
    again, until a call leases none.
    """
    while ids and (missing := limit - sum(map(len, taken))):
        check()
        # Of very many messages, few may be free to be taken; each call is a search of its own.
        more: dict[str, Any] = {"limit": missing} if store.limits_ids else {}
        most = len(ids) if more else missing
        some = ids[:most], versions[:most]
        got = set((await _take(store, topic, *some, lease_ms, owner, taken, **more)).ids)
        left_out = [at for at, id_ in enumerate(some[0]) if got and id_.decode() not in got]
        rest = [*left_out, *range(len(some[0]), len(ids))]
        ids, versions = [ids[at] for at in rest], versions[rest]


async def _take(
    store: Store,
    topic: str,
    ids: Sequence[bytes],
    versions: U64 | None,
    lease_ms: int,
    owner: str,
    taken: list[Batch],
    **more: Any,
) -> Batch:
    """Take the given messages that are ready, and add them to ``taken`` even when cancelled."""
    task = whole(store.take_ids(topic, ids, lease_ms, owner, versions, **more))
    try:
        await finished(task)
    finally:
        if not task.cancelled() and task.exception() is None and len(task.result()):
            taken.append(task.result())
    return task.result()


async def _give_back(store: Store, taken: list[Batch]) -> None:
    """Release messages that no caller will receive; the attempt does not count."""
    with contextlib.suppress(StoreError):
        for batch in taken:
            assert batch.receipts is not None
            await store.release(batch.receipts, 0, None, counted=False)


async def clear(
    store: Store,
    topic: str,
    *,
    most: int = EVERYTHING,
    check: Callable[[], None] = lambda: None,
) -> tuple[int, bool]:
    """Cancel messages that nobody has taken; return how many, and whether those were all.

    It stops when it has cancelled ``most``, or some more. ``check`` is called before each part, and
    may end it by raising an error.
    """
    count, place = 0, 0
    while count < most:
        check()
        cancelled, following = await store.clear_part(topic, place)
        count += cancelled
        if following is None:
            return count, True
        place = following
        await asyncio.sleep(0)
    return count, False
