"""A database that is only read: PostgreSQL or SQLite, in one snapshot."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from dwell.errors import DwellError, InvalidUrl, ServerUnreachable
from dwell.urls import shown

_PATIENCE_S = 10
#: What follows the kind of a source in an address.
FORMS = "postgresql://HOST/DATABASE, sqlite:///FILE or sqlite:////FILE from the root"


class Database(Protocol):
    """An open database, all of it as it is at one moment."""

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; raises DwellError."""

    def close(self) -> None:
        """Close it."""


def database_of(url: str) -> Database:
    """Open the database of an address; raises InvalidUrl or ServerUnreachable."""
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        return _Sqlite(url)
    if scheme in ("postgresql", "postgres"):
        try:
            from dwell.takeover.postgres import Postgres
        except ImportError as error:
            raise InvalidUrl(
                f"url: {shown(url)!r:.80} needs pip install 'dwell[outbox]': {error}"
            ) from None
        return Postgres(url)
    raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected {FORMS}")


class _Sqlite:
    def __init__(self, url: str) -> None:
        path = Path(unquote(urlsplit(url).path.removeprefix("/")))
        if not path.is_file():
            raise InvalidUrl(f"from: got {str(path)!r:.80}, expected a file of SQLite: {FORMS}")
        self._path = path
        # Batches are read in threads, one after the other.
        self._link = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro",
            uri=True,
            timeout=_PATIENCE_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self._link.text_factory = lambda data: data.decode(errors="surrogateescape")
        with self._understood():
            self._link.execute("BEGIN")

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        with self._understood():
            yield from self._link.execute(query)

    def close(self) -> None:
        self._link.close()

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ServerUnreachable(f"{self._path}: {error}") from None


@contextlib.contextmanager
def tables_of(database: Database, query: str, kind: str) -> Iterator[None]:
    """Check that a database has the tables and columns of a query, and close it at the end.

    Raises InvalidUrl if it has not.
    """
    with contextlib.closing(database):
        try:
            list(database.rows(f"{query} LIMIT 0"))
        except DwellError as error:
            raise InvalidUrl(f"from: expected the tables of {kind}: {error}") from None
        yield
