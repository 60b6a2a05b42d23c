"""The page: what a run came to, as the marked part of docs/reliability.md."""

import datetime
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tools.states_docs import table
from tools.survive.books import Row
from tools.survive.flips import OUTCOMES, Flips
from tools.survive.rules import RULES

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_PART = re.compile(r"(<!-- made: survive -->\n).*?(<!-- /made -->)", re.DOTALL)
_HEADS = [
    *("store", "reached", "what fails", "runs", "answered puts", "lost", "early"),
    *("expired but taken", "doubled", "unexplained", "delivery goes on after: median, worst"),
]
#: The rules, as the table has room for.
_SHORT = dict(zip(RULES, "rlcdsa", strict=True))


def rows_table(rows: Sequence[Row]) -> list[str]:
    """Return the table of the scenarios, a line each."""
    return table(_HEADS, (_cells(row) for row in rows))


def _cells(row: Row) -> list[str]:
    doubled = ", ".join(
        f"{row.doubled[rule]:,} {_SHORT[rule]}" for rule in RULES if row.doubled[rule]
    )
    seconds = f"{row.median_s:.2f} s, {max(row.seconds):.2f} s" if row.seconds else "-"
    numbers = [row.runs, row.puts, row.lost, row.early, row.expired]
    unexplained = row.doubled["unexplained"]
    cells = [row.store, row.over, row.failure, *(f"{number:,}" for number in numbers)]
    return [*cells, doubled or "0", f"{unexplained:,}", seconds]


def flips_table(many: Sequence[Flips]) -> list[str]:
    """Return the table of the flipped bits."""
    rows = (
        [flips.kind, f"{flips.outcomes.total():,}", *(f"{flips.outcomes[o]:,}" for o in OUTCOMES)]
        for flips in many
    )
    return table(["file", "flips", *OUTCOMES], rows)


def made(rows: Sequence[Row], many: Sequence[Flips], minutes: float) -> str:
    """Return the marked part of the page."""
    today = datetime.datetime.now(datetime.UTC).date()
    runs, puts = sum(row.runs for row in rows), sum(row.puts for row in rows)
    rules = "; ".join(f"{short}: {rule}" for rule, short in _SHORT.items())
    said = (
        f"{today}, {minutes:.0f} minutes on a machine with {os.cpu_count()} cores that others used "
        f"too: {runs:,} failures, {puts:,} answered puts, {_total(many):,} flipped bits."
    )
    legend = f"Doubled, by the rule that explains it: {rules}."
    lines = [said, "", *rows_table(rows), "", legend, "", *flips_table(many)]
    return "\n".join(lines)


def _total(many: Sequence[Flips]) -> int:
    return sum(flips.outcomes.total() for flips in many)


def write(text: str) -> None:
    """Put the marked part into the page."""
    page = PAGE.read_text()
    PAGE.write_text(_PART.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page))
