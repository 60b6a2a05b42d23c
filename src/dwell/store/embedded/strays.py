"""What only a part of an open store knows: found by comparing its parts, and put right.

The table says which messages there are. The body of each has to lie in a whole frame of the
journal; the index has to know the ids of callers, and no others; each message has to stand in the
wheels or the ready runs where its state says; and the counts have to be right. Wheels, runs, index
and counts are made from the table at each start, so only what has no body is told to the journal.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dwell.lazy import LazyIds
from dwell.message import Rows, State
from dwell.store.base import Stale
from dwell.store.embedded.blobs import BlobIds, BlobReader
from dwell.store.embedded.check import Report, unreadable, whole_ranges
from dwell.store.embedded.core import Core
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.numbers import numbers_of


@dataclass(slots=True)
class Strays:
    """Rows without a body, rows that only the index knows, rows that are not where they should be.

    ``miscounted`` has the numbers of topics, and what is wrong with their counts.
    """

    bodiless: Rows
    unknown: Rows
    unplaced: Rows
    miscounted: list[tuple[int, str]]

    def first(self, limit: int) -> "Strays":
        """Return at most so many of them."""
        left, parts = limit, []
        for part in (self.bodiless, self.unknown, self.unplaced, self.miscounted):
            parts.append(part[:left])
            left -= len(parts[-1])
        return Strays(*parts)  # type: ignore[arg-type]


# --- finding ----------------------------------------------------------------------------------


async def whole_frames(core: Core) -> tuple[list[tuple[int, int]], int]:
    """Read the journal; return where whole frames are, and from where on nothing was looked at."""
    journal = core.journal
    until = journal.cut()
    await core.committed()
    found: list[tuple[int, int]] = []
    for number in sorted(journal.segments):
        # A segment that was deleted meanwhile was copied forward, beyond what is looked at.
        with contextlib.suppress(KeyError):
            found += await asyncio.to_thread(whole_ranges, journal, number, Report())
    return found, until


def find(machine: Machine, whole: list[tuple[int, int]], until: int) -> Strays:
    """Compare the parts, with what :func:`whole_frames` returned."""
    table = machine.table
    bodiless = unreadable(machine, whole)
    bodiless = bodiless[table.position[bodiless] < until]
    indexed = np.sort(machine.known.rows())
    inside = indexed < table.top
    at = np.where(inside, indexed, 0)
    unknown = indexed[~(inside & (table.state[at] != State.GONE) & (table.id_bytes[at] > 0))]
    unplaced = np.setdiff1d(_unplaced(machine, indexed), bodiless)
    return Strays(bodiless, unknown, unplaced, _miscounted(machine))


def _unplaced(machine: Machine, indexed: Rows) -> Rows:
    """Return the rows that the index, the wheels or the ready runs should know, and do not."""
    table = machine.table
    rows = table.rows_where(lambda part: table.state[part] != State.GONE)
    state = table.state[rows]
    waiting = (state == State.DELAYED) | (state == State.READY)

    def missing(known: Rows) -> np.ndarray:
        marks = np.zeros(table.top, dtype=bool)
        marks[known[known < table.top]] = True
        return ~marks[rows]

    lost = (state == State.DELAYED) & missing(machine.delays.rows())
    lost |= (state == State.READY) & missing(machine.ready_rows())
    lost |= (state == State.LEASED) & missing(machine.leases.rows())
    lost |= waiting & (table.expires_ms[rows] > 0) & missing(machine.expiries.rows())
    lost |= (table.id_bytes[rows] > 0) & missing(indexed)
    found: Rows = rows[lost]
    return found


def _miscounted(machine: Machine) -> list[tuple[int, str]]:
    more = machine.table.miscounts()
    wrong = {
        (topic, "no message" if more[topic, state] > 0 else "no state")
        for topic, state in np.argwhere(more).tolist()
    }
    return sorted(wrong)


# --- telling ----------------------------------------------------------------------------------


def told(core: Core, strays: Strays, *, repaired: bool) -> list[Stale]:
    """Return strays as callers read them; must be asked before they are put right."""
    machine = core.machine
    table, names = machine.table, machine.topics.names
    own = table.id_bytes[strays.bodiless] > 0
    made = list(LazyIds(strays.bodiless, table.seq[strays.bodiless], None))
    groups: list[tuple[Rows, Sequence[str], str]] = [
        # A caller's id lay before its body.
        (
            strays.bodiless,
            ["" if at else id_ for id_, at in zip(made, own, strict=True)],
            "no body",
        ),
        (strays.unknown, [""] * len(strays.unknown), "no message"),
        (strays.unplaced, _ids(core, strays.unplaced), "no state"),
    ]
    found = [
        Stale(topic, id_, number, problem, repaired)
        for rows, ids, problem in groups
        for (topic, number), id_ in zip(_places(machine, rows), ids, strict=True)
    ]
    counts = (Stale(names[topic], "", 0, problem, repaired) for topic, problem in strays.miscounted)
    return [*found, *counts]


def _places(machine: Machine, rows: Rows) -> Iterator[tuple[str, int]]:
    """Yield topic and number of each row, empty and 0 for one that never held a message."""
    table, names = machine.table, machine.topics.names
    for row in rows.tolist():
        if row < table.top:
            at: Rows = np.array([row])
            yield names[table.topic[row]], int(numbers_of(at, table.seq[at])[0])
        else:
            yield "", 0


def _ids(core: Core, rows: Rows) -> Sequence[str]:
    if not len(rows):
        return []
    table = core.machine.table
    reader = BlobReader(
        core.journal,
        table.position[rows],
        table.size_bytes[rows],
        table.id_bytes[rows],
        table.extra_bytes[rows],
    )
    return LazyIds(rows, table.seq[rows], BlobIds(reader) if reader.has_ids else None)


# --- repair -----------------------------------------------------------------------------------


def mend(machine: Machine, strays: Strays, now_ms: int) -> Record | None:
    """Put strays right; return the record that ends those without a body, which must be written."""
    table = machine.table
    if strays.miscounted:
        table.recount()
    gone = np.union1d(strays.unknown, strays.bodiless)
    again = strays.unplaced[table.id_bytes[strays.unplaced] > 0]
    machine.known.mend(gone, again, table.id_entry[again].astype(np.intp))
    machine.place(strays.unplaced, now_ms)
    if not len(strays.bodiless):
        return None
    machine.keep(strays.bodiless)
    # Their ids cannot be read any more, neither for the index nor for an event.
    table.id_bytes[strays.bodiless] = 0
    return Record(RecordKind.CANCEL, now_ms, {"rows": strays.bodiless})
