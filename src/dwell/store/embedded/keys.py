"""Keys: where it matters which key messages have, it is read where they lie on the disk."""

import asyncio
from collections.abc import Iterator

import numpy as np

from dwell.message import State
from dwell.store.embedded.blobs import BlobReader
from dwell.store.embedded.journal.journal import Journal
from dwell.store.embedded.machine import Machine

#: Rows whose keys are read before others have their turn.
_AT_ONCE = 1 << 13


async def learn(machine: Machine, journal: Journal, topic: str) -> None:
    """Read the keys of a topic's messages, if they are not known; others go on meanwhile."""
    number = machine.topics.find(topic)
    if number is None or machine.gate.has_keys(number):
        return
    # Of what is put from now on they are known.
    machine.gate.expect(number)
    until = machine.next_seq
    await journal.committed()
    for _ in read_keys(machine, journal, number, until):
        await asyncio.sleep(0)


def read_keys(machine: Machine, journal: Journal, topic: int, until: int) -> Iterator[None]:
    """Read the keys of messages that arrived before some, part by part."""
    table = machine.table
    for start in range(0, table.top, _AT_ONCE):
        part = slice(start, min(start + _AT_ONCE, table.top))
        wanted = (table.topic[part] == topic) & (table.state[part] != State.GONE)
        wanted &= (table.extra_bytes[part] > 0) & (table.seq[part] < until)
        rows = np.flatnonzero(wanted) + start
        if len(rows):
            reader = BlobReader(
                journal,
                table.position[rows],
                table.size_bytes[rows],
                table.id_bytes[rows],
                table.extra_bytes[rows],
            )
            machine.gate.learn(rows, reader.extras() or ())
            yield
