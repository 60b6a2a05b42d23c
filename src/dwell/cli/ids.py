"""Messages by topic and id: ``get``, ``cancel``, ``reschedule`` and ``kick``."""

from contextlib import closing
from itertools import islice
from typing import Annotated

import typer

from dwell.batch.changed import Changed
from dwell.batch.selection import ALL, Selection
from dwell.cli import given
from dwell.cli.exits import require
from dwell.cli.listing import matching, note_more
from dwell.cli.messages import message_block
from dwell.cli.options import DelayOption, DueOption, ShiftOption, TopicArgument
from dwell.cli.output import Output
from dwell.cli.selecting import (
    Bulk,
    DryRunOption,
    MostOption,
    OptionalIds,
    YesOption,
    check_either,
    selecting,
)
from dwell.cli.session import session_of
from dwell.cli.texts import printable
from dwell.clock import RealClock
from dwell.message import MAX_CHANGE_MESSAGES, Message, Result
from dwell.threads.sync import SyncQueue
from dwell.wire.rows import message_object, span_of

PaceOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Without ids: how many fall due in each second."),
]

#: How many messages of a selection are shown by default.
_SHOWN = 100


@selecting()
def get(
    context: typer.Context,
    topic: TopicArgument,
    ids: OptionalIds = None,
    limit: MostOption = None,
    *,
    which: Selection | None = None,
) -> None:
    """Print messages with all their fields, selected by id or by options."""
    check_either("get", ids, which, limit=limit)
    session, are_known = session_of(context), True
    with session.queue() as queue:
        if which is not None:
            most = _SHOWN if limit is None else limit
            with closing(matching(queue, topic, which, most)) as messages:
                for message in islice(messages, most):
                    _print(session.out, topic, message.id, message)
                note_more(session.out, messages)
        for chunk in given.chunks(ids or ()):
            for id_, found in zip(chunk, queue.get(topic, chunk), strict=True):
                _print(session.out, topic, id_, found)
                are_known &= found is not None
    require(are_known)


def _print(out: Output, topic: str, id_: str, message: Message | None) -> None:
    if message is None:
        unknown = {"topic": topic, "id": id_, "result": str(Result.UNKNOWN)}
        out.answer(unknown, f"{Result.UNKNOWN}  {printable(id_)}")
    else:
        out.answer(message_object(message), message_block(message, RealClock().now_ms()))


@selecting()
def cancel(
    context: typer.Context,
    topic: TopicArgument,
    ids: OptionalIds = None,
    limit: MostOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    *,
    which: Selection | None = None,
) -> None:
    """Cancel messages that are not leased, selected by id or by options.

    With options, it prints the number of matches and asks.
    """
    check_either("cancel", ids, which, limit=limit, dry_run=dry_run)
    session, most = session_of(context), _most(limit)
    if which is None:
        return session.apply(
            "id", ids or (), Result.CANCELLED, lambda queue, chunk: queue.cancel(topic, chunk)
        )
    return Bulk(
        "Cancel",
        Result.CANCELLED,
        lambda queue, dry: queue.cancel_where(topic, which, limit=most, dry_run=dry),
    ).run(session, topic, yes=yes, dry_run=dry_run)


@selecting()
def reschedule(
    context: typer.Context,
    topic: TopicArgument,
    ids: OptionalIds = None,
    delay: DelayOption = None,
    due: DueOption = None,
    shift: ShiftOption = None,
    limit: MostOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    *,
    which: Selection | None = None,
) -> None:
    """Change when messages fall due, with --delay, --due or --shift.

    Select messages by id or by options. With options, it prints the number of matches and asks.
    """
    check_either("reschedule", ids, which, shift=shift, limit=limit, dry_run=dry_run)
    session, most, span, by = session_of(context), _most(limit), span_of(delay), span_of(shift)
    if which is None:
        return session.apply(
            "id",
            ids or (),
            Result.MOVED,
            lambda queue, chunk: queue.reschedule(topic, chunk, delay=span, due=due),
        )

    def verb(queue: SyncQueue, dry: bool) -> Changed:
        return queue.reschedule_where(
            topic, which, delay=span, due=due, shift=by, limit=most, dry_run=dry
        )

    return Bulk("Move", Result.MOVED, verb).run(session, topic, yes=yes, dry_run=dry_run)


@selecting()
def kick(
    context: typer.Context,
    topic: TopicArgument,
    ids: OptionalIds = None,
    limit: MostOption = None,
    delay: Annotated[str, typer.Option(metavar="SPAN", help="How long until they are due.")] = "0s",
    pace: PaceOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    *,
    which: Selection | None = None,
) -> None:
    """Bring dead messages back with 0 attempts, selected by id or by options.

    With options, it prints the number of matches and asks. --limit alone brings back that many
    messages, the earliest dues first.
    """
    is_number = limit is not None and which is None and not ids
    if is_number and (dry_run or pace is not None):
        which = ALL
    if not is_number:
        check_either("kick", ids, which, limit=limit, pace=pace, dry_run=dry_run)
    session, span, most = session_of(context), span_of(delay), _most(limit)
    if ids:
        session.apply(
            "id", ids, Result.KICKED, lambda queue, chunk: queue.kick(topic, chunk, delay=span)
        )
    elif which is not None:
        chosen = which
        Bulk(
            "Kick",
            Result.KICKED,
            lambda queue, dry: queue.kick_where(
                topic, chosen, delay=span, pace=pace, limit=most, dry_run=dry
            ),
        ).run(session, topic, yes=yes, dry_run=dry_run)
    else:
        with session.queue() as queue:
            kicked = queue.kick(topic, limit=most, delay=span).count(Result.KICKED)
        session.out.confirm({"topic": topic, "kicked": kicked}, f"{kicked:,} kicked")


def _most(limit: int | None) -> int:
    return MAX_CHANGE_MESSAGES if limit is None else limit
