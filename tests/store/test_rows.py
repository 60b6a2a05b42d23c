"""Rows at hand are the machine's integers, wherever they come from (docs/design/23)."""

import numpy as np

import dwell
from dwell.message import State
from dwell.store.embedded.journal.record import Record, RecordKind
from dwell.store.embedded.receipts import leased_rows
from dwell.store.embedded.wheel import Wheel


def _wheel_rows() -> list[np.ndarray]:
    wheel = Wheel(lambda rows: np.ones(len(rows), dtype=np.int64))
    wheel.add(np.arange(3), np.ones(3, dtype=np.int64))
    kept, popped = wheel.rows(), wheel.pop(1, 100)
    assert popped is not None
    return [kept, popped]


async def _store_rows(folder) -> list[np.ndarray]:
    async with dwell.open(str(folder)) as queue:
        await queue.put_many("t", ["a", "b", "c"], ids=["1", "2", "3"])
        taken = await queue.take("t", 1)
        machine = queue.store.core.machine
        table, known = machine.table, machine.known
        named = queue.store._finder.find("t", [b"2", b"3"])[0]
        return [
            leased_rows(table, taken.receipts, queue.store.number)[0],
            machine.ready.peek(0, 5)[0],
            named,
            known.index.numbers(),
            table.next_free(2),
            table.rows_where(lambda part: table.state[part] == State.READY),
        ]


async def test_rows_are_the_machines_integers(tmp_path):
    record = Record(RecordKind.ACK, 0, {"rows": np.arange(3, dtype=np.uint32)})
    found = [record.rows, *_wheel_rows(), *await _store_rows(tmp_path / "store")]
    assert all(len(rows) for rows in found)
    assert {rows.dtype for rows in found} == {np.dtype(np.intp)}


def test_a_record_keeps_rows_in_four_bytes():
    narrow = Record(RecordKind.ACK, 0, {"rows": np.arange(3, dtype=np.uint32)})
    wide = Record(RecordKind.ACK, 0, {"rows": np.arange(3)})
    assert b"".join(wide.encode()) == b"".join(narrow.encode())
