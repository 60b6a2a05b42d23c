"""``dwell takeover``: moves the delayed messages of another system into the store."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from dwell.cli.copied import copied_object, copied_text
from dwell.cli.exits import require
from dwell.cli.session import session_of
from dwell.errors import DwellError, InvalidInput
from dwell.takeover.contract import Counts
from dwell.takeover.copier import Copied
from dwell.takeover.process import run
from dwell.takeover.takeover import Report


def takeover(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="beanstalk://HOST:PORT?tube=NAME, amqp://HOST/VHOST?queue=NAME, "
            "celery+redis://HOST:PORT/DB?queue=NAME, the same with rq+, bullmq+ or asynq+redis, "
            "procrastinate+postgresql://HOST/DATABASE, or another store; or schedules to copy: "
            "crontab:FILE, eventbridge:FILE, bullmq-schedulers+ or rq-cron+redis://HOST:PORT/DB, "
            "beat+postgresql://HOST/DATABASE or beat+sqlite:///FILE, the same with apscheduler+.",
            show_default=False,
            envvar="DWELL_FROM",
        ),
    ],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Of another store, only this topic.")
    ] = None,
    into: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="One topic that all messages go to.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only count what is there, or list what would be copied."),
    ] = False,
) -> None:
    """Move waiting messages of another queue into the store, while both run, and count them.

    Delayed messages keep their due. Leased messages stay with their workers, and dead messages stay
    in the source. Repeat an interrupted run: it recognises by their ids the messages that it had
    put. Schedules are copied, and stay in the source: switch them off there.
    """
    session = session_of(context)
    moved = 0
    with session.out.notes.status("moving") as status, _only_errors():

        def tell(report: Report | Copied) -> None:
            nonlocal moved
            moved = report.moved
            status.update(f"{moved:,} moved")

        try:
            report = run(
                session.store, source, topics=topic or (), into=into, dry_run=dry_run, tell=tell
            )
        except InvalidInput:
            raise
        except DwellError:
            session.out.note(f"{moved:,} moved before this; run it again")
            raise
    if isinstance(report, Copied):
        session.out.confirm(copied_object(report), copied_text(report, dry_run=dry_run))
        stay = report.others + report.refused
        require(dry_run or (report.balances and report.is_whole and not stay))
        return
    session.out.confirm(_object(report), _text(report, dry_run=dry_run))
    stay = report.others + report.refused
    require(dry_run or (report.balances and report.is_whole and not stay))


@contextmanager
def _only_errors() -> Iterator[None]:
    """Silence the store's warnings: the takeover itself tells that the store is away."""
    logs = [logging.getLogger(name) for name in ("dwell.queue", "dwell.store")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _object(report: Report) -> dict[str, Any]:
    return {
        "moved": report.moved,
        "put": dict(report.put),
        "elsewhere": report.elsewhere,
        "others": report.others,
        "refused": report.refused,
        "reason": report.reason,
        "held_back": report.held_back,
        "by_reason": dict(report.by_reason),
        "again": report.again,
        "found": report.found and report.found._asdict(),
        "left": report.left and report.left._asdict(),
        "came": report.came,
        "finished": report.gone,
        "balances": report.balances,
        "is_whole": report.is_whole,
    }


def _text(report: Report, *, dry_run: bool) -> str:
    found = _counts_text(report.found)
    if dry_run:
        return f"there: {found}; nothing was moved"
    # Those that others had got there by then may have been put before, too.
    of_what = "of them and of the others below" if report.elsewhere else "of them"
    lines = [f"{report.moved:,} moved ({report.put['kept']:,} {of_what} had been put before)"]
    if report.put["dead"]:
        lines.append(f"{report.put['dead']:,} of them are no messages: see takeover-dead")
    if report.elsewhere:
        lines.append(
            f"{report.elsewhere:,} others had got there by then: they may be done twice, "
            "unless it was another takeover"
        )
    if report.others:
        lines.append(f"{report.others:,} stay there: their ids are those of other messages here")
    if report.refused:
        lines.append(f"{report.refused:,} stay there, as the queue refuses them: {report.reason}")
    for reason, count in report.by_reason.items():
        lines.append(f"{count:,} stay there: {reason}")
    if report.again:
        lines.append(
            f"{report.again:,} were delivered before, and are here twice if a takeover had put them"
        )
    if report.found is not None:
        how = "were finished, or moved by another takeover" if report.gone else "were finished"
        lines.append(f"there were {found}; {report.came:,} came, {report.gone:,} {how}")
        lines.append(f"left there: {_counts_text(report.left)}")
    if not report.is_whole and not report.by_reason:
        lines.append("stopped before the end; run it again")
    lines.append("the count balances" if report.balances else "the count DOES NOT BALANCE")
    return "\n".join(lines)


def _counts_text(counts: Counts | None) -> str:
    if counts is None:
        return "an unknown number"
    named = zip(("delayed", "ready", "leased", "dead"), counts, strict=False)
    return ", ".join(f"{count:,} {name}" for name, count in named)
