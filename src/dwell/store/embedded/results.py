"""Results: what acks kept, and what came of messages."""

from collections.abc import Sequence

import numpy as np

from dwell.batch.blobs import joined, sizes_of
from dwell.batch.outcome import UNKNOWN, Outcome
from dwell.errors import StoreDamaged
from dwell.message import Rows, State
from dwell.store.base import AckResults
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.core import Core
from dwell.store.embedded.finder import Finder
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.reading import damage_of
from dwell.store.embedded.table import DONE

#: More than a record needs in addition to its columns and blobs, and what it needs for a message.
_RECORD_BYTES, _COLUMN_BYTES = 128, 16


def acks_of(
    core: Core, columns: dict[str, np.ndarray], results: AckResults, now_ms: int
) -> list[Record]:
    """Return the records that ack messages: those with a result to keep, and the others.

    ``results`` has a result or None for each of them.
    """
    rows: Rows = columns["rows"]
    if results is None:
        return [Record(RecordKind.ACK, now_ms, columns)]
    keeps = core.machine.terms.remember_ms(rows) > 0
    keeps &= np.array([result is not None for result in results], dtype=bool)
    pairs = zip(results, keeps.tolist(), strict=True)
    kept = [result for result, keep in pairs if keep and result is not None]
    records = []
    if not keeps.all():
        others = {name: column[~keeps] for name, column in columns.items()}
        records.append(Record(RecordKind.ACK, now_ms, others))
    if kept:
        own = {name: column[keeps] for name, column in columns.items()}
        own["size_bytes"] = sizes_of(kept).astype(np.uint32)
        records.append(Record(RecordKind.DONE, now_ms, own, blobs=joined(kept)))
    return records


def size_bytes_of(records: Sequence[Record]) -> int:
    """Return an upper bound of the size of some acks."""
    return sum(len(one.blobs) + _COLUMN_BYTES * len(one) + _RECORD_BYTES for one in records)


async def outcomes(
    core: Core, finder: Finder, topic: str, ids: Sequence[bytes], now_ms: int
) -> list[Outcome | StoreDamaged]:
    """Return what came of messages, once all changes to them are on disk."""
    table, errors = core.machine.table, core.machine.errors
    answers: list[Outcome | StoreDamaged] = [UNKNOWN] * len(ids)
    for at in np.flatnonzero(finder.are_remembered(topic, ids, now_ms)).tolist():
        answers[at] = Outcome("done")
    rows, found = finder.find_any(topic, ids)
    places = np.flatnonzero(found)
    rows = rows[places]
    are_done = table.state[rows] == DONE
    for at, row in zip(places[~are_done].tolist(), rows[~are_done].tolist(), strict=True):
        state = State(table.state.item(row))
        answers[at] = Outcome(str(state), error=errors.get(row) if state is State.DEAD else None)
    are_kept = are_done & (table.expires_ms[rows] > now_ms)
    kept = await _read(core, rows[are_kept])
    for at, answer in zip(places[are_kept].tolist(), kept, strict=True):
        answers[at] = answer
    return answers


async def _read(core: Core, rows: Rows) -> list[Outcome | StoreDamaged]:
    """Return the results in some rows."""
    table, nothing = core.machine.table, np.zeros(len(rows), np.uint16)
    position, sizes = table.position[rows], table.size_bytes[rows]
    if not len(rows):
        await core.committed()
        return []
    reader = BlobReader(core.journal, position, sizes, nothing, nothing)
    await core.committed()
    await core.journal.check_segments(reader.segments)
    are_whole = np.ones(len(rows), dtype=bool)
    damage = damage_of(core, reader, are_whole)
    return [
        Outcome("done", result) if is_whole else StoreDamaged(f"a result cannot be read: {damage}")
        for result, is_whole in zip(reader.bodies(), are_whole.tolist(), strict=True)
    ]
