"""Messages whose bodies the disk has lost under an open store: found, reported, ended.

The body of each message has to lie in a whole frame of the journal. Index, wheels, ready runs and
counts are built from the table at each start; ``tools/parts.py`` checks that they agree.
"""

import asyncio
import contextlib

import numpy as np

from dwell.batch.blobs import LazyIds
from dwell.batch.stats import Stale
from dwell.message import Rows
from dwell.store.embedded.check import Report, lost_of, unreadable_parts, whole_ranges
from dwell.store.embedded.core import Core
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.journal.room import Use
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.timekeeper import RECORD_BYTES, Timekeeper


async def found(core: Core, time: Timekeeper, *, repair: bool, limit: int) -> list[Stale]:
    """Return messages without a body in the journal; with ``repair`` they end."""
    machine = core.machine
    time.look()
    whole, until = await _whole_frames(core)
    time.look()
    rows = await bodiless(machine, whole, until, limit)
    now_ms = time.look()
    rows = rows[machine.table.are_messages(rows)]
    answer = _told(machine, rows, repaired=repair)
    if repair and len(rows):
        # The records that end messages must be written, so room for them is reserved first.
        core.reserve(RECORD_BYTES + 16 * len(rows), Use.END)
        time.write(_ended(machine, rows, now_ms))
        await core.committed()
    return answer


async def _whole_frames(core: Core) -> tuple[list[tuple[int, int]], int]:
    """Read the journal; return where whole frames are, and the end of the checked part."""
    journal = core.journal
    until = journal.cut()
    await core.committed()
    found: list[tuple[int, int]] = []
    for number in sorted(journal.segments):
        # A segment deleted since was copied forward, beyond the checked part.
        with contextlib.suppress(KeyError):
            found += await asyncio.to_thread(whole_ranges, journal, number, Report())
    return found, until


async def bodiless(machine: Machine, whole: list[tuple[int, int]], until: int, limit: int) -> Rows:
    """Return at most ``limit`` rows without a body, given the result of :func:`_whole_frames`.

    Other tasks run meanwhile, but not between the last look at the rows and the answer.
    """
    found = [np.zeros(0, np.intp)]
    for rows in unreadable_parts(machine, whole):
        found.append(_messages_before(machine, rows, until))
        if sum(map(len, found)) >= limit:
            break
        await asyncio.sleep(0)
    # Some may have ended or moved since.
    rows = lost_of(machine, whole, np.concatenate(found)[:limit])
    return _messages_before(machine, rows, until)


def _messages_before(machine: Machine, rows: Rows, until: int) -> Rows:
    # A lost result is told to who asks for it.
    rows = rows[machine.table.are_messages(rows)]
    found: Rows = rows[machine.table.position[rows] < until]
    return found


def _told(machine: Machine, rows: Rows, *, repaired: bool) -> list[Stale]:
    """Return rows without a body as callers read them; call it before they end."""
    table, names = machine.table, machine.topics.names
    made = LazyIds(rows, table.seq[rows], None)
    # A caller's id was stored before its body.
    ids = ["" if own else id_ for id_, own in zip(made, table.id_bytes[rows] > 0, strict=True)]
    columns = (table.topic[rows].tolist(), ids, table.seq[rows].tolist())
    return [
        Stale(names[topic], id_, number, "no body", repaired)
        for topic, id_, number in zip(*columns, strict=True)
    ]


def _ended(machine: Machine, rows: Rows, now_ms: int) -> Record:
    """Delete the ids of rows without a body; return the record that ends them."""
    table = machine.table
    own = rows[table.id_bytes[rows] > 0]
    machine.keep(rows)
    # Their ids can no longer be read, neither for the index nor for an event.
    machine.known.end(table.id_entry[own].astype(np.intp), own, 0, now_ms)
    table.id_bytes[rows] = 0
    return Record(RecordKind.CANCEL, now_ms, {"rows": rows})
