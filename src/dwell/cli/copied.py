"""The report of a takeover that copied schedules, as people and programs read it."""

from typing import Any

from dwell.cli.texts import printable
from dwell.takeover.copier import Copied, Told

_STAY = ("refused", "other", "over")


def copied_object(report: Copied) -> dict[str, Any]:
    """Return the report as JSON has it."""
    return {
        "found": report.found,
        "put": dict(report.put),
        "others": report.others,
        "refused": report.refused,
        "over": report.over,
        "balances": report.balances,
        "is_whole": report.is_whole,
        "entries": [told._asdict() for told in report.told],
    }


def copied_text(report: Copied, *, dry_run: bool) -> str:
    """Return the report as lines: entries that stay, or with ``dry_run`` all, and the counts."""
    lines = [_line(told) for told in report.told if dry_run or told.result in _STAY]
    created, kept = report.put["created"], report.put["kept"]
    counts = [f"{created:,} to put" if dry_run else f"{created:,} put", f"{kept:,} put before"]
    for count, text in (
        (report.others, "whose names are those of others here"),
        (report.refused, "refused"),
        (report.over, "with nothing left to do"),
    ):
        if count:
            counts.append(f"{count:,} {text}")
    lines.append(f"there are {report.found:,}: {', '.join(counts)}")
    if not report.is_whole:
        lines.append("stopped before the end; run it again")
    if dry_run:
        lines.append("nothing was put")
    else:
        lines.append("the source is unchanged: switch it off there, or each is done twice")
    return "\n".join(lines)


def _line(told: Told) -> str:
    parts = (told.result, told.where, told.name, told.next_at, told.reason)
    return "  ".join(printable(part) for part in parts if part)
