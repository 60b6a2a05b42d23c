"""An outbox as applications use it: puts that are rows of a transaction."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Connection, Engine, MetaData, event, func, select
from sqlalchemy.orm import Session, scoped_session

from dwell.batch.puts import Puts, Row
from dwell.clock import Clock, RealClock
from dwell.errors import InvalidId, InvalidInput, InvalidKey
from dwell.given import values
from dwell.given.rows import row_of
from dwell.given.values import Delay, Due
from dwell.message import DEFAULT_PRIORITY, I64, decode_extra
from dwell.outbox.table import NAME, table_of
from dwell.queue.bulk import puts_of

#: Where a put belongs: what has the transaction.
Transaction: TypeAlias = Connection | Session | scoped_session[Any]

_NUL = "\0"


@event.listens_for(Engine, "savepoint")
def _begin_before_savepoint(link: Connection, _name: str | None) -> None:
    """Begin the transaction that a savepoint is part of, as SQLite's driver does not.

    A savepoint outside of a transaction is one itself there: its release would commit a put that
    the application rolls back. Where the driver leaves transactions to others nothing is done.
    """
    if link.dialect.name != "sqlite":
        return
    raw: Any = link.connection.driver_connection
    if getattr(raw, "isolation_level", None) is not None and not raw.in_transaction:
        link.exec_driver_sql("BEGIN")


class Outbox:
    """A table of messages that a relay moves into the queue, once their transaction is committed.

    ``metadata`` is the application's, where the table is to be one of its own; ``schema`` is
    PostgreSQL's. With ``notify`` a commit on PostgreSQL wakes the relay. Commits that notify
    come one after the other there, so who has very many of them says False, and the relay finds
    the rows within a second. An outbox holds nothing and may be shared by threads.
    """

    def __init__(
        self,
        name: str = NAME,
        *,
        metadata: MetaData | None = None,
        schema: str | None = None,
        notify: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.table = table_of(name, MetaData() if metadata is None else metadata, schema)
        self._clock = RealClock() if clock is None else clock
        self._insert = self.table.insert()
        told = func.pg_notify(name, "")
        self._notify = select(told) if notify else None
        # One statement that writes and tells costs one way to the server and back, not two.
        self._insert_one = self._insert.returning(told) if notify else self._insert

    def create(self, bind: Engine | Connection) -> None:
        """Make the table, if it is not there."""
        self.table.create(bind, checkfirst=True)

    # --- put ----------------------------------------------------------------------------------

    def put(
        self,
        connection: Transaction,
        topic: str,
        body: object,
        *,
        delay: Delay | None = None,
        due: Due | None = None,
        id: str | None = None,  # noqa: A002 - the word of the whole API
        priority: int = DEFAULT_PRIORITY,
        lease: Delay | None = None,
        max_attempts: int | None = None,
        expires: Due | None = None,
        ttl: Delay | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Write one message as a row of a transaction; return its id, made here unless given.

        The words are those of :meth:`dwell.Queue.put`. ``delay`` and ``ttl`` count from now, and
        not from the commit or from when a relay comes. Raises InvalidInput before a row is written.
        """
        row = row_of(
            _checked(topic, body),
            self._clock.now_ms(),
            delay=delay,
            due=due,
            id=id,
            priority=priority,
            lease=lease,
            max_attempts=max_attempts,
            expires=expires,
            ttl=ttl,
            key=key,
            headers=headers,
        )
        said = _said(topic, row)
        link = self._link(connection)
        link.execute(self._insert_one if _is_postgres(link) else self._insert, said)
        found: str = said["id"]
        return found

    def put_many(
        self,
        connection: Transaction,
        topic: str,
        bodies: Sequence[object],
        *,
        ids: Sequence[str] | None = None,
        delay: Delay | Sequence[Delay | None] | I64 | None = None,
        due: Due | Sequence[Due | None] | I64 | None = None,
        priority: int | Sequence[int] | I64 = DEFAULT_PRIORITY,
        lease: Delay | Sequence[Delay | None] | None = None,
        max_attempts: int | Sequence[int | None] | None = None,
        expires: Due | Sequence[Due | None] | I64 | None = None,
        ttl: Delay | Sequence[Delay | None] | None = None,
        key: str | Sequence[str | None] | None = None,
        headers: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None,
    ) -> list[str]:
        """Write many messages, all or none; return their ids.

        Every value but ``ids`` may be one for all, or a sequence of the bodies' length, as with
        :meth:`dwell.Queue.put_many`. Raises InvalidInput before a row is written, and BatchTooLarge
        above 10000 messages or 16 MiB.
        """
        puts = puts_of(
            values.topic(topic),
            bodies,
            self._clock.now_ms(),
            ids=ids,
            delay=delay,
            due=due,
            priority=priority,
            lease=lease,
            max_attempts=max_attempts,
            expires=expires,
            ttl=ttl,
            key=key,
            headers=headers,
        )
        rows = [_said(topic, row) for row in _rows(puts)]
        link = self._link(connection)
        if rows:
            link.execute(self._insert, rows)
            if self._notify is not None and _is_postgres(link):
                link.execute(self._notify)
        return [row["id"] for row in rows]

    def _link(self, given: object) -> Connection:
        """Return the connection of a transaction."""
        if isinstance(given, Connection):
            return given
        if isinstance(given, Session | scoped_session):
            # A session may have several databases, by table.
            return given.connection(bind_arguments={"clause": self.table})
        raise values.refusal(
            InvalidInput,
            "connection",
            given,
            "a Connection or a Session of SQLAlchemy, whose transaction the row belongs to; "
            "of one that is asynchronous: await it.run_sync(outbox.put, ...)",
        )


def _is_postgres(link: Connection) -> bool:
    return link.dialect.name == "postgresql"


def _checked(topic: object, body: object) -> bytes:
    values.topic(topic)
    return values.body(body)


def _rows(puts: Puts) -> Iterable[Row]:
    """Yield the rows of columns."""
    nothing = [b""] * len(puts)
    arrays = (puts.due_ms, puts.priority, puts.lease_ms, puts.max_attempts, puts.expires_ms)
    columns = [array.tolist() for array in arrays]
    extras, ids = puts.extras or nothing, puts.ids or nothing
    return map(Row, puts.bodies, *columns, extras, ids, [0] * len(puts))


def _said(topic: str, row: Row) -> dict[str, Any]:
    """Return a row of the table; raises InvalidInput for what PostgreSQL's text cannot hold."""
    extra = decode_extra(row.extra)
    id_ = row.id.decode() if row.id else uuid.uuid4().hex
    if _NUL in id_:
        raise values.refusal(InvalidId, "id", id_, "no NUL, which databases do not take")
    if extra.key is not None and _NUL in extra.key:
        raise values.refusal(InvalidKey, "key", extra.key, "no NUL, which databases do not take")
    return {
        "id": id_,
        "topic": topic,
        "body": row.body,
        "due_ms": row.due_ms,
        "priority": row.priority,
        "lease_ms": row.lease_ms,
        "max_attempts": row.max_attempts,
        "expires_ms": row.expires_ms,
        "key": extra.key,
        "headers": msgspec.json.encode(extra.headers).decode() if extra.headers else None,
    }
