"""Putting as many messages as there are lines: batch after batch, with a progress bar."""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, BinaryIO

import numpy as np
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dwell.cli import given
from dwell.cli.exits import refused_after, require
from dwell.cli.interrupts import held_back
from dwell.cli.lines import Reader, Row
from dwell.cli.output import Output
from dwell.cli.session import Session
from dwell.cli.texts import count_text
from dwell.clock import RealClock
from dwell.errors import IdExists, InvalidInput, TopicFull
from dwell.message import Result
from dwell.sync import SyncQueue
from dwell.wire.rows import Line

_ANSWERS = (Result.CREATED, Result.KEPT, Result.REPLACED, Result.DROPPED, Result.LEASED)

_TIMES = ("delay", "due", "delay_level")
_OTHERS = ("priority", "lease", "ttl", "key", "headers", "max_attempts")

_Counts = Counter[Result]


def put_lines(session: Session, topic: str, name: str, defaults: Line, on_conflict: str) -> None:
    """Put a message for each line of a file, and say how many were created, kept and replaced.

    That is said also when it ends early, since the batches before the end stay put.
    """
    counts: _Counts = Counter()
    with _opened(name) as source, session.queue(create=True) as queue:
        levels_ms = queue.settings(topic).delay_levels_ms
        reader = Reader(source, defaults, RealClock(), levels_ms)
        try:
            with refused_after(counts.total, "message"), _progress(session.out, source) as moved:
                for batch in reader.batches():
                    # What was put is to be counted, so an interrupt waits for the answer.
                    with held_back():
                        _put_batch(queue, topic, batch, on_conflict, counts)
                    moved(reader.size_bytes, counts.total())
        finally:
            _say(session.out, topic, counts)
    require(_are_in(counts))


def _are_in(counts: _Counts) -> bool:
    return not counts[Result.DROPPED] and not counts[Result.LEASED]


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == given.STDIN:
        yield given.stdin()
        return
    try:
        source = open(name, "rb")  # noqa: SIM115 - closed below, outside of this try
    except OSError as error:
        raise InvalidInput(f"many: cannot read {name!r}: {error.strerror}") from None
    with source:
        yield source


def _put_batch(
    queue: SyncQueue, topic: str, batch: list[Row], on_conflict: str, counts: _Counts
) -> None:
    """Put a batch in as few puts as its columns allow, in the order of its lines."""
    for _, rows in groupby(batch, key=lambda row: row.id is None):
        many = list(rows)
        try:
            answer = queue.put_many(
                topic, [row.body for row in many], on_conflict=on_conflict, **_columns(many)
            )
        except (IdExists, TopicFull) as error:
            raise type(error)(f"{error} (after {count_text(counts.total(), 'message')})") from None
        codes, numbers = np.unique(answer.results, return_counts=True)
        for code, number in zip(codes.tolist(), numbers.tolist(), strict=True):
            counts[Result(code)] += number


def _columns(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the columns of a put, without those in which no row says anything."""
    named = {name: [getattr(row, name) for row in rows] for name in _OTHERS}
    said = {name: column for name, column in named.items() if column.count(None) < len(rows)}
    if rows[0].id is not None:
        said["ids"] = [row.id for row in rows]
    return {**said, **_when(rows)}


def _when(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the column that says when the rows fall due: as they say it, if all say it so."""
    named = {name: [getattr(row, name) for row in rows] for name in _TIMES}
    for name, column in named.items():
        if None not in column:
            return {name: column}
    if all(column.count(None) == len(rows) for column in named.values()):
        return {}
    return {"due": [row.due_ms for row in rows]}


def _say(out: Output, topic: str, counts: _Counts) -> None:
    answer = {str(result): counts[result] for result in _ANSWERS}
    said = [f"{counts[r]:,} {r}" for r in _ANSWERS if counts[r] or r in _ANSWERS[:3]]
    out.confirm(
        {"topic": topic, "lines": counts.total(), **answer},
        ", ".join(said),
        is_as_asked=_are_in(counts),
    )


@contextmanager
def _progress(out: Output, source: BinaryIO) -> Iterator[Callable[[int, int], None]]:
    """Show how much of the source was read; yields what is to be told of each step."""
    bar = Progress(
        TextColumn("{task.fields[count]:,} messages"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=out.notes,
        transient=True,
        disable=not out.shows_progress,
    )
    with bar:
        task = bar.add_task("put", total=_size(source), count=0)
        yield lambda size, count: bar.update(task, completed=size, count=count)


def _size(source: BinaryIO) -> int | None:
    """Return how many bytes are to be read, or None where only the end will tell."""
    try:
        status = os.fstat(source.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
