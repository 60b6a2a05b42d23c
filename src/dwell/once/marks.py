"""Marks in a database of the user: one row a message, in the transaction of what it does.

Any driver of the DB-API 2.0 (PEP 249) works whose database knows ``ON CONFLICT DO NOTHING``:
SQLite since 3.24 and PostgreSQL since 9.5.
"""

import contextlib
import inspect
import logging
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

from dwell.errors import DwellError, InvalidInput
from dwell.message import Message

_log = logging.getLogger(__name__)

#: The table of the marks, if no other is named.
TABLE = "dwell_once"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
#: The placeholder of each style of parameters that takes them by their places.
_PLACES = {"qmark": "?", "format": "%s", "pyformat": "%s"}
#: The blocks that run, by the ``id()`` of their connections.
_blocks: dict[int, object] = {}
#: The condition of the mark that a block has put itself.
_OWN = "topic = {place} AND id = {place} AND done_ms = {place}"


class TransactionLost(DwellError):
    """The transaction of a block was rolled back in it: neither effect nor mark was committed."""


def create_table(connection: Any, table: str = TABLE) -> None:
    """Create the table of the marks if it is not there, and commit. Raises InvalidInput."""
    sql = (
        f"CREATE TABLE IF NOT EXISTS {_checked(table)} "
        "(topic TEXT NOT NULL, id TEXT NOT NULL, done_ms BIGINT NOT NULL, PRIMARY KEY (topic, id))"
    )
    _check_synchronous(connection)
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(sql)
    connection.commit()


@contextlib.contextmanager
def once(
    message: Message, connection: Any, *, key: str | None = None, table: str = TABLE
) -> Iterator[bool]:
    """Mark a message as done in a transaction that commits at the end of the block.

    Yields True for the first delivery, and False if an earlier one has committed; then the block
    should do nothing. An error in the block rolls the transaction back, with the mark, and is
    raised. Another delivery that is under way is waited for, as long as the database waits for its
    row. ``key`` is what may be done only once in a topic, such as an order; without it that is the
    id of the message, for ever. An id that the queue made is another one after a takeover or an
    import. A block must not commit: if it does, and fails then, it is done again. Raises
    InvalidInput for a connection that commits each statement, is asynchronous, in a pipeline or in
    another block, and TransactionLost if the block rolled its transaction back. If the database has
    aborted it because of an error that the block did not raise, the error of the driver is raised.
    """
    name, place = _checked(table), _place(connection)
    # The time is odd until the last change before the commit, so that a mark of a block that has
    # committed by itself differs from a mark committed here, when an interrupt comes.
    values = (message.topic, message.id if key is None else key, time.time_ns() // 1_000_000 | 1)
    with _alone(connection):
        marked = 0
        try:
            marked = _changed(
                connection,
                f"INSERT INTO {name} (topic, id, done_ms) VALUES ({place}, {place}, {place}) "
                "ON CONFLICT DO NOTHING",
                values,
            )
            yield marked == 1
            is_there = _finish if marked == 1 else _is_marked
            if not is_there(connection, name, place, values):
                raise TransactionLost(
                    f"{name}: the mark of {values[1]!r:.80} is gone, expected a block that does "
                    "not roll back its transaction"
                )
            # SQLite leaves a transaction open that cannot be committed: the next would fail by it.
            connection.commit()
        except BaseException:
            connection.rollback()
            if marked == 1:
                _unmark(connection, name, place, values)
            raise


@contextlib.contextmanager
def _alone(connection: Any) -> Iterator[None]:
    """Hold a connection; of two blocks in one transaction each would commit half of the other."""
    block = object()
    if _blocks.setdefault(id(connection), block) is not block:
        raise InvalidInput(
            "connection: another block of once has it now, expected one for each handler that "
            "runs at the same time"
        )
    try:
        yield
    finally:
        del _blocks[id(connection)]


def _unmark(connection: Any, table: str, place: str, values: tuple[Any, ...]) -> None:
    """Remove a mark that the block has committed before it failed, so that the rest is done.

    A finished mark stays: it was committed with the effect, and an interrupt came in that commit.
    Another delivery may have marked the message since, with another time.
    """
    where = _OWN.format(place=place)
    # Of a connection that is lost, what it did not commit is lost as well.
    with contextlib.suppress(Exception):
        if _changed(connection, f"DELETE FROM {table} WHERE {where}", values) == 1:
            _log.warning(
                "%s: a block committed its transaction and then failed, so what it has committed "
                "may be done again for %r",
                table,
                values[1],
            )
        connection.commit()


def _finish(connection: Any, table: str, place: str, values: tuple[Any, ...]) -> bool:
    """Make the time of the own mark even, and tell whether it is there, as :func:`_is_marked`."""
    sql = f"UPDATE {table} SET done_ms = done_ms + 1 WHERE {_OWN.format(place=place)}"
    return _changed(connection, sql, values) == 1


def _is_marked(connection: Any, table: str, place: str, values: tuple[Any, ...]) -> bool:
    """Tell whether a mark is there; raises in a transaction that the database has aborted.

    PostgreSQL answers the commit of such a transaction with a rollback, and drivers do not say so.
    """
    with contextlib.closing(connection.cursor()) as cursor:
        where = f"topic = {place} AND id = {place}"
        cursor.execute(f"SELECT 1 FROM {table} WHERE {where}", values[:2])
        return cursor.fetchone() is not None


def forget(connection: Any, older_than_ms: int, table: str = TABLE) -> int:
    """Remove the marks of messages older than an age, and commit; return how many.

    A message that is delivered after that is done again.
    """
    before_ms = time.time_ns() // 1_000_000 - older_than_ms
    place = _place(connection)
    sql = f"DELETE FROM {_checked(table)} WHERE done_ms < {place}"
    removed = _changed(connection, sql, (before_ms,))
    connection.commit()
    return removed


def _changed(connection: Any, sql: str, values: tuple[Any, ...]) -> int:
    """Return how many rows a statement has changed; raises InvalidInput if that is not known."""
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(sql, values)
        if cursor.rowcount < 0:
            raise InvalidInput(
                "connection: does not tell how many rows a statement has changed, "
                "expected one that does, outside a pipeline"
            )
        return int(cursor.rowcount)


def _checked(table: str) -> str:
    if not isinstance(table, str) or not _NAME.fullmatch(table):
        raise InvalidInput(f"table: got {table!r:.80}, expected the name of a table")
    return table


def _place(connection: Any) -> str:
    """Return the placeholder of a connection's driver; raises InvalidInput."""
    _check_synchronous(connection)
    driver = _driver(connection)
    alone = getattr(connection, "autocommit", False) is True
    if driver == "sqlite3" and connection.isolation_level is None:
        alone = True
    if alone:
        raise InvalidInput(
            "connection: commits each statement by itself, expected one with transactions"
        )
    style = getattr(sys.modules.get(driver), "paramstyle", None)
    if style not in _PLACES:
        raise InvalidInput(
            f"connection: got a {type(connection).__name__} of {driver!r:.80}, "
            f"expected one of a DB-API driver with the paramstyle {', '.join(_PLACES)}"
        )
    return _PLACES[style]


def _check_synchronous(connection: Any) -> None:
    if inspect.iscoroutinefunction(getattr(connection, "commit", None)):
        raise InvalidInput(
            f"connection: got the asynchronous {type(connection).__name__}, expected one whose "
            "calls are done when they return"
        )


def _driver(connection: Any) -> str:
    return type(connection).__module__.partition(".")[0]
