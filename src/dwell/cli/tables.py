"""Putting the rows of a table in a file, with a progress bar and a file for rejected rows."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from dwell.cli.bulk import are_in, bar, counted
from dwell.cli.exits import refused_after, require
from dwell.cli.files import opened
from dwell.cli.interrupts import held_back
from dwell.cli.output import Output
from dwell.cli.session import Session
from dwell.errors import InvalidInput
from dwell.message import Result

_OnBad = Callable[[int, str], None]
#: Longer than the line of any rejected row.
_LINE_BYTES = 64 * 1024


def put_file(
    session: Session, topic: str, name: str, rejected: str | None, on_conflict: str
) -> None:
    """Put a message for each row, and say how many were created, kept, replaced and rejected.

    The counts are printed even if it ends early, since the rows before the end stay put.
    """
    counts: Counter[Result] = Counter()
    bad: Counter[None] = Counter()
    with contextlib.ExitStack() as stack:
        parts, rows = stack.enter_context(opened(name))
        refuse = _refuse if rejected is None else stack.enter_context(written(rejected, bad))
        queue = stack.enter_context(session.queue(create=True))
        stack.callback(_say, session.out, topic, counts, bad)
        stack.enter_context(refused_after(counts.total, "message"))
        shown = stack.enter_context(bar(session.out, "{task.completed:,} rows"))
        task = shown.add_task("put", total=rows)
        for table, numbers, faults in parts:

            def on_bad(row: int, reason: str, numbers: Sequence[int] = numbers) -> None:
                refuse(numbers[row], reason)

            # An interrupt waits for the answer, so that the counts are complete.
            with held_back():
                for number, reason in faults:
                    refuse(number, reason)
                queue.put_table(
                    topic, table, on_conflict=on_conflict, on_bad=on_bad, on_put=counts.update
                )
            shown.advance(task, len(numbers) + len(faults))
    require(are_in(counts) and not bad)


def _refuse(row: int, reason: str) -> None:
    raise InvalidInput(f"row {row}: {reason}")


def _say(out: Output, topic: str, counts: Counter[Result], bad: Counter[None]) -> None:
    answer, said = counted(counts)
    said += [f"{bad.total():,} rejected"] if bad else []
    out.confirm(
        {"topic": topic, "rows": counts.total() + bad.total(), **answer, "rejected": bad.total()},
        ", ".join(said),
        is_as_asked=are_in(counts) and not bad,
    )


def _has_rejected(name: str) -> bool:
    """Tell whether a file has rejected rows, or nothing."""
    if not os.path.isfile(name):
        return False
    with open(name, "rb") as file:
        line = file.readline(_LINE_BYTES)
    try:
        return not line or set(json.loads(line)) == {"row", "reason"}
    except (ValueError, TypeError, RecursionError):
        return False


@contextlib.contextmanager
def written(
    name: str, bad: Counter[None] | None = None, *, may_replace: bool = False
) -> Iterator[_OnBad]:
    """Yield a writer of rejected rows to a new file, which counts them in ``bad``.

    Raises InvalidInput if the file exists. With ``may_replace`` one of an earlier run is replaced.
    """
    bad = Counter() if bad is None else bad
    try:
        is_old = may_replace and _has_rejected(name)
        file = open(name, "w" if is_old else "x", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InvalidInput(f"rejected: cannot write {name!r:.200}: {error.strerror}") from None
    with file:

        def on_bad(row: int, reason: str) -> None:
            bad[None] += 1
            print(json.dumps({"row": row, "reason": reason}), file=file)

        yield on_bad
