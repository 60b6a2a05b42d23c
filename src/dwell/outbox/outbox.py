"""An outbox as applications use it: puts that are rows of a transaction."""

import uuid
from collections.abc import Sequence
from typing import Any, TypeAlias, Unpack

import msgspec
from sqlalchemy import Connection, Engine, MetaData, event, func, select
from sqlalchemy.orm import Session, scoped_session

from dwell.batch.puts import PUT_ARRAYS, Row
from dwell.clock import Clock, RealClock
from dwell.errors import InvalidId, InvalidInput, InvalidKey
from dwell.given import values
from dwell.given.options import OutboxManyOptions, OutboxOptions, refuse_unknown
from dwell.given.rows import row_of
from dwell.message import decode_extra
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
        **options: Unpack[OutboxOptions],
    ) -> str:
        """Write one message as a row of a transaction; return its id, made here unless given.

        The words are those of :meth:`dwell.Queue.put`. ``delay`` and ``ttl`` count from now, and
        not from the commit or from when a relay comes. Raises InvalidInput before a row is written.
        """
        try:
            row = row_of(_checked(topic, body), self._clock.now_ms(), **options)
        except TypeError:
            refuse_unknown(options, OutboxOptions, "put")
            raise
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
        **options: Unpack[OutboxManyOptions],
    ) -> list[str]:
        """Write many messages, all or none; return their ids.

        Every value but ``ids`` may be one for all, or a sequence of the bodies' length, as with
        :meth:`dwell.Queue.put_many`. Raises InvalidInput before a row is written, and BatchTooLarge
        above 10000 messages or 16 MiB.
        """
        try:
            puts = puts_of(values.topic(topic), bodies, self._clock.now_ms(), **options)
        except TypeError:
            refuse_unknown(options, OutboxManyOptions, "put_many")
            raise
        rows = [_said(topic, row) for row in puts.rows()]
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
        **{name: getattr(row, name) for name in PUT_ARRAYS},
        "key": extra.key,
        "headers": msgspec.json.encode(extra.headers).decode() if extra.headers else None,
    }
