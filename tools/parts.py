"""Whether the parts of an open store agree: its table, indexes, wheels, ready runs and counts.

A process's own memory is not repaired while it runs; tests and the simulation ask this instead,
after every step.
"""

from collections.abc import Iterator

import numpy as np

from dwell.message import Rows, State
from dwell.store.base import Store
from dwell.store.embedded.known import KnownIds
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.store import EmbeddedStore
from dwell.store.memory.rows import Row
from dwell.store.memory.store import MemoryStore


def disagreements(store: Store) -> list[str]:
    """Return what only a part of a store knows; the store must stand still meanwhile."""
    if isinstance(store, EmbeddedStore):
        return list(_in_a_folder(store.core.machine))
    assert isinstance(store, MemoryStore)
    return list(_in_memory(store))


# --- in a folder ------------------------------------------------------------------------------


def _in_a_folder(machine: Machine) -> Iterator[str]:
    table, known = machine.table, machine.known
    rows = table.rows_where(lambda part: table.state[part] != State.GONE)
    state = table.state[rows]
    waiting = (state == State.DELAYED) | (state == State.READY)
    indexed = indexed_rows(known)
    ready, parked = _ready(machine), _parked(machine)
    fronts = np.array([*parked], np.intp)
    behind = np.array([row for rows in parked.values() for row in rows], np.intp)
    places = [
        ("the wheel of dues", state == State.DELAYED, machine.delays.rows()),
        ("the ready runs", state == State.READY, np.append(ready, behind)),
        ("the wheel of leases", state == State.LEASED, machine.leases.rows()),
        ("the wheel of expiries", waiting & (table.expires_ms[rows] > 0), machine.expiries.rows()),
        ("the index", table.id_bytes[rows] > 0, indexed),
    ]
    for name, belongs, there in places:
        missing = np.setdiff1d(rows[belongs], there)
        if len(missing):
            yield f"{name} lacks rows {missing.tolist()}"
    # Only a front that goes lets those behind it come forward.
    gone = fronts[~(np.isin(fronts, ready) | table.are_begun(fronts))]
    if len(gone):
        yield f"the lanes wait for rows {gone.tolist()}, which are neither ready nor taken"
    strange = np.setdiff1d(indexed, rows[table.id_bytes[rows] > 0])
    if len(strange):
        yield f"the index has rows {strange.tolist()} of no message"
    for topic, name in enumerate(machine.topics.names):
        for kind in (State.DELAYED, State.READY, State.LEASED, State.DEAD):
            count = int(np.count_nonzero((table.topic[rows] == topic) & (state == kind)))
            if table.count(topic, kind) != count:
                yield f"{name}: {table.count(topic, kind)} {kind.name}, and there are {count}"


def indexed_rows(known: KnownIds) -> Rows:
    """Return the rows of the messages that can be found by their ids, in no order."""
    marks = known.row[known.index.numbers()]
    return marks[marks > 0].astype(np.intp) - 1


def _ready(machine: Machine) -> Rows:
    """Return the rows that stand among what can be taken, and can be."""
    table, found = machine.table, [np.zeros(0, np.intp)]
    for topic in range(len(machine.topics.names)):
        for chunk in machine.topics.runs(topic).entries():
            rows = chunk.rows.astype(np.intp)
            is_same = table.seq[rows] == chunk.seq
            chunk, rows = chunk.part(is_same), rows[is_same]
            # In a fair topic they are ordered by turns.
            priority, due_ms = machine.ready._places(topic, rows)
            found.append(rows[(due_ms == chunk.due_ms) & (priority == chunk.priority)])
    return np.concatenate(found)


def _parked(machine: Machine) -> dict[int, list[int]]:
    """Return the rows that are ready, and behind others of their keys, by those others."""
    lanes = (machine.admission.lanes(topic) for topic in range(len(machine.topics.names)))
    return {front: rows for lane in lanes if lane for front, rows in lane.parked_rows().items()}


# --- in memory --------------------------------------------------------------------------------


def _in_memory(store: MemoryStore) -> Iterator[str]:
    topics = store.topics.values()
    rows = {row for topic in topics for row in topic.rows.values()}
    ready = {row for topic in topics for row in topic.ready_rows()}
    timed = {row for _, serial, row in store._deadlines.entries if row.serial == serial}
    for row in (ready | timed | {*store._taken.values(), *store._numbered.values()}) - rows:
        yield f"{row.id!r}: no topic has it"
    for row in rows:
        if not _is_placed(store, row, ready, timed):
            yield f"{row.id!r}: is {row.state.name}, and not where those are"
    for topic in topics:
        for state in (State.DELAYED, State.READY, State.LEASED, State.DEAD):
            there = sum(row.state is state for row in topic.rows.values())
            if topic.counts[state] != there:
                yield f"{topic.name}: {topic.counts[state]} {state.name}, and there are {there}"


def _is_placed(store: MemoryStore, row: Row, ready: set[Row], timed: set[Row]) -> bool:
    return (
        row.state is not State.GONE
        and store._numbered.get(row.arrival) is row
        and (row.state is not State.READY or row in ready)
        and (row.state is not State.LEASED or store._taken.get(row.take) is row)
        and (not row.deadline_ms() or row in timed)
    )
