"""Putting the rows of a table in a file, with a progress bar and a file for rejected rows."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dwell.cli.exits import require
from dwell.cli.files import opened
from dwell.cli.output import Output
from dwell.cli.session import Session
from dwell.errors import InvalidInput
from dwell.message import Result

_ANSWERS = (Result.CREATED, Result.KEPT, Result.REPLACED, Result.DROPPED, Result.LEASED)


def put_file(
    session: Session, topic: str, name: str, rejected: str | None, on_conflict: str
) -> None:
    """Put a message for each row, and say how many were created, kept, replaced and rejected."""
    reader, rows = opened(name)
    bad: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        on_bad = None if rejected is None else stack.enter_context(_written(rejected, bad))
        read = stack.enter_context(_progress(session.out, reader, rows))
        queue = stack.enter_context(session.queue(create=True))
        counts = queue.put_table(topic, read, on_conflict=on_conflict, on_bad=on_bad)
    is_all = not (counts[Result.DROPPED] or counts[Result.LEASED] or bad.total())
    answer = {str(result): counts[result] for result in _ANSWERS}
    said = [f"{counts[r]:,} {r}" for r in _ANSWERS if counts[r] or r in _ANSWERS[:3]]
    said += [f"{bad.total():,} rejected"] if bad else []
    session.out.confirm(
        {"topic": topic, "rows": counts.total() + bad.total(), **answer, "rejected": bad.total()},
        ", ".join(said),
        is_as_asked=is_all,
    )
    require(is_all)


@contextlib.contextmanager
def _written(name: str, bad: Counter[str]) -> Iterator[Callable[[int, str], None]]:
    """Yield a writer of rejected rows to a new file; raises InvalidInput if the file exists."""
    try:
        file = open(name, "x", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InvalidInput(f"rejected: cannot write {name!r:.200}: {error.strerror}") from None
    with file:

        def on_bad(row: int, reason: str) -> None:
            bad["row"] += 1
            print(json.dumps({"row": row, "reason": reason}), file=file)

        yield on_bad


@contextlib.contextmanager
def _progress(out: Output, reader: Any, rows: int | None) -> Iterator[Any]:
    """Give a reader that shows how much of it was read."""
    import pyarrow as pa

    bar = Progress(
        TextColumn("{task.completed:,} rows"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=out.notes,
        transient=True,
        disable=not out.shows_progress,
    )
    with bar:
        task = bar.add_task("put", total=rows)

        def batches() -> Iterator[Any]:
            for batch in reader:
                yield batch
                bar.advance(task, len(batch))

        yield pa.RecordBatchReader.from_batches(reader.schema, batches())
