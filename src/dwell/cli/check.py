"""``dwell check``: read every record of an embedded store, and repair it where possible."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

import dwell
from dwell.cli.exits import require
from dwell.cli.output import Output
from dwell.cli.session import folder_of, require_store, session_of
from dwell.cli.texts import count_text, printable, size_text
from dwell.errors import InvalidUrl
from dwell.urls import shown

if TYPE_CHECKING:
    from dwell.store.embedded.check import Report


def check(
    context: typer.Context,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Repair it, and say exactly what could not be saved."),
    ] = False,
) -> None:
    """Read every record of the store, and report damage.

    The store must be a folder that no process has open.
    """
    from dwell.store.embedded.check import check as check_folder

    session = session_of(context)
    dwell.open(session.store)
    folder = folder_of(session.store)
    if folder is None:
        raise InvalidUrl(
            f"url: got {shown(session.store)!r:.80}, expected a folder: only those are checked"
        )
    require_store(folder)
    report = check_folder(folder, repair=repair)
    if session.out.json:
        session.out.object(_object(report))
    else:
        _print(session.out, report)
    require(report.ok)


def _object(report: "Report") -> dict[str, Any]:
    return {
        "ok": report.ok,
        "findings": report.findings,
        "messages": report.messages,
        "segments": report.segments,
        "bytes": report.bytes,
    }


def _print(out: Output, report: "Report") -> None:
    for finding in report.findings:
        out.line(printable(finding))
    if not out.quiet or not report.ok:
        states = ", ".join(f"{count:,} {state}" for state, count in report.messages.items())
        read = f"{count_text(report.segments, 'segment')}, {size_text(report.bytes)}"
        out.line(f"{'ok' if report.ok else 'damaged'}: {states} in {read}")
