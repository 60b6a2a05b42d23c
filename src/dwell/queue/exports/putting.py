"""Putting the messages of an export: a row group at a time, topic by topic, and all counted."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dwell.batch.blobs import moved_mark
from dwell.batch.puts import PUT_ARRAYS, PutAnswer, Puts
from dwell.batch.results import counts_of
from dwell.clock import Clock
from dwell.errors import InvalidInput
from dwell.given import columns, values
from dwell.message import (
    EXPIRED,
    I64,
    MAX_ATTEMPTS,
    MAX_BATCH_MESSAGES,
    MAX_DELAY_MS,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_LEASE_MS,
    MAX_PRIORITY,
    QUEUE_ID_MARK,
    REASON_HEADER,
    U64,
    Message,
    State,
    TopicSettings,
)
from dwell.queue.exports.manifest import Manifest, check_files, read
from dwell.queue.exports.report import Imported, Tally
from dwell.queue.exports.writing import SCHEMA, blocking
from dwell.queue.messagecolumns import blobs_of
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.queue.schedules.schedule import put_again
from dwell.queue.tables import OnBad, RowsPutter
from dwell.store.base import Store
from dwell.tasks import finished, whole

#: What becomes of dead messages: they stay dead, are put like the others, or are left out.
DEAD = ("keep", "put", "skip")
#: How many topics are put into at a time.
_TOPICS = 16
#: A message that is put dead has expired so long ago, whatever the clocks of two machines say.
_EXPIRED_MS = 60_000


class _Target(Protocol):
    """What an import needs of a queue."""

    @property
    def clock(self) -> Clock: ...
    @property
    def store(self) -> Store: ...
    async def put_puts(self, puts: Puts, on_conflict: str = "keep") -> PutAnswer: ...
    async def named(self, numbers: U64) -> list[tuple[str, str] | None]: ...
    async def settings(self, topic: str) -> TopicSettings: ...
    async def configure(self, topic: str, **changes: Any) -> TopicSettings: ...


class Importer:
    """Puts an export into a queue (see :meth:`dwell.Queue.put_export`)."""

    def __init__(
        self,
        queue: _Target,
        folder: Path,
        dead: str,
        on_bad: OnBad | None,
        tell: Callable[[Imported], None] | None,
    ) -> None:
        if dead not in DEAD:
            raise values.refusal(InvalidInput, "dead", dead, f"one of {', '.join(DEAD)}")
        self._queue, self._folder, self._dead = queue, folder, dead
        self._on_bad, self._tell = on_bad, tell
        self._report = Imported()

    async def run(self, *, settings: bool) -> Imported:
        """Put all messages; return what became of them."""
        manifest = await blocking(_checked, self._folder)
        self._report.rows = manifest.rows
        self._say()
        if settings:
            await self._settle(manifest)
        is_own = int(manifest.store, 16) == self._queue.store.number
        mark, first = moved_mark(int(manifest.store, 16)), 0
        for file in manifest.files:
            groups = _groups(self._folder / file.name)
            while (rows := await blocking(next, groups, None)) is not None:
                await self._put(rows, first, mark, is_own=is_own)
                first += len(rows)
        self._report.is_whole = True
        return self._report

    def _say(self) -> None:
        if self._tell is not None:
            self._tell(self._report)

    async def _settle(self, manifest: Manifest) -> None:
        """Give topics without settings of their own those of the export."""
        plain = TopicSettings()
        for topic, given in manifest.settings.items():
            own = msgspec.structs.asdict(msgspec.convert(given, TopicSettings))
            if await self._queue.settings(topic) == plain:
                await self._queue.configure(topic, **{name: own[name] for name in given})
                self._report.settings.append(topic)

    async def _put(self, rows: pa.Table, first: int, mark: str, *, is_own: bool) -> None:
        """Put the rows of a row group, several topics at a time."""
        parts = _by_topic(rows, first)
        for at in range(0, len(parts), _TOPICS):
            some = [self._put_topic(*part, mark, is_own) for part in parts[at : at + _TOPICS]]
            answers = await asyncio.gather(*some, return_exceptions=True)
            self._say()
            for answer in answers:
                if answer is not None:
                    raise answer

    async def _put_topic(
        self, topic: str, rows: pa.Table, numbers: I64, mark: str, is_own: bool
    ) -> None:
        tally = self._report.topics.setdefault(topic, Tally())
        values.topic(topic)
        # They are read when something became of them: the counts balance after an error, too.
        if self._dead == "skip":
            is_left = pc.equal(rows.column("state"), _DEAD_WORD).to_numpy()
            _count(tally, "skipped", int(is_left.sum()))
            rows, numbers = rows.filter(pa.array(~is_left)), numbers[~is_left]
        if is_own:
            is_there = await self._are_there(topic, rows)
            _count(tally, "kept", int(is_there.sum()))
            rows, numbers = rows.filter(pa.array(~is_there)), numbers[~is_there]

        async def put(puts: Puts) -> PutAnswer:
            answer = await self._queue.put_puts(puts)
            for result, count in counts_of(answer.results).items():
                _count(tally, str(result), count)
            return answer

        def on_bad(row: int, reason: str) -> None:
            if self._on_bad is None:
                raise InvalidInput(f"row {numbers[row]}: {reason}")
            self._on_bad(int(numbers[row]), reason)
            _count(tally, "rejected", 1)

        # To be cancelled waits for the answer of each put, so that the counts are complete.
        putter = RowsPutter(
            partial(self._puts_of, topic, mark), lambda puts: finished(whole(put(puts))), on_bad
        )
        await putter.put(rows, 0)

    async def _are_there(self, topic: str, rows: pa.Table) -> np.ndarray:
        """Tell which messages are still in the store that they were exported from."""
        found = list[bool]()
        for at in range(0, len(rows), MAX_BATCH_MESSAGES):
            some = rows.slice(at, MAX_BATCH_MESSAGES)
            numbers: U64 = some.column("number").to_numpy().view(np.uint64)
            named, ids = await self._queue.named(numbers), some.column("id").to_pylist()
            found += [one == (topic, id_) for one, id_ in zip(named, ids, strict=True)]
        return np.array(found, bool)

    async def _puts_of(self, topic: str, mark: str, rows: pa.Table) -> Puts:
        now_ms = self._queue.clock.now_ms()
        return puts_of_rows(topic, rows, now_ms, mark, keeps_dead=self._dead == "keep")


def _count(tally: Tally, name: str, count: int) -> None:
    tally.read += count
    setattr(tally, name, getattr(tally, name) + count)


def _checked(folder: Path) -> Manifest:
    """Return the manifest of an export whose files are whole; raises InvalidInput."""
    manifest = read(folder)
    check_files(folder, manifest)
    for file in manifest.files:
        with _readable(folder / file.name) as opened:
            if opened.metadata.num_rows != file.rows:
                got = f"{opened.metadata.num_rows} rows"
                raise InvalidInput(f"export: got {file.name} of {got}, expected {file.rows}")
            if not opened.schema_arrow.equals(SCHEMA):
                got = str(opened.schema_arrow.names)[:200]
                raise InvalidInput(f"export: got {file.name} with {got}, expected {SCHEMA.names}")
    return manifest


def _readable(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"export: cannot read {path.name}: {error!s:.300}") from None


def _groups(path: Path) -> Iterator[pa.Table]:
    """Yield the row groups of a file."""
    with _readable(path) as opened:
        for at in range(opened.num_row_groups):
            try:
                yield opened.read_row_group(at).combine_chunks()
            except (pa.ArrowException, OSError) as error:
                raise InvalidInput(f"export: cannot read {path.name}: {error!s:.300}") from None


def _by_topic(rows: pa.Table, first: int) -> list[tuple[str, pa.Table, I64]]:
    """Return the rows of each topic in their order, and their numbers in the export."""
    topics = rows.column("topic").combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    rows = rows.take(pa.array(order)).combine_chunks()
    sizes = np.bincount(codes, minlength=len(topics.dictionary))
    starts = np.cumsum(sizes) - sizes
    each = zip(topics.dictionary.to_pylist(), starts.tolist(), sizes.tolist(), strict=True)
    return [
        (topic, rows.slice(start, size), order[start : start + size] + first)
        for topic, start, size in each
    ]


# --- rows as puts -----------------------------------------------------------------------------

#: The largest number that a message may have in each of these columns.
_MOST = {"priority": MAX_PRIORITY, "lease_ms": MAX_LEASE_MS, "max_attempts": MAX_ATTEMPTS}
_DEAD_WORD = State.DEAD.name.lower()
_STATES = {state.name.lower(): state for state in State}


def puts_of_rows(topic: str, rows: pa.Table, now_ms: int, mark: str, *, keeps_dead: bool) -> Puts:
    """Return rows of an export as the columns of one put; raises InvalidInput.

    An id that a queue made becomes one of the caller's, which begins with ``mark``. With
    ``keeps_dead`` dead messages are put as expired, so that no taker gets them.
    """
    size = len(rows)
    bodies = columns.bodies(blobs_of(_array(rows, "body")))
    due_ms, expires_ms = _millis(rows, "due", now_ms), _millis(rows, "expires", now_ms)
    if topic == SCHEDULES:
        again = [put_again(message) for message in map(_message, rows.to_pylist())]
        bodies, due_ms = [body for body, _ in again], np.array([due for _, due in again], np.int64)
    is_dead = pc.equal(rows.column("state"), _DEAD_WORD).to_numpy() & keeps_dead
    died_ms = np.clip(_millis(rows, "died", now_ms), 1, max(now_ms - _EXPIRED_MS, 1))
    numbers = {
        name: _within(_numbers(rows, name), 0, most, name).astype(PUT_ARRAYS[name])
        for name, most in _MOST.items()
    }
    return Puts(
        topic=topic,
        bodies=bodies,
        due_ms=due_ms,
        expires_ms=np.where(is_dead, died_ms, expires_ms),
        ids=columns.own_ids(blobs_of(_ids(rows, mark)), size),
        extras=_extras(rows, is_dead),
        **numbers,
    )


def _array(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _numbers(rows: pa.Table, name: str) -> I64:
    found: I64 = rows.column(name).to_numpy()
    return found


def _within(many: I64, low: int, high: int, name: str) -> I64:
    if len(many) and not low <= many.min() <= many.max() <= high:
        got = int(many[(many < low) | (many > high)][0])
        raise InvalidInput(f"{name}: got {got}, expected {low} to {high}")
    return many


def _millis(rows: pa.Table, name: str, now_ms: int) -> I64:
    """Return moments as epoch milliseconds, 0 for none."""
    micros = rows.column(name).cast(pa.int64()).fill_null(0).to_numpy()
    return _within(micros // 1000, 0, now_ms + MAX_DELAY_MS, name)


def _ids(rows: pa.Table, mark: str) -> pa.Array:
    ids = _array(rows, "id")
    is_made = pc.starts_with(ids, QUEUE_ID_MARK)
    if not pc.any(is_made).as_py():
        return ids
    moved = pc.binary_join_element_wise(mark, pc.utf8_slice_codeunits(ids, 1), "")
    return pc.if_else(is_made, moved, ids)


def _extras(rows: pa.Table, is_dead: np.ndarray) -> Any:
    """Return key and headers; a message that is put dead says in a header why it died."""
    keys, headers = rows.column("key"), rows.column("headers")
    errors = rows.column("last_error")
    is_said = pc.and_(pa.array(is_dead), pc.not_equal(errors, EXPIRED))
    reasons = pc.if_else(is_said, errors, None)
    is_plain = keys.null_count == headers.null_count == reasons.null_count == len(rows)
    if is_plain:
        return None
    pairs = zip(headers.to_pylist(), reasons.to_pylist(), strict=True)
    many = [_with_reason(dict(one or ()), reason) for one, reason in pairs]
    return columns.extras(keys.to_pylist(), many, len(rows))


def _with_reason(headers: dict[str, str], reason: str | None) -> dict[str, str]:
    """Return headers with a reason, where they have room for it."""
    if reason is None:
        return headers
    more = {**headers, REASON_HEADER: reason}
    size = sum(len(part.encode()) for pair in more.items() for part in pair)
    return more if len(more) <= MAX_HEADERS and size <= MAX_HEADERS_BYTES else headers


def _message(row: Mapping[str, Any]) -> Message:
    """Return a row of a schedule as the message that it was."""
    return Message(
        topic=row["topic"],
        id=row["id"],
        body=row["body"],
        due_ms=round(row["due"].timestamp() * 1000),
        state=_STATES[row["state"]],
        priority=row["priority"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        lease_ms=row["lease_ms"],
        key=row["key"],
        headers=dict(row["headers"] or ()),
        last_error=row["last_error"],
    )
