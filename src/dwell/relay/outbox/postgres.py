"""An outbox in PostgreSQL: rows stay locked until the queue has them, and others skip them.

A second connection receives notices of commits. Where notices are lost, such as with some poolers,
the table is polled once in a while all the same.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection, IsolationLevel, sql

from dwell.relay.contract import BrokerUnreachable
from dwell.relay.outbox.address import Address
from dwell.relay.outbox.conninfo import parameters_of
from dwell.relay.outbox.entry import MOST_BODY_BYTES, MOST_HEADERS_CHARS, MOST_TEXT_CHARS
from dwell.relay.outbox.source import PassedOver, Place
from dwell.tasks import Standing

_log = logging.getLogger(__name__)

_AGAIN_S = 0.5
#: Defaults for the address: a server that is gone is detected within a minute.
_OPTIONS = {
    "application_name": "dwell relay",
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

# Sizes are summed over rows that are locked already, because a window function cannot lock them.
# The first row is returned whatever its size.
_SELECT = """
SELECT seq, id, topic, body, due_ms, priority, lease_ms, max_attempts, expires_ms, key, headers
FROM (
    SELECT *, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - size AS before
    FROM (
        SELECT seq, left(id, {text}) AS id, left(topic, {text}) AS topic,
            CASE WHEN length(body) > {body} THEN substr(body, 1, {body}) ELSE body END AS body,
            due_ms, priority, lease_ms, max_attempts, expires_ms, left(key, {text}) AS key,
            left(headers, {headers}) AS headers,
            coalesce(length(body), 0) + coalesce(length(headers), 0) + coalesce(octet_length(id), 0)
                + coalesce(octet_length(topic), 0) + coalesce(octet_length(key), 0) AS size
        FROM {table}
        WHERE (topic IS NULL OR left(topic, {text}) <> ALL(%s::text[])) AND seq > %s
        ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED
    ) AS locked
) AS sized
WHERE before < %s ORDER BY seq
"""
# A locked row is still the row that was read. Once the lock is lost a number alone may identify
# another row, for example in a restored table.
_DELETE_LOCKED = "DELETE FROM {table} WHERE seq = ANY(%s::bigint[])"
_DELETE = """
DELETE FROM {table} AS had
USING unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) AS gone (seq, id, topic, due_ms)
WHERE had.seq = gone.seq AND left(had.id, {text}) IS NOT DISTINCT FROM gone.id
    AND left(had.topic, {text}) IS NOT DISTINCT FROM gone.topic
    AND had.due_ms::text IS NOT DISTINCT FROM gone.due_ms
"""


class PostgresRows:
    """The table of an address, with a connection for reading and a connection for listening."""

    def __init__(self, address: Address) -> None:
        self._options: dict[str, Any] = _OPTIONS | parameters_of(address.database, "--from")
        names = [address.table] if address.schema is None else [address.schema, address.table]
        words: dict[str, Any] = {
            "table": sql.Identifier(*names),
            "text": sql.Literal(MOST_TEXT_CHARS),
            "body": sql.Literal(MOST_BODY_BYTES),
            "headers": sql.Literal(MOST_HEADERS_CHARS),
        }
        self._select = sql.SQL(_SELECT).format(**words)
        self._delete_locked = sql.SQL(_DELETE_LOCKED).format(**words)
        self._delete = sql.SQL(_DELETE).format(**words)
        self._listen = sql.SQL("LISTEN {}").format(sql.Identifier(address.table))
        self._link: AsyncConnection[Any] | None = None
        self._has_locked = False
        self._woken = asyncio.Event()
        self._hearing: Standing | None = None

    async def select(
        self, limit: int, most_bytes: int, but: PassedOver
    ) -> Sequence[tuple[Any, ...]]:
        """Return rows that stay locked until they are deleted."""
        if self._hearing is None:
            self._hearing = Standing(self._hear)
            self._hearing.start()
        self._woken.clear()
        async with self._connected() as link:
            # The transaction begins in the same round trip.
            async with link.pipeline():
                cursor = await link.execute(self._select, (*but, limit, most_bytes), binary=True)
            rows: list[tuple[Any, ...]] = await cursor.fetchall()
            self._has_locked = bool(rows)
            if not rows:
                await link.rollback()
            return rows

    async def delete(self, places: Sequence[Place]) -> None:
        """Delete in the transaction that locked the rows, or in a new one if it is lost."""
        seqs, ids, topics, dues = zip(*places, strict=True)
        async with self._connected() as link, link.pipeline():
            if self._has_locked:
                # As text, which costs a tenth of a list.
                await link.execute(self._delete_locked, [f"{{{','.join(map(str, seqs))}}}"])
            else:
                # A table of somebody's own may have a due of another type.
                due_texts = [None if due is None else str(due) for due in dues]
                named = (list(seqs), list(ids), list(topics), due_texts)
                await link.execute(self._delete, named)
            await link.commit()
            self._has_locked = False

    @contextlib.asynccontextmanager
    async def _connected(self) -> Any:
        """Yield the connection; after an error it is not used again."""
        try:
            if self._link is None:
                self._link = await self._connect()
                await self._link.set_isolation_level(IsolationLevel.READ_COMMITTED)
            yield self._link
        except (psycopg.Error, OSError) as error:
            link, self._link, self._has_locked = self._link, None, False
            if link is not None:
                await link.close()
            raise BrokerUnreachable(f"postgresql: {_first_line(error)}") from None

    async def _connect(self, *, autocommit: bool = False) -> AsyncConnection[Any]:
        # Named statements would belong to another client behind a pooler.
        return await AsyncConnection.connect(
            autocommit=autocommit, prepare_threshold=None, client_encoding="utf8", **self._options
        )

    async def changed(self, seconds: float) -> bool:
        """Wait for a notice."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        return self._woken.is_set()

    async def _hear(self) -> None:
        """Listen while the relay runs."""
        is_told = False
        while True:
            try:
                async with await self._connect(autocommit=True) as link:
                    await link.execute(self._listen)
                    is_told = False
                    # There are no notices for earlier writes.
                    self._woken.set()
                    async for _ in link.notifies():
                        self._woken.set()
            except (psycopg.Error, OSError) as error:
                if not is_told:
                    _log.info("postgresql: no notices come: %s", _first_line(error))
                is_told = True
            await asyncio.sleep(_AGAIN_S)

    async def close(self) -> None:
        """Release the locked rows."""
        if self._hearing is not None:
            await self._hearing.stop()
        if self._link is not None:
            await self._link.close()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
