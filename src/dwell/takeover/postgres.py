"""A PostgreSQL that is only read, in one snapshot."""

import contextlib
from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg

from dwell.errors import ServerUnreachable
from dwell.relay.outbox.conninfo import parameters_of

_PATIENCE_S = 10
#: How many rows are sent at a time.
_STEP = 20


def options_for(url: str) -> dict[str, Any]:
    """Return how to connect to an address; raises InvalidUrl."""
    return {"connect_timeout": _PATIENCE_S, "client_encoding": "utf8", **parameters_of(url)}


@contextlib.contextmanager
def understood(where: str) -> Iterator[None]:
    """Raise ServerUnreachable for an error of the database; ``where`` is its name for people."""
    try:
        yield
    except (psycopg.Error, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ServerUnreachable(f"{where}: {reason}") from None


class Postgres:
    """A connection with a transaction that reads."""

    def __init__(self, url: str) -> None:
        options = options_for(url)
        self._where = f"PostgreSQL at {options.get('host', 'localhost')}"
        self._cursors = count()
        with understood(self._where):
            self._link = psycopg.connect(**options)
            self._link.read_only = True
            self._link.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            # Times are read as text.
            self._link.execute("SET LOCAL datestyle TO 'ISO'")

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; raises ServerUnreachable."""
        name = f"dwell_{next(self._cursors)}"
        with understood(self._where), self._link.cursor(name=name) as cursor:
            cursor.itersize = _STEP
            yield from cursor.execute(query)

    def close(self) -> None:
        """Close it."""
        self._link.close()
