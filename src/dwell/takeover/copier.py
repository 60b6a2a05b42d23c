"""The copier: puts the schedules and messages that a source describes, each once.

A source is only read. An entry is put under the name that it has every time, where that is free: so
a copier that was killed is run again, and two at once put nothing twice.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from dwell.batch.puts import Puts, Row
from dwell.calendar.epoch import from_ms
from dwell.calendar.zones import zone_of
from dwell.errors import InvalidInput, InvalidSchedule, StoreDamaged, TopicFull
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import MAX_BATCH_BYTES, Message, Result, decode_extra
from dwell.queue import Queue
from dwell.queue.schedules.changing import first_after, row_for
from dwell.queue.schedules.schedule import TOPIC, Schedule, schedule_of
from dwell.queue.schedules.words import made
from dwell.slices import places
from dwell.takeover.entries import Entry, Source

#: How many entries are read at a time, and how many are listed in a report.
_STEP, _MOST_TOLD = 500, 1_000
#: How many bytes of bodies are read at a time, about.
_MOST_BYTES = MAX_BATCH_BYTES // 2
#: Messages are compared with each other, each with its body, so many at a time.
_LOOK = 100
_EXTRA_BYTES = 1_024


class Told(NamedTuple):
    """What came of one entry; ``next_at`` is its next moment, in its own zone."""

    result: str
    where: str
    name: str
    topic: str
    next_at: str
    reason: str


@dataclass
class Copied:
    """The entries that were found, by result.

    ``put`` counts ``created``, and ``kept`` if an earlier copy had put the entry. ``others`` are
    not put, because the queue has something else of that name; ``refused`` are not put for a
    reason; ``over`` have no moment left. ``told`` lists the first 1,000.
    """

    found: int = 0
    put: Counter[str] = field(default_factory=Counter)
    others: int = 0
    refused: int = 0
    over: int = 0
    told: list[Told] = field(default_factory=list)
    is_whole: bool = False

    @property
    def moved(self) -> int:
        """How many entries are in the queue."""
        return self.put.total()

    @property
    def balances(self) -> bool:
        """Tell whether each entry has a result."""
        return self.found == self.moved + self.others + self.refused + self.over


class _Made(NamedTuple):
    """An entry as a message; ``schedule`` is None for a single message."""

    entry: Entry
    topic: str
    row: Row
    schedule: Schedule | None
    next_at: str


class Copier:
    """Copies the entries of a source into an open queue; ``tell`` is called after each batch."""

    def __init__(self, source: Source, queue: Queue, tell: Callable[[Copied], None]) -> None:
        self._source = source
        self._queue = queue
        self._tell = tell
        self._is_stopping = False
        self.report = Copied()

    def stop(self) -> None:
        """Stop copying; work in progress is finished."""
        self._is_stopping = True

    async def run(self, *, dry_run: bool = False) -> Copied:
        """Copy all entries; raises DwellError. With ``dry_run`` nothing is put."""
        report = self.report
        with contextlib.closing(self._source.entries()) as entries:  # type: ignore[type-var]
            while not self._is_stopping:
                # A source may wait for a database.
                some = await asyncio.to_thread(_read, entries)
                if not some:
                    report.is_whole = True
                    break
                report.found += len(some)
                await self._copy(some, dry_run=dry_run)
                self._tell(report)
        return report

    async def _copy(self, entries: Sequence[Entry], *, dry_run: bool) -> None:
        groups: dict[str, list[_Made]] = {}
        told, order = self.report.told, {entry.where: at for at, entry in enumerate(entries)}
        before = len(told)
        for entry in entries:
            if (one := await self._made_of(entry)) is not None:
                groups.setdefault(one.topic, []).append(one)
        for topic, group in groups.items():
            sizes = [len(one.row.body) + _EXTRA_BYTES for one in group]
            for place in places(sizes, _MOST_BYTES):
                if dry_run:
                    await self._compare(topic, group[place], free="created")
                else:
                    await self._put(topic, group[place])
        told[before:] = sorted(told[before:], key=lambda one: order[one.where])

    async def _made_of(self, entry: Entry) -> _Made | None:
        """Return an entry as a message; None if it is refused or over."""
        if entry.reason:
            self._note("over" if entry.is_over else "refused", entry, reason=entry.reason)
            return None
        try:
            if entry.due_ms is None:
                return await self._schedule_of(entry)
            return self._message_of(entry, entry.due_ms)
        except InvalidInput as error:
            self._note("refused", entry, reason=str(error))
            return None

    async def _schedule_of(self, entry: Entry) -> _Made | None:
        now_ms = self._queue.clock.now_ms()
        schedule = made(entry.name, entry.topic, entry.body, entry.words, now_ms)
        since_ms = now_ms if entry.since_ms is None else min(entry.since_ms, now_ms)
        if schedule.end_ms is not None and schedule.end_ms <= since_ms:
            self._note("over", entry, reason=f"ended at {_text(schedule.end_ms, schedule.zone)}")
            return None
        next_at = _text(await first_after(schedule, since_ms), schedule.zone)
        schedule = replace(schedule, paused=entry.is_paused)
        row = await row_for(schedule, now_ms, since_ms)
        return _Made(entry, TOPIC, row, schedule, "paused" if entry.is_paused else next_at)

    def _message_of(self, entry: Entry, due_ms: int) -> _Made:
        words: dict[str, Any] = {**entry.words, "due": due_ms, "id": entry.name}
        row = row_of(values.body(entry.body), self._queue.clock.now_ms(), **words)
        return _Made(entry, values.topic(entry.topic), row, None, _text(due_ms, "UTC"))

    async def _put(self, topic: str, group: Sequence[_Made]) -> None:
        """Put messages of one topic; a refused batch is put by halves, to find its reason."""
        try:
            puts = Puts.of_rows(topic, [one.row for one in group])
            results = (await self._queue.put_puts(puts)).results.tolist()
        except (InvalidInput, TopicFull) as error:
            half = len(group) // 2
            if half:
                await self._put(topic, group[:half])
                await self._put(topic, group[half:])
            else:
                self._note("refused", group[0].entry, reason=str(error))
            return
        kept = [one for one, result in zip(group, results, strict=True) if result == Result.KEPT]
        for one, result in zip(group, results, strict=True):
            if result == Result.DROPPED:
                reason = f"topic: {topic} is full and drops what comes"
                self._note("refused", one.entry, reason=reason)
            elif result != Result.KEPT:
                self._note(str(Result(result)), one.entry, one.next_at)
        # A name that is taken and has no message is that of one that was put and is done.
        await self._compare(topic, kept, free="kept")

    async def _compare(self, topic: str, group: Sequence[_Made], *, free: str) -> None:
        """Compare messages with those of their names; the result is ``free`` where none is."""
        for first in range(0, len(group), _LOOK):
            part = group[first : first + _LOOK]
            found = await self._queue.get(topic, [one.entry.name for one in part])
            for one, message in zip(part, found, strict=True):
                if message is None:
                    self._note(free, one.entry, one.next_at)
                elif _is_same(one, message):
                    self._note("kept", one.entry, one.next_at)
                else:
                    reason = f"{topic} has something else of that name"
                    self._note("other", one.entry, one.next_at, reason)

    def _note(self, result: str, entry: Entry, next_at: str = "", reason: str = "") -> None:
        report = self.report
        if result == "refused":
            report.refused += 1
        elif result == "over":
            report.over += 1
        elif result == "other":
            report.others += 1
        else:
            report.put[result] += 1
        if len(report.told) < _MOST_TOLD:
            told = Told(result, entry.where, entry.name, entry.topic, next_at, reason)
            report.told.append(told)


def _read(entries: Iterator[Entry]) -> list[Entry]:
    """Return the next entries of a source, as many as fit in memory together."""
    some: list[Entry] = []
    total_bytes = 0
    for entry in islice(entries, _STEP):
        some.append(entry)
        total_bytes += len(entry.body)
        if total_bytes >= _MOST_BYTES:
            break
    return some


def _is_same(one: _Made, found: Message) -> bool:
    """Tell whether a message was put for an entry; it may have been paused or taken since."""
    if one.schedule is None:
        extra = decode_extra(one.row.extra)
        is_its_due = found.attempt > 0 or found.due_ms == one.row.due_ms
        said = (one.row.body, extra.key, extra.headers)
        return is_its_due and said == (found.body, found.key, found.headers)
    new = one.schedule
    try:
        old = schedule_of(found)
    except (InvalidSchedule, StoreDamaged):
        return False
    start_ms = new.start_ms if one.entry.is_anchored else old.start_ms
    plain = replace(old, last_ms=None, waits_ms=None, ran_ms=())
    return new == replace(plain, paused=new.paused, start_ms=start_ms)


def _text(ms: int, zone: str) -> str:
    """Return a moment as people read it, in a zone."""
    return from_ms(ms).astimezone(zone_of(zone)).isoformat(timespec="seconds")
