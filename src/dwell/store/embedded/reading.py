"""Reading messages: rows of the table, with their parts on disk, as a batch."""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dwell.batch.batch import BATCH_ARRAYS, Batch
from dwell.batch.blobs import LazyIds, Same
from dwell.batch.stats import Stats, TopicStats
from dwell.message import Kind, Rows, State
from dwell.slices import slices
from dwell.store.embedded.blobs import BlobIds, BlobReader
from dwell.store.embedded.core import Core
from dwell.store.embedded.lasterrors import LastErrors
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.receipts import receipts_of
from dwell.store.embedded.table import TYPES

#: How many topics are counted before other tasks run.
_TOPICS_AT_ONCE = 10_000
#: The columns of a batch that are equal to the table's.
_AS_STORED = [name for name in BATCH_ARRAYS if name in TYPES and name != "state"]

_log = logging.getLogger(__name__)


class Read(NamedTuple):
    """The result of a read: the whole messages, and their places among the requested ones.

    ``damage`` has the place of a damaged message; it is empty without any.
    """

    batch: Batch
    are_whole: np.ndarray
    damage: str = ""


async def read(core: Core, rows: Rows, *, receipts: bool) -> Read:
    """Return messages as they are now, once all changes to them are on disk.

    A message whose stored bytes are damaged is left out, and logged once.
    """
    are_whole = np.ones(len(rows), dtype=bool)
    if not len(rows):
        await core.committed()
        return Read(Batch.empty(receipts=receipts), are_whole)
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
        until_ms=np.where(has_until, table.lease_until_ms[rows], 0),
        state=state,
        numbers=table.seq[rows],
        **{name: getattr(table, name)[rows] for name in _AS_STORED},
        errors=_errors(machine.errors, rows),
        receipts=receipts_of(table, rows, core.label.number) if receipts else None,
    )
    await core.committed()
    damage = ""
    if reader is not None:
        await core.journal.check_segments(reader.segments)
        damage = damage_of(core, reader, are_whole)
        batch.extras = reader.extras() or batch.extras
        if reader.has_ids and reader.is_large:
            # Reading ids one by one after the bodies would map their pages again.
            batch.ids = LazyIds(rows, batch.numbers, reader.id_blobs())
        bodies = bodies or reader.bodies()
    batch.bodies = bodies or []
    if damage:
        batch = batch.picked(np.flatnonzero(are_whole).tolist())
    return Read(batch, are_whole, damage)


def damage_of(core: Core, reader: BlobReader, are_whole: np.ndarray) -> str:
    """Note the damaged messages; return the place of one, empty if all are whole."""
    found = ""
    for path, offset, is_there in reader.damages():
        if not is_there.any():
            continue
        are_whole &= ~is_there
        found = found or (
            f"{path}: damaged from offset {offset}; dwell check --repair saves what can be saved"
        )
        if (path, offset) not in core.told_damage:
            core.told_damage.add((path, offset))
            words = "%s: damaged from offset %d; the messages there are left out of what is read"
            _log.error(words, path, offset)
    return found


def _topics(core: Core, rows: Rows) -> Sequence[str]:
    names = core.machine.topics.names
    numbers = core.machine.table.topic[rows]
    if (numbers == numbers[0]).all():
        return Same(names[numbers[0]], len(rows))
    return [names[number] for number in numbers.tolist()]


def _errors(errors: LastErrors, rows: Rows) -> dict[int, str]:
    if not errors:
        return {}
    found = {index: errors.get(row) for index, row in enumerate(rows.tolist())}
    return {index: error for index, error in found.items() if error is not None}


async def stats_of(machine: Machine) -> Stats:
    """Return the counts of each topic and kind of event; other tasks run in between."""
    states = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
    counts = machine.table.counts(len(machine.topics.names), *states).tolist()
    totals = {str(kind): int(machine.events.totals[kind]) for kind in Kind}
    topics: dict[str, TopicStats] = {}
    for some in slices(list(machine.topics.numbered().items()), _TOPICS_AT_ONCE):
        if topics:
            await asyncio.sleep(0)
        topics.update({name: TopicStats(*counts[number]) for name, number in some})
    return Stats(topics, totals)
