"""Filters: finding messages of a topic by state, due, key and headers."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.page import Cursor, Page
from dwell.given import values
from dwell.message import MAX_BATCH_BYTES, State, decode_extra
from dwell.queue import Queue
from dwell.queue import search as pages
from dwell.server.http.schemas.requests import Filter

#: How many messages one request may look at, to find those that match, or cancel.
MOST_LOOKED_AT = 100_000


class Named(NamedTuple):
    """What a verb has to know of a message that matched; its body may be large."""

    id: str
    due_ms: int


async def search(
    queue: Queue, topic: str, state: State, wanted: Filter, cursor: Cursor | None, limit: int
) -> tuple[list[Batch], Cursor | None]:
    """Return at most ``limit`` messages that match, in parts, and where to go on.

    They are no more than an answer may hold.
    """

    async def scan(cursor: Cursor | None, limit: int) -> Page:
        return await queue.scan(topic, state, cursor=cursor, limit=limit)

    async def matching(page: Batch) -> pages.Looked:
        return pages.Looked(_matching(page, wanted), len(page))

    start = Cursor(wanted.due_from_ms - 1, 2**63 - 1)
    cursor = start if cursor is None or cursor.due_ms < start.due_ms else cursor
    return await pages.search(
        scan,
        matching,
        cursor,
        limit,
        most=MOST_LOOKED_AT,
        most_bytes=MAX_BATCH_BYTES,
        until_ms=wanted.due_to_ms,
    )


async def collect(
    queue: Queue, topic: str, wanted: Filter, states: Sequence[State], limit: int
) -> tuple[list[Named], bool]:
    """Return at most ``limit`` messages that match, and whether those are all."""
    if wanted.states is not None:
        states = [values.state(state) for state in wanted.states]
    found: list[Named] = []
    is_complete = True
    for state in states:
        cursor: Cursor | None = None
        while len(found) < limit:
            parts, cursor = await search(
                queue, topic, state, wanted, cursor, min(limit - len(found), MOST_LOOKED_AT)
            )
            for part in parts:
                found += map(Named, part.ids, part.due_ms.tolist())
            if cursor is None:
                break
        is_complete &= cursor is None and len(found) < limit
    return found, is_complete


def _matching(page: Batch, wanted: Filter) -> list[int]:
    """Return the places of the messages of a page that match."""
    fits: list[int] = np.flatnonzero(page.due_ms < wanted.due_to_ms).tolist()
    if wanted.key is not None or wanted.headers:
        fits = list(_having(page, fits, wanted))
    return fits


def _having(page: Batch, places: Sequence[int], wanted: Filter) -> Iterator[int]:
    for at in places:
        extra = decode_extra(page.extras[at])
        if wanted.key is not None and extra.key != wanted.key:
            continue
        if wanted.headers.items() <= extra.headers.items():
            yield at
