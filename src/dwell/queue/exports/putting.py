"""Putting the messages of an export: a row group at a time, topic by topic, and all counted."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dwell.batch.blobs import MOVED, moved_mark
from dwell.batch.puts import PUT_ARRAYS, PutAnswer, Puts
from dwell.batch.results import counts_of
from dwell.clock import Clock
from dwell.errors import AccessDenied, DwellError, InvalidInput
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
    Result,
    State,
    TopicSettings,
)
from dwell.queue.exports.doubles import NO_DOUBLES
from dwell.queue.exports.manifest import known_settings
from dwell.queue.exports.reading import by_topic, checked, groups_of, moved_ids
from dwell.queue.exports.report import Imported, Tally
from dwell.queue.exports.writing import blocking
from dwell.queue.messagecolumns import blobs_of
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.queue.schedules.schedule import put_again
from dwell.queue.tables import OnBad, RowsPutter
from dwell.slices import slices
from dwell.store.base import Store
from dwell.store.partly import results_before
from dwell.tasks import finished, whole

#: What becomes of dead messages: they stay dead, are put like the others, or are left out.
DEAD = ("keep", "put", "skip")
#: How many topics are put into at a time.
_TOPICS = 16
#: Numbers of messages are below 2^63, and those of Redis have at most so many digits.
_MOST_NUMBER, _MOST_DIGITS = 2**63 - 1, 14
#: How many messages are looked at together, and the column of their rows among those of a topic.
_LOOK, _ROW = 100, "row"
#: A message that is put dead has expired so long ago, whatever the clocks of two machines say.
_EXPIRED_MS = 60_000


class _Target(Protocol):
    """The methods of a queue that an import calls."""

    @property
    def clock(self) -> Clock: ...
    @property
    def store(self) -> Store: ...
    async def put_puts(self, puts: Puts, on_conflict: str = "keep") -> PutAnswer: ...
    async def get(self, topic: str, ids: Sequence[str]) -> list[Message | None]: ...
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
        self._mark, self._is_own, self._may_ask = "", False, True
        self._rivals: frozenset[tuple[str, str]] = frozenset()
        self._doubles = NO_DOUBLES

    async def run(self, *, settings: bool) -> Imported:
        """Put all messages; return what became of them."""
        manifest, self._rivals, self._doubles = await blocking(checked, self._folder)
        wanted, self._report.strange_settings = known_settings(manifest) if settings else ({}, [])
        self._report.rows = manifest.rows
        self._say()
        await self._settle(wanted)
        number, first = int(manifest.store, 16), 0
        self._is_own, self._mark = number == self._queue.store.number, moved_mark(number)
        for file in manifest.files:
            groups = groups_of(self._folder / file.name)
            while (rows := await blocking(next, groups, None)) is not None:
                await self._put(rows, first)
                first += len(rows)
        self._report.is_whole = True
        return self._report

    def _say(self) -> None:
        if self._tell is not None:
            self._tell(self._report)

    async def _settle(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Give topics without settings of their own those of the export."""
        plain = TopicSettings()
        for topic, given in settings.items():
            if given and await self._queue.settings(topic) == plain:
                await self._queue.configure(topic, **given)
                self._report.settings.append(topic)

    async def _put(self, rows: pa.Table, first: int) -> None:
        """Put the rows of a row group, several topics at a time."""
        parts = by_topic(rows, first)
        for at in range(0, len(parts), _TOPICS):
            some = [self._put_topic(*part) for part in parts[at : at + _TOPICS]]
            answers = await asyncio.gather(*some, return_exceptions=True)
            self._say()
            for answer in answers:
                if answer is not None:
                    raise answer

    async def _put_topic(self, topic: str, rows: pa.Table, numbers: I64) -> None:
        self._report.topics.setdefault(topic, Tally())
        count = partial(self._report.count, topic)

        def on_bad(row: int, reason: str) -> None:
            if self._on_bad is None:
                raise InvalidInput(f"row {numbers[row]}: {reason}")
            self._on_bad(int(numbers[row]), reason)
            count("rejected", 1)

        part, hidden = rows, list[int]()

        async def puts_of(some: pa.Table) -> Puts:
            nonlocal part
            part = some
            return await self._puts_of(topic, some)

        async def put(puts: Puts) -> PutAnswer:
            try:
                answer = await self._queue.put_puts(puts)
            except InvalidInput:
                # Its parts are put again, and then counted.
                raise
            except DwellError as error:
                _count_results(count, results_before(error))
                raise
            is_hidden = await self._are_hidden(topic, part, answer)
            _count_results(count, counts_of(answer.results[~is_hidden]))
            hidden.extend(part.column(_ROW).filter(pa.array(is_hidden)).to_pylist())
            return answer

        # They are read when something became of them: the counts balance after an error, too.
        if self._dead == "skip":
            is_left = pc.equal(rows.column("state"), _DEAD_WORD).to_numpy()
            count("skipped", int(is_left.sum()))
            rows, numbers = rows.filter(pa.array(~is_left)), numbers[~is_left]
        if (reason := _refused_topic(topic)) is not None:
            for row in range(len(rows)):
                on_bad(row, reason)
            return
        is_there = await self._are_there(topic, rows)
        count("kept", int(is_there.sum()))
        rows, numbers = rows.filter(pa.array(~is_there)), numbers[~is_there]
        if self._rivals:
            ids = rows.column("id").to_pylist()
            is_bad = np.array([(topic, id_) in self._rivals for id_ in ids], bool)
            for row in np.flatnonzero(is_bad).tolist():
                on_bad(row, f"id: got {ids[row]!r:.300}, expected none that another one becomes")
            rows, numbers = rows.filter(pa.array(~is_bad)), numbers[~is_bad]
        rows = rows.append_column(_ROW, pa.array(np.arange(len(rows))))
        # To be cancelled waits for the answer of each put, so that the counts are complete.
        putter = RowsPutter(puts_of, lambda puts: finished(whole(put(puts))), on_bad)
        await putter.put(rows, 0)
        # An InvalidInput within a put would put its parts again.
        for row in hidden:
            got = rows.column("id")[row].as_py()
            allowed = "one that no earlier row has with another key"
            on_bad(row, f"id: got {got!r:.300}, expected {allowed}")

    async def _are_hidden(self, topic: str, rows: pa.Table, answer: PutAnswer) -> np.ndarray:
        """Tell which messages are not there, as an earlier one of the export has their id."""
        if self._queue.store.parts_ids:
            return np.zeros(len(rows), bool)
        is_hidden: np.ndarray = (answer.results == Result.KEPT) & self._doubles.later(rows)
        places = np.flatnonzero(is_hidden).tolist()
        keys = rows.column("key").to_pylist() if places else []
        for some in slices(places, _LOOK):
            try:
                found = await self._queue.get(topic, [answer.ids[at] for at in some])
            except AccessDenied:
                break
            for at, message in zip(some, found, strict=True):
                is_hidden[at] = message is None or message.key != keys[at]
        return is_hidden

    async def _are_there(self, topic: str, rows: pa.Table) -> np.ndarray:
        """Tell which messages are still in the store, under the ids that it made for them.

        Numbers are never used twice, so it does not matter which number the store had: it may have
        been resharded, or restored, or the messages may come back from another one.
        """
        ids = rows.column("id").to_pylist()
        asked = [
            self._asked(topic, id_, number)
            for id_, number in zip(ids, rows.column("number").to_pylist(), strict=True)
        ]
        found = np.zeros(len(rows), bool)
        places = [at for at, one in enumerate(asked) if one is not None]
        for some in slices(places if self._may_ask else [], MAX_BATCH_MESSAGES):
            pairs = [one for at in some if (one := asked[at]) is not None]
            try:
                named = await self._queue.named(np.array([of for _, of in pairs], np.uint64))
            except AccessDenied:
                if self._is_own:
                    raise
                # Most likely it is the export of a stranger, and a token to put is enough.
                self._may_ask = False
                break
            found[some] = [one == (topic, id_) for one, (id_, _) in zip(named, pairs, strict=True)]
        return found

    def _asked(self, topic: str, id_: str, number: int) -> tuple[str, int] | None:
        """Return under which id and number a message may be in the store; None if put tells it."""
        if id_.startswith(QUEUE_ID_MARK):
            return id_, number & _MOST_NUMBER
        moved = MOVED.fullmatch(id_)
        if moved is not None and (topic, id_) not in self._rivals:
            return f"{QUEUE_ID_MARK}{moved['rest']}", _number_in(moved["rest"])
        return (id_, number & _MOST_NUMBER) if self._is_own else None

    async def _puts_of(self, topic: str, rows: pa.Table) -> Puts:
        now_ms = self._queue.clock.now_ms()
        return puts_of_rows(topic, rows, now_ms, self._mark, keeps_dead=self._dead == "keep")


