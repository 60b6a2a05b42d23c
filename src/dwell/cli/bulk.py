"""Putting a message for each line of a file: batch after batch, with a progress bar."""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import BinaryIO

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dwell.batch.puts import Row
from dwell.cli import given
from dwell.cli.exits import refused_after, require
from dwell.cli.interrupts import held_back
from dwell.cli.lines import Reader
from dwell.cli.output import Output
from dwell.cli.session import Session
from dwell.cli.texts import count_text
from dwell.clock import RealClock
from dwell.errors import DwellError, IdExists, InvalidInput, TopicFull
from dwell.message import Result
from dwell.threads.sync import SyncQueue
from dwell.wire.rows import Line

_ANSWERS = (Result.CREATED, Result.KEPT, Result.REPLACED, Result.DROPPED, Result.LEASED)

_Counts = Counter[Result]


def put_lines(session: Session, topic: str, name: str, defaults: Line, on_conflict: str) -> None:
    """Put a message for each line of a file, and print how many were created, kept and replaced.

    The counts are printed even if it ends early, since the batches before the end stay put.
    """
    counts: _Counts = Counter()
    with _opened(name) as source, session.queue(create=True) as queue:
        levels_ms = queue.settings(topic).delay_levels_ms
        reader = Reader(source, defaults, RealClock(), levels_ms)
        try:
            with refused_after(counts.total, "message"), _progress(session.out, source) as moved:
                for batch in reader.batches():
                    # An interrupt waits for the answer, so that the counts are complete.
                    with held_back():
                        _put_batch(queue, topic, batch, reader.now_ms, on_conflict, counts)
                    moved(reader.size_bytes, counts.total())
        finally:
            _say(session.out, topic, counts)
    require(are_in(counts))


def are_in(counts: _Counts) -> bool:
    """Tell whether all messages are in the queue as they were asked for."""
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
    queue: SyncQueue, topic: str, batch: list[Row], now_ms: int, on_conflict: str, counts: _Counts
) -> None:
    """Put a batch in as few puts as its ids allow, in the order of its lines."""
    for _, rows in groupby(batch, key=lambda row: row.id == b""):
        try:
            answer = queue.put_rows(topic, list(rows), on_conflict, now_ms)
        except DwellError as error:
            counts.update(error.put_before)
            if not isinstance(error, IdExists | TopicFull):
                raise
            raise type(error)(f"{error} (after {count_text(counts.total(), 'message')})") from None
        counts.update(put.result for put in answer)


def counted(counts: _Counts) -> tuple[dict[str, int], list[str]]:
    """Return the counts of results as programs read them, and as people do."""
    answer = {str(result): counts[result] for result in _ANSWERS}
    said = [f"{counts[r]:,} {r}" for r in _ANSWERS if counts[r] or r in _ANSWERS[:3]]
    return answer, said


def _say(out: Output, topic: str, counts: _Counts) -> None:
    answer, said = counted(counts)
    out.confirm(
        {"topic": topic, "lines": counts.total(), **answer},
        ", ".join(said),
        is_as_asked=are_in(counts),
    )


def bar(out: Output, text: str) -> Progress:
    """Return a progress bar that begins with a text, for people at a terminal."""
    return Progress(
        TextColumn(text),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=out.notes,
        transient=True,
        disable=not out.shows_progress,
    )


@contextmanager
def _progress(out: Output, source: BinaryIO) -> Iterator[Callable[[int, int], None]]:
    """Show how much of the source was read; yields a function to call after each step."""
    with bar(out, "{task.fields[count]:,} messages") as shown:
        task = shown.add_task("put", total=_size(source), count=0)
        yield lambda size, count: shown.update(task, completed=size, count=count)


def _size(source: BinaryIO) -> int | None:
    """Return how many bytes are to be read, or None if that is not known."""
    try:
        status = os.fstat(source.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
