"""Putting the rows of a table in a file, with a progress bar and a file for rejected rows."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from dwell.cli.bulk import are_in, bar, counted
from dwell.cli.exits import require
from dwell.cli.files import opened
from dwell.cli.output import Output
from dwell.cli.session import Session
from dwell.errors import InvalidInput


def put_file(
    session: Session, topic: str, name: str, rejected: str | None, on_conflict: str
) -> None:
    """Put a message for each row, and say how many were created, kept, replaced and rejected."""
    reader, rows = opened(name)
    bad: Counter[None] = Counter()
    with contextlib.ExitStack() as stack:
        on_bad = None if rejected is None else stack.enter_context(_written(rejected, bad))
        read = stack.enter_context(_progress(session.out, reader, rows))
        queue = stack.enter_context(session.queue(create=True))
        counts = queue.put_table(topic, read, on_conflict=on_conflict, on_bad=on_bad)
    is_all = are_in(counts) and not bad
    answer, said = counted(counts)
    said += [f"{bad.total():,} rejected"] if bad else []
    session.out.confirm(
        {"topic": topic, "rows": counts.total() + bad.total(), **answer, "rejected": bad.total()},
        ", ".join(said),
        is_as_asked=is_all,
    )
    require(is_all)


@contextlib.contextmanager
def _written(name: str, bad: Counter[None]) -> Iterator[Callable[[int, str], None]]:
    """Yield a writer of rejected rows to a new file; raises InvalidInput if the file exists."""
    try:
        file = open(name, "x", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InvalidInput(f"rejected: cannot write {name!r:.200}: {error.strerror}") from None
    with file:

        def on_bad(row: int, reason: str) -> None:
            bad[None] += 1
            print(json.dumps({"row": row, "reason": reason}), file=file)

        yield on_bad


@contextlib.contextmanager
def _progress(out: Output, reader: Any, rows: int | None) -> Iterator[Any]:
    """Give a reader that shows how much of it was read."""
    import pyarrow as pa

    with bar(out, "{task.completed:,} rows") as shown:
        task = shown.add_task("put", total=rows)

        def batches() -> Iterator[Any]:
            for batch in reader:
                yield batch
                shown.advance(task, len(batch))

        yield pa.RecordBatchReader.from_batches(reader.schema, batches())
