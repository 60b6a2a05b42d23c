"""Reading through the rows of the table: by row, or in order of due."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.page import Cursor
from dwell.batch.sweep import Wanted
from dwell.message import Rows, State, keys_of
from dwell.store.bounds import within
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.table import DONE, Table

#: Tells which rows of a part of the table, or of some rows, are looked for.
Fit: TypeAlias = Callable[[slice | Rows], np.ndarray]


def swept(
    machine: Machine, wanted: Wanted, start: int, stop: int, limit: int, limits: Limits
) -> tuple[Rows, int | None]:
    """Return the next rows of a sweep, and the row to continue at; None at the end."""
    stop = min(stop, machine.table.top)
    end = min(start + limits.swept_rows, stop)
    if start >= end:
        return np.zeros(0, np.intp), None
    rows = np.flatnonzero(_fits(machine, wanted, slice(start, end))) + start
    cut = min(limit, within(machine.table.size_bytes[rows], limits.answer_bytes))
    if cut < len(rows):
        end = int(rows[cut])
        rows = rows[:cut]
    return rows, end if end < stop else None


async def _ordered(
    table: Table, fit: Fit, cursor: Cursor | None, limit: int, limits: Limits
) -> tuple[Rows, Cursor | None]:
    """Return the first rows that fit behind a cursor, by due and arrival.

    It reads ``scanned_rows`` rows at a time; once it has ``limit`` rows, it skips rows behind the
    last of them, whose place it returns as well. In a long table other tasks run in between, so a
    row may have changed by the end: what is returned fits, and lies before the skipped rows.
    """
    found: Rows = np.zeros(0, np.intp)
    last: Cursor | None = None
    for part in table.parts(limits.scanned_rows):
        fits = fit(part)
        if cursor is not None:
            fits &= _is_behind(table, part, cursor)
        if last is not None:
            fits &= ~_is_behind(table, part, last)
        rows = np.flatnonzero(fits) + part.start
        if len(rows):
            found = _first(table, np.concatenate([found, rows]), limit)
        if len(found) == limit > 0 and len(rows):
            place = _place_of(table, int(found[-1]))
            # A row that was found before may have moved back since.
            last = place if last is None else min(last, place, key=_order)
        if part.stop % limits.paused_rows == 0:
            await asyncio.sleep(0)
    fits = fit(found)
    for end, is_wanted in ((cursor, True), (last, False)):
        if end is not None:
            fits &= _is_behind(table, found, end) == is_wanted
    return _first(table, found[fits], limit), last


def _order(cursor: Cursor) -> tuple[int, int]:
    return cursor.due_ms, cursor.arrival


def _place_of(table: Table, row: int) -> Cursor:
    return Cursor(int(table.due_ms[row]), int(table.seq[row]))


def _is_behind(table: Table, part: slice | Rows, cursor: Cursor) -> np.ndarray:
    due_ms = table.due_ms[part]
    behind: np.ndarray = due_ms > cursor.due_ms
    level = due_ms == cursor.due_ms
    # Few parts of a large table have any, and half of the time goes to these.
    if level.any():
        behind |= level & (table.seq[part] > np.uint64(cursor.arrival))
    return behind


def _first(table: Table, rows: Rows, limit: int) -> Rows:
    if len(rows) > limit > 0:
        # Only rows up to the limit's due have to be sorted.
        bound = np.partition(table.due_ms[rows], limit - 1)[limit - 1]
        rows = rows[table.due_ms[rows] <= bound]
    return rows[np.lexsort((table.seq[rows], table.due_ms[rows]))][:limit]


def places_with_key(batch: Batch, key: str) -> list[int]:
    """Return the places of the messages of a batch that have a key."""
    return [at for at, its in enumerate(keys_of(batch.extras)) if its == key]


def _fits(machine: Machine, wanted: Wanted, part: slice) -> np.ndarray:
    table = machine.table
    fits: np.ndarray = listed(list(wanted.states), DONE + 1)[table.state[part]]
    if wanted.topics:
        fits &= listed_topics(machine, wanted.topics)[table.topic[part]]
    due_ms = table.due_ms[part]
    fits &= (due_ms >= wanted.due_from_ms) & (due_ms < wanted.due_to_ms)
    return fits


def listed(numbers: list[int], size: int) -> np.ndarray:
    """Return for each number below ``size`` whether it is listed."""
    found = np.zeros(max(size, 1), dtype=bool)
    found[numbers] = True
    return found


def listed_topics(machine: Machine, names: Sequence[str]) -> np.ndarray:
    """Return for the number of each topic whether its name is listed."""
    return listed(machine.topics.found(names), len(machine.topics.names))


def of_state(table: Table, topic: int, state: State) -> Fit:
    """Return the test for the messages of a topic that are in a state."""
    return lambda part: (table.topic[part] == topic) & (table.state[part] == state)


def held_by(table: Table, owner: int) -> Fit:
    """Return the test for the messages that an owner holds."""
    return lambda part: (table.state[part] == State.LEASED) & (table.owner[part] == owner)


async def paged(
    table: Table, fit: Fit, cursor: Cursor | None, limit: int, limits: Limits
) -> tuple[Rows, Cursor | None]:
    """Return the rows of a page in order of due, and the start of the next page, if any."""
    rows, last = await _ordered(table, fit, cursor, limit + 1, limits)
    count = min(limit, within(table.size_bytes[rows], limits.answer_bytes))
    if len(rows) <= count:
        return rows, last
    rows = rows[:count]
    return rows, _place_of(table, int(rows[-1]))
