"""Messages by topic and id: ``get``, ``cancel``, ``reschedule`` and ``kick``."""

from typing import Annotated

import typer

from dwell.cli import given
from dwell.cli.exits import require
from dwell.cli.messages import message_block
from dwell.cli.options import DelayOption, DueOption, IdsArgument, TopicArgument
from dwell.cli.output import Output
from dwell.cli.session import session_of
from dwell.cli.texts import printable
from dwell.clock import RealClock
from dwell.errors import InvalidInput
from dwell.message import Message, Result
from dwell.wire.rows import message_object, span_of


def get(context: typer.Context, topic: TopicArgument, ids: IdsArgument) -> None:
    """Print messages by id, with everything about them."""
    session, are_known = session_of(context), True
    with session.queue() as queue:
        for chunk in given.chunks(ids):
            for id_, message in zip(chunk, queue.get(topic, chunk), strict=True):
                _print(session.out, topic, id_, message)
                are_known &= message is not None
    require(are_known)


def _print(out: Output, topic: str, id_: str, message: Message | None) -> None:
    if message is None:
        unknown = {"topic": topic, "id": id_, "result": str(Result.UNKNOWN)}
        out.answer(unknown, f"{Result.UNKNOWN}  {printable(id_)}")
    else:
        out.answer(message_object(message), message_block(message, RealClock().now_ms()))


def cancel(context: typer.Context, topic: TopicArgument, ids: IdsArgument) -> None:
    """Forget messages that nobody has taken."""
    session_of(context).apply(
        "id", ids, Result.CANCELLED, lambda queue, chunk: queue.cancel(topic, chunk)
    )


def reschedule(
    context: typer.Context,
    topic: TopicArgument,
    ids: IdsArgument,
    delay: DelayOption = None,
    due: DueOption = None,
) -> None:
    """Change when messages fall due: one of --delay and --due has to be given."""
    span, point = span_of(delay), due
    session_of(context).apply(
        "id",
        ids,
        Result.MOVED,
        lambda queue, chunk: queue.reschedule(topic, chunk, delay=span, due=point),
    )


def kick(
    context: typer.Context,
    topic: TopicArgument,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Ids, or - to read one a line from standard input.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="Without ids: how many at most, those that were due first."),
    ] = None,
    delay: Annotated[str, typer.Option(metavar="SPAN", help="How long until they are due.")] = "0s",
) -> None:
    """Bring dead messages back, with their attempts anew: by id, or a number of them by --limit."""
    session, span = session_of(context), span_of(delay)
    if (limit is None) == (not ids):
        raise InvalidInput("kick: expected either ids or --limit")
    if ids:
        session.apply(
            "id", ids, Result.KICKED, lambda queue, chunk: queue.kick(topic, chunk, delay=span)
        )
    elif limit is not None:
        with session.queue() as queue:
            kicked = queue.kick(topic, limit=limit, delay=span).count(Result.KICKED)
        session.out.confirm({"topic": topic, "kicked": kicked}, f"{kicked:,} kicked")
