"""Writing an export: a sweep of the store, page after page, into row groups of Parquet."""

import asyncio
import contextlib
import io
import os
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from dwell.batch.batch import Batch
from dwell.batch.events import EventPage, goes_on
from dwell.batch.stats import Stats
from dwell.batch.sweep import EVERY, Sweep, Wanted
from dwell.clock import Clock
from dwell.errors import AccessDenied, InvalidInput, StoreError
from dwell.given.values import shown
from dwell.message import MAX_BATCH_MESSAGES, TopicSettings
from dwell.queue.exports.manifest import (
    FORMAT,
    MANIFEST,
    Counts,
    File,
    Manifest,
    file_name,
    write,
)
from dwell.queue.messagecolumns import MESSAGE_COLUMNS
from dwell.store.base import Store
from dwell.tasks import finished, whole
from dwell.version import VERSION

P = ParamSpec("P")
T = TypeVar("T")

#: How many messages are read at a time.
_PAGE_ROWS = MAX_BATCH_MESSAGES
#: A row group is written when it has this many rows, or bytes, or a few more.
_GROUP_ROWS = 100_000
_GROUP_BYTES = 32 * 1024 * 1024
#: A page is cut into parts of at most this many bytes, or one message.
_PART_BYTES = 16 * 1024 * 1024
#: No row group has more rows or bytes, as Parquet counts them.
MOST_GROUP_ROWS = _GROUP_ROWS + _PAGE_ROWS
MOST_GROUP_BYTES = 2 * (_GROUP_BYTES + _PART_BYTES)
#: A file is complete when it has this many rows or bytes.
_FILE_ROWS = 1_000_000
_FILE_BYTES = 512 * 1024 * 1024

_OPTIONAL = {"lease_until", "died", "expires", "key", "headers", "last_error"}
#: Columns whose values repeat; the smallest and largest of others would not help a reader.
REPEATED = ["topic", "state", "key", "last_error"]
_SORTED = [name for name in MESSAGE_COLUMNS if name not in ("id", "body", "headers", "last_error")]

SCHEMA = pa.schema(
    [
        pa.field(name, column(Batch.empty(receipts=False)).type, nullable=name in _OPTIONAL)
        for name, column in MESSAGE_COLUMNS.items()
    ]
)


