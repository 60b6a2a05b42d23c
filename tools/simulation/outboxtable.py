"""The table of an outbox in a simulated world: rows that connections select, lock and delete."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from dwell.relay.contract import BrokerUnreachable
from dwell.relay.outbox.source import PassedOver, Place

#: How long the database waits for a connection whose process is gone.
_GONE_S = 1.0


class Table:
    """Rows by their number, and who has locked them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.rows: dict[int, tuple[Any, ...]] = {}
        self.locks: dict[int, SimulatedRows] = {}
        self.is_away = self.is_calm = False
        self._last = 0

    def insert(self, id_: str, topic: str, body: bytes, due_ms: int) -> None:
        """Insert a row, as an application does in a transaction of its own."""
        self._last += 1
        self.rows[self._last] = (
            *(self._last, id_, topic, body, due_ms, None, None, None, None, None, None),
        )

    def unlock(self, owner: "SimulatedRows") -> None:
        """Let go of what a connection has locked."""
        self.locks = {seq: who for seq, who in self.locks.items() if who is not owner}


class SimulatedRows:
    """One connection; like a real one it may be cut, which undoes and unlocks."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def select(
        self, limit: int, most_bytes: int, but: PassedOver
    ) -> Sequence[tuple[Any, ...]]:
        """Return the first rows that nobody has locked, and lock them."""
        table = self._table
        await self._answer()
        table.unlock(self)
        found = [
            row
            for seq, row in sorted(table.rows.items())
            if seq not in table.locks and row[2] not in but.topics and seq > but.to_seq
        ][:limit]
        table.locks |= dict.fromkeys((row[0] for row in found), self)
        await self._answer()
        return found

    async def delete(self, places: Sequence[Place]) -> None:
        """Delete rows; when the connection is cut nobody knows whether they are."""
        table = self._table
        await self._answer()
        for seq, *rest in places:
            row = table.rows.get(seq)
            if row is not None and [*row[1:3], row[4]] == rest:
                del table.rows[seq]
        table.unlock(self)
        await self._answer()

    async def _answer(self) -> None:
        table = self._table
        await asyncio.sleep(table.chance.choice((1e-4, 1e-3, 0.02)))
        if table.is_away or (not table.is_calm and table.chance.random() < 0.03):
            table.unlock(self)
            raise BrokerUnreachable("database: the connection was cut")

    async def changed(self, seconds: float) -> bool:
        """Wait; tell that rows were written, as a table is looked at in any case."""
        await asyncio.sleep(seconds)
        return True

    async def close(self) -> None:
        """Let go of what was selected."""
        self._table.unlock(self)

    def crash(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go without a word: the database notices a while later."""
        loop.call_later(_GONE_S, self._table.unlock, self)
