"""SKIP LOCKED by hand: a table of PostgreSQL, psycopg, and takers that look every 5 ms."""

import threading
import time
from collections.abc import Sequence
from typing import ClassVar

import psycopg

from bench.peers.drivers.program import Client, Log, body_of, main, now_ms, number_of

_POLL_S = 0.005
_TABLE = """
CREATE TABLE IF NOT EXISTS bench
    (id bigint PRIMARY KEY, due_ms bigint NOT NULL, body bytea NOT NULL);
CREATE INDEX IF NOT EXISTS bench_due ON bench (due_ms);
"""
_TAKE = """
DELETE FROM bench WHERE id IN (
    SELECT id FROM bench WHERE due_ms <= %s ORDER BY due_ms LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING body
"""


class Sql(Client):
    """A connection for each thread."""

    can: ClassVar = {"put": 1000, "cancel": 1000, "move": 1000}
    blocks = True

    def __init__(self) -> None:
        self._local = threading.local()

    async def open(self, address: str) -> dict[str, str]:
        self._address = address
        self._connection.execute(_TABLE)
        server = self._connection.info.server_version
        return {
            "postgresql": f"{server // 10_000}.{server % 10_000}",
            "psycopg": psycopg.__version__,
        }

    @property
    def _connection(self) -> psycopg.Connection:
        connection: psycopg.Connection | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed:
            connection = self._local.connection = psycopg.connect(self._address, autocommit=True)
        return connection

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        due_ms = due_ms or [int(now_ms())] * len(numbers)
        bodies = list(map(body_of, numbers))
        self._connection.execute(
            "INSERT INTO bench SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[])",
            (list(numbers), due_ms, bodies),
        )

    async def taker(self, limit: int, taken: Log) -> None:
        while True:
            with self._connection.transaction():
                rows = self._connection.execute(_TAKE, (int(now_ms()), limit)).fetchall()
                if rows:
                    taken([number_of(body) for (body,) in rows])
            if not rows:
                time.sleep(_POLL_S)

    async def cancel(self, numbers: range) -> int:
        delete = "DELETE FROM bench WHERE id = ANY(%s)"
        return self._connection.execute(delete, (list(numbers),)).rowcount

    async def move(self, numbers: range, due_ms: Sequence[int]) -> int:
        update = (
            "UPDATE bench SET due_ms = new.due_ms "
            "FROM unnest(%s::bigint[], %s::bigint[]) AS new (id, due_ms) WHERE bench.id = new.id"
        )
        return self._connection.execute(update, (list(numbers), due_ms)).rowcount


if __name__ == "__main__":
    main(Sql())