def _refused_topic(topic: str) -> str | None:
    try:
        values.topic(topic)
    except InvalidInput as error:
        return str(error)
    return None


def _count_results(count: Callable[[str, int], None], results: Mapping[Result, int]) -> None:
    for result, number in results.items():
        count(str(result), number)


def _number_in(made: str) -> int:
    """Return the number of a message whose id the queue made, from that id without its mark.

    It comes last: behind the row of a folder, or the 8 digits of a store in memory.
    """
    *_, last = made.split("-")
    digits = last[8:] if len(last) > _MOST_DIGITS else last
    return int(digits, 16) & _MOST_NUMBER


# --- rows as puts -----------------------------------------------------------------------------

#: The largest number that a message may have in each of these columns.
_MOST = {"priority": MAX_PRIORITY, "lease_ms": MAX_LEASE_MS, "max_attempts": MAX_ATTEMPTS}
_DEAD_WORD = State.DEAD.name.lower()
_STATES = {state.name.lower(): state for state in State if state is not State.GONE}
#: Columns that put no schedule again, and whose moments may be too far away for Python.
_MOMENTS = ["lease_until", "died", "expires"]


def puts_of_rows(topic: str, rows: pa.Table, now_ms: int, mark: str, *, keeps_dead: bool) -> Puts:
    """Return rows of an export as the columns of one put; raises InvalidInput.

    An id that a queue made becomes one of the caller's, which begins with ``mark``. With
    ``keeps_dead`` dead messages are put as expired, so that no taker gets them.
    """
    size = len(rows)
    bodies = columns.bodies(blobs_of(_array(rows, "body")))
    due_ms, expires_ms = _millis(rows, "due", now_ms), _millis(rows, "expires", now_ms)
    _check_states(rows)
    if topic == SCHEDULES:
        again = [
            put_again(message) for message in map(_message, rows.drop_columns(_MOMENTS).to_pylist())
        ]
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
        ids=columns.own_ids(blobs_of(moved_ids(_array(rows, "id"), mark)), size),
        extras=_extras(rows, is_dead),
        **numbers,
    )


def _array(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _check_states(rows: pa.Table) -> None:
    for state in pc.unique(rows.column("state")).to_pylist():
        if state not in _STATES:
            raise values.refusal(InvalidInput, "state", state, f"one of {', '.join(_STATES)}")


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
