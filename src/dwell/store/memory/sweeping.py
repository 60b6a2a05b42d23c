"""Reading through the rows of the store in memory: in order of due, or by place."""

import heapq
from collections.abc import Iterable
from operator import attrgetter

from dwell.batch.page import Cursor
from dwell.batch.sweep import Wanted
from dwell.message import State
from dwell.store.memory.rows import Row, by_due, fitting


def paged(
    rows: Iterable[Row], state: State, cursor: Cursor | None, limit: int
) -> tuple[list[Row], Cursor | None]:
    """Return the rows of a page in order of due, and the start of the next page, if any."""
    after = (cursor.due_ms, cursor.arrival) if cursor is not None else (-(2**63), 0)
    behind = (row for row in rows if row.state is state and by_due(row) > after)
    found = heapq.nsmallest(limit + 1, behind, key=by_due)
    page = fitting(found[:limit])
    return page, None if len(page) == len(found) else Cursor(page[-1].due_ms, page[-1].arrival)


def swept(
    rows: Iterable[Row], wanted: Wanted, start: int, stop: int, limit: int
) -> tuple[list[Row], int | None]:
    """Return the next rows of a sweep, and the place to continue at; None at the end."""
    inside = (row for row in rows if start <= row.arrival < stop and row.is_in(wanted))
    found = heapq.nsmallest(limit + 1, inside, key=attrgetter("arrival"))
    page = fitting(found[:limit])
    return page, found[len(page)].arrival if len(found) > len(page) else None