def record_batch(batch: Batch) -> pa.RecordBatch:
    """Return messages as rows of an export."""
    arrays = [column(batch) for column in MESSAGE_COLUMNS.values()]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _parts_of(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in parts, as a page may hold any number of bytes."""
    if rows.nbytes <= _PART_BYTES or len(rows) == 1:
        yield rows
        return
    half = len(rows) // 2
    yield from _parts_of(rows.slice(0, half))
    yield from _parts_of(rows.slice(half))


class _Summed(io.RawIOBase):
    """A new file that counts its bytes and their CRC-32 as they are written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file: IO[bytes] = open(path, "xb")  # noqa: SIM115 - closed by close
        self.size = self.crc = 0

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def write(self, data: Any) -> int:
        """Write bytes."""
        self._file.write(data)
        self.crc = zlib.crc32(data, self.crc)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.size

    def close(self) -> None:
        """Write what is left to the disk, and close the file."""
        if not self.closed:
            with self._file:
                self._file.flush()
                os.fsync(self._file.fileno())
        super().close()


class _Writer:
    """The files of an export, written in turn. Its methods block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: _Summed | None = None
        self._parquet: Any = None
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self.files: list[File] = []
        self.counts: dict[str, Counts] = {}
        self.rows = 0

    def add(self, batch: Batch) -> None:
        """Add messages; most of them are written later."""
        for rows in _parts_of(record_batch(batch)):
            self._add(rows)

    def _add(self, rows: pa.RecordBatch) -> None:
        self._count(rows)
        self._waiting.append(rows)
        self.rows += len(rows)
        if (
            sum(map(len, self._waiting)) >= _GROUP_ROWS
            or sum(one.nbytes for one in self._waiting) >= _GROUP_BYTES
        ):
            self._write_group()

    def _count(self, rows: pa.RecordBatch) -> None:
        """Count the messages by topic and state."""
        pairs = pa.Table.from_batches([rows.select(["topic", "state"])])
        for one in pairs.group_by(["topic", "state"]).aggregate([([], "count_all")]).to_pylist():
            counts = self.counts.setdefault(one["topic"], Counts())
            setattr(counts, one["state"], getattr(counts, one["state"]) + one["count_all"])

    def _write_group(self) -> None:
        if self._file is None:
            self._file = _Summed(self._folder / file_name(len(self.files)))
            self._parquet = pq.ParquetWriter(
                self._file,
                SCHEMA,
                compression="zstd",
                use_dictionary=REPEATED,
                write_statistics=_SORTED,
            )
        table = pa.Table.from_batches(self._waiting, SCHEMA)
        self._waiting = []
        self._parquet.write_table(table, row_group_size=max(len(table), 1))
        self._rows += len(table)
        if self._rows >= _FILE_ROWS or self._file.size >= _FILE_BYTES:
            self._end_file()

    def _end_file(self) -> None:
        if self._file is not None:
            self._parquet.close()
            self._file.close()
            name = file_name(len(self.files))
            self.files.append(File(name, self._file.size, self._rows, self._file.crc))
            self._file = self._parquet = None
            self._rows = 0

    def end(self) -> None:
        """Write what is left; an export without messages has a file that says the columns."""
        if self._waiting or not self.rows:
            self._write_group()
        self._end_file()

    def discard(self) -> None:
        """Remove the files of an export that does not come to its end."""
        names = [file.name for file in self.files]
        if names:
            names = [MANIFEST, f"{MANIFEST}.new", *names]
        if self._file is not None:
            names.append(file_name(len(self.files)))
            for one in filter(None, (self._parquet, self._file)):
                with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                    one.close()
        for name in names:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()


def make_folder(folder: Path) -> None:
    """Make the folder of a new export, or take an empty one; raises InvalidInput."""
    try:
        # As a store's, for what is in it.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = sorted(os.listdir(folder))
    except OSError as error:
        raise InvalidInput(f"to: cannot make {shown(str(folder))}: {error.strerror}") from None
    if found:
        raise InvalidInput(
            f"to: got {shown(str(folder))} with {shown(found[0])} in it, expected a new folder or "
            "an empty one"
        )


class _Source(Protocol):
    """The part of a queue that an export needs."""

    @property
    def clock(self) -> Clock: ...
    @property
    def store(self) -> Store: ...
    async def sweep(
        self, wanted: Wanted = EVERY, *, start: int = 0, limit: int = 1000
    ) -> Sweep: ...
    async def settings(self, topic: str) -> TopicSettings: ...
    async def stats(self) -> Stats: ...
    async def events(self, position: int = 0, limit: int = 1000) -> EventPage: ...


async def blocking(function: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
    """Run a function in a thread, to its end even if the caller is cancelled."""
    return await finished(whole(asyncio.to_thread(function, *args, **words)))


async def export(
    queue: _Source, folder: Path, topics: Collection[str], tell: Callable[[int], None] | None
) -> Manifest:
    """Write an export of an open queue (see :meth:`dwell.Queue.export`)."""
    await blocking(make_folder, folder)
    writer, began_ms = _Writer(folder), queue.clock.now_ms()
    try:
        began = await _end(queue)
        await _sweep(queue, writer, tuple(topics), tell)
        await _check_same(queue, began)
        known = topics or {*(await queue.stats()).topics, *writer.counts}
        settings = await _settings(queue, known)
        manifest = Manifest(
            dwell_export=FORMAT,
            version=VERSION,
            store=f"{queue.store.number:08x}",
            history=(await _end(queue)).history,
            began_ms=began_ms,
            ended_ms=queue.clock.now_ms(),
            topics=dict(sorted(writer.counts.items())),
            settings=settings,
            files=tuple(writer.files),
        )
        await blocking(write, folder, manifest)
    except BaseException:
        writer.discard()
        raise
    return manifest


async def _sweep(
    queue: _Source, writer: _Writer, topics: tuple[str, ...], tell: Callable[[int], None] | None
) -> None:
    """Write each message that a sweep gives; a place is read once, so is a message."""
    wanted = msgspec.structs.replace(EVERY, topics=topics)
    place: int | None = 0
    while place is not None:
        sweep = await queue.sweep(wanted, start=place, limit=_PAGE_ROWS)
        if len(sweep.messages):
            await blocking(writer.add, sweep.messages)
            if tell is not None:
                tell(writer.rows)
        place = sweep.next_place
    await blocking(writer.end)


class _End(NamedTuple):
    """The end of the events, and the name of the history until there, empty if it is not known."""

    position: int
    history: str


async def _end(queue: _Source) -> _End:
    try:
        end = (await queue.events(0, 1)).end_position
        return _End(end, (await queue.events(max(end - 1, 0), 1)).history)
    except AccessDenied:
        return _End(0, "")


async def _check_same(queue: _Source, began: _End) -> None:
    """Raise StoreError for a store that has lost what has happened until the beginning.

    In another one, or an older copy, messages have other places.
    """
    if not began.history:
        return
    page = await queue.events(began.position, 1)
    if not goes_on(began.position, began.history, page.since, page.end_position):
        raise StoreError(
            "export: the store was put back or replaced while it was read, and messages may be "
            "missing; expected one store: export it again"
        )


async def _settings(queue: _Source, topics: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of topics that differ from the defaults."""
    plain, found = msgspec.to_builtins(TopicSettings()), {}
    for topic in sorted(topics):
        given = msgspec.to_builtins(await queue.settings(topic))
        own = {name: value for name, value in given.items() if value != plain[name]}
        if own:
            found[topic] = own
    return found
