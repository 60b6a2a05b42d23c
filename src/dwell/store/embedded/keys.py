"""Keys: reads the keys of messages from the disk, for topics where they matter."""

import asyncio
from collections.abc import Iterator
from itertools import compress

import numpy as np

from dwell.message import Rows
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.machine import Machine


async def learn(machine: Machine, journal: Journal, topic: int, at_once: int) -> None:
    """Read the keys of a topic's messages, ``at_once`` rows at a time."""
    for rows in _keyed(machine, topic, at_once):
        await _learn(machine, journal, rows)
        await asyncio.sleep(0)


async def _learn(machine: Machine, journal: Journal, rows: Rows) -> None:
    """Read the keys of some messages, once their blobs are written."""
    table, seqs = machine.table, machine.table.seq[rows]
    while len(rows):
        positions, reader = table.position[rows], _reader(machine, journal, rows)
        await journal.committed()
        extras = reader.extras() or ()
        is_there = table.seq[rows] == seqs
        still = is_there & (table.position[rows] == positions)
        machine.admission.learn(rows[still], list(compress(extras, still)))
        # A message that was copied forward or replaced since is read at its new place.
        again = is_there & ~still
        rows, seqs = rows[again], seqs[again]


def read_keys(machine: Machine, journal: Journal, topic: int, at_once: int) -> None:
    """Read the keys of a topic's messages; all of their blobs must be written."""
    for rows in filter(len, _keyed(machine, topic, at_once)):
        machine.admission.learn(rows, _reader(machine, journal, rows).extras() or ())


def _keyed(machine: Machine, topic: int, at_once: int) -> Iterator[Rows]:
    """Yield the rows of a topic's messages that may have a key, part by part."""
    table = machine.table
    for part in table.parts(at_once):
        wanted = (table.topic[part] == topic) & table.are_messages(part)
        has_extra = table.extra_bytes[part] > 0
        machine.admission.learn_none(np.flatnonzero(wanted & ~has_extra) + part.start)
        yield np.flatnonzero(wanted & has_extra) + part.start


def _reader(machine: Machine, journal: Journal, rows: Rows) -> BlobReader:
    table = machine.table
    return BlobReader(
        journal,
        table.position[rows],
        table.size_bytes[rows],
        table.id_bytes[rows],
        table.extra_bytes[rows],
    )
