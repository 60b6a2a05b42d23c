"""Reading messages: rows of the table, and what of them is on disk, as a batch."""

import asyncio
from collections.abc import Sequence

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.blobs import LazyIds, Same
from dwell.batch.stats import Stats, TopicStats
from dwell.message import Kind, Rows, State
from dwell.slices import slices
from dwell.store.embedded.blobs import BlobIds, BlobReader
from dwell.store.embedded.core import Core
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.receipts import receipts_of

#: How many topics are counted before others have their turn.
_TOPICS_AT_ONCE = 10_000


async def read(core: Core, rows: Rows, *, receipts: bool) -> Batch:
    """Return messages as they are now, once everything that made them so is on disk.

    Raises StoreDamaged when what is read of one of them is not what was written.
    """
    if not len(rows):
        await core.committed()
        return Batch.empty(receipts=receipts)
    table, machine = core.machine.table, core.machine
    position, id_bytes, extra_bytes = (
        table.position[rows],
        table.id_bytes[rows],
        table.extra_bytes[rows],
    )
    bodies: Sequence[bytes] | None = core.recent.find(position)
    reader = None
    if bodies is None or id_bytes.any() or extra_bytes.any():
        sizes = table.size_bytes[rows]
        reader = BlobReader(core.journal, position, sizes, id_bytes, extra_bytes)
    state = table.state[rows]
    has_until = (state == State.LEASED) | (state == State.DEAD)
    batch = Batch(
        topics=_topics(core, rows),
        ids=LazyIds(rows, table.seq[rows], BlobIds(reader) if reader and reader.has_ids else None),
        bodies=[],
        extras=Same(b"", len(rows)),
        due_ms=table.due_ms[rows],
        priority=table.priority[rows],
        attempt=table.attempt[rows],
        max_attempts=table.max_attempts[rows],
        lease_ms=table.lease_ms[rows],
        until_ms=np.where(has_until, table.lease_until_ms[rows], 0),
        expires_ms=table.expires_ms[rows],
        state=state,
        numbers=table.seq[rows],
        errors=_errors(machine.errors, rows),
        receipts=receipts_of(table, rows, core.label.number) if receipts else None,
    )
    await core.committed()
    if reader is not None:
        await core.journal.check_segments(reader.segments)
        reader.check_damage()
        batch.extras = reader.extras() or batch.extras
        if reader.has_ids and reader.is_large:
            # Looked at one by one behind the bodies, each would map its page again.
            batch.ids = LazyIds(rows, batch.numbers, reader.id_blobs())
        bodies = bodies or reader.bodies()
    batch.bodies = bodies or []
    return batch


async def are_damaged(core: Core, rows: Rows) -> np.ndarray:
    """Tell of each message whether what is on disk of it is not what was written."""
    table = core.machine.table
    reader = BlobReader(
        core.journal,
        table.position[rows],
        table.size_bytes[rows],
        table.id_bytes[rows],
        table.extra_bytes[rows],
    )
    await core.journal.check_segments(reader.segments)
    return reader.are_damaged()


def _topics(core: Core, rows: Rows) -> Sequence[str]:
    names = core.machine.topics.names
    numbers = core.machine.table.topic[rows]
    if (numbers == numbers[0]).all():
        return Same(names[numbers[0]], len(rows))
    return [names[number] for number in numbers.tolist()]


def _errors(errors: dict[int, str], rows: Rows) -> dict[int, str]:
    if not errors:
        return {}
    return {index: errors[row] for index, row in enumerate(rows.tolist()) if row in errors}


async def stats_of(machine: Machine) -> Stats:
    """Return the counts of each topic, and of what has happened; others have turns meanwhile."""
    states = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
    counts = machine.table.counts(len(machine.topics.names), *states).tolist()
    totals = {str(kind): int(machine.events.totals[kind]) for kind in Kind}
    topics: dict[str, TopicStats] = {}
    for some in slices(list(machine.topics.numbered().items()), _TOPICS_AT_ONCE):
        if topics:
            await asyncio.sleep(0)
        topics.update({name: TopicStats(*counts[number]) for name, number in some})
    return Stats(topics, totals)
