"""An outbox in a file of SQLite, which is polled often, because commits send no notices.

Rows are not locked until the queue has them: that would lock the file, and an application would
wait for the queue. Two relays may put the same rows; their ids make that harmless.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dwell.relay.contract import BrokerUnreachable
from dwell.relay.outbox.address import Address
from dwell.relay.outbox.entry import MOST_BODY_BYTES, MOST_HEADERS_CHARS, MOST_TEXT_CHARS
from dwell.relay.outbox.source import PassedOver, Place

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: How long to wait for another writer, and between looks at the file's version, seconds.
_BUSY_S = 5.0
_LOOK_S = 0.02

_SELECT = """
SELECT seq, {id}, {topic}, CASE WHEN typeof(body) IN ('text', 'blob') THEN {body} ELSE body END,
    {due}, priority, lease_ms, max_attempts, expires_ms, {key}, {headers}
FROM {table}
WHERE (topic IS NULL OR {topic} NOT IN ({{topics}})) AND seq > ?
ORDER BY seq LIMIT ?
"""
# A number may be another row's by now, for example in a restored table, and ids belong to a topic.
_DELETE = """
DELETE FROM {table} WHERE seq = ? AND {id} IS ?
    AND {topic} IS ? AND {due} IS ?
"""


def _cut(column: str, most_bytes: int = MOST_TEXT_CHARS) -> str:
    """Return SQL for the first bytes of a column, which may hold anything here.

    The functions of SQLite end a text at its first NUL, and change what is invalid; its ``substr``
    of an empty value is NULL.
    """
    whole = f"CAST({column} AS BLOB)"
    first = f"substr({whole}, 1, {most_bytes})"
    return f"CASE WHEN length({whole}) > {most_bytes} THEN {first} ELSE {whole} END"


# A due that is not a number is compared as bytes, too.
_DUE = f"CASE WHEN typeof(due_ms) IN ('text', 'blob') THEN {_cut('due_ms')} ELSE due_ms END"


class SqliteRows:
    """The table of an address, in a thread of its own."""

    def __init__(self, address: Address) -> None:
        self._path = Path(address.database)
        words = {name: _cut(name) for name in ("id", "topic", "key")} | {
            "table": f'"{address.table}"',
            "body": _cut("body", MOST_BODY_BYTES),
            "headers": _cut("headers", MOST_HEADERS_CHARS),
            "due": _DUE,
        }
        self._select, self._delete = _SELECT.format(**words), _DELETE.format(**words)
        self._thread = ThreadPoolExecutor(1, "dwell-outbox")
        self._link: sqlite3.Connection | None = None
        #: Device and inode of the open file.
        self._file = (0, 0)
        self._version = -1

    async def select(
        self, limit: int, most_bytes: int, but: PassedOver
    ) -> Sequence[tuple[Any, ...]]:
        """Return the first rows."""
        return await self._done(partial(self._select_now, limit, most_bytes, but))

    async def delete(self, places: Sequence[Place]) -> None:
        """Delete rows in a transaction."""
        await self._done(partial(self._delete_now, places))

    async def changed(self, seconds: float) -> bool:
        """Read the file's version, which changes with each commit by others."""
        return await self._done(partial(self._changed_now, seconds))

    async def close(self) -> None:
        """Close the file."""
        await self._done(self._close_now)
        self._thread.shutdown(wait=False)

    async def _done(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._told, work)

    # --- in the thread --------------------------------------------------------------------------

    def _told(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.Error as error:
            self._close_now()
            raise BrokerUnreachable(f"sqlite: {self._path}: {error}") from None

    def _opened(self) -> sqlite3.Connection:
        """Return the connection to the file at the path; a replaced file is opened again."""
        file = _identity(self._path)
        if self._link is not None and file != self._file:
            _log.warning("sqlite: %s: the file was replaced, and is opened again", self._path)
            self._close_now()
        if self._link is None:
            # A missing file is not created: the application does that.
            self._file = file
            uri = f"{self._path.absolute().as_uri()}?mode=rw"
            self._link = sqlite3.connect(
                uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._link.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
        return self._link

    def _select_now(self, limit: int, most_bytes: int, but: PassedOver) -> list[tuple[Any, ...]]:
        link = self._opened()
        # Read before the rows, so that rows written during the read show as a change.
        self._version = _version(link)
        select = self._select.format(topics=", ".join("?" * len(but.topics)))
        with contextlib.closing(link.execute(select, (*but.topics, but.to_seq, limit))) as cursor:
            return list(_until_full(cursor, most_bytes))

    def _delete_now(self, places: Sequence[Place]) -> None:
        link = self._opened()
        link.execute("BEGIN IMMEDIATE")
        link.executemany(self._delete, places)
        link.execute("COMMIT")

    def _changed_now(self, seconds: float) -> bool:
        # A look costs less than the way to this thread, so the thread sleeps between looks.
        end_s = time.monotonic() + seconds
        while _version(self._opened()) == self._version:
            if time.monotonic() > end_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def _close_now(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link, self._version = None, -1


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _version(link: sqlite3.Connection) -> int:
    found: tuple[int] = link.execute("PRAGMA data_version").fetchone()
    return found[0]


def _until_full(rows: Iterator[tuple[Any, ...]], most_bytes: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows up to the size that may be read at once; the first in any case."""
    size = 0
    for row in rows:
        size += sum(len(one) for one in row if isinstance(one, bytes | str))
        yield row
        if size > most_bytes:
            return
