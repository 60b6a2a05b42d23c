"""``dwell find``: the messages of a topic that match."""

from typing import Annotated

import msgspec
import typer

from dwell.batch.selection import ALL, Selection
from dwell.cli.listing import print_messages
from dwell.cli.options import WHERE_HELP, TopicArgument
from dwell.cli.selecting import NAMES, selecting
from dwell.cli.session import session_of
from dwell.errors import InvalidInput


@selecting()
def find(
    context: typer.Context,
    topic: TopicArgument,
    expression: Annotated[
        str | None, typer.Argument(metavar="EXPRESSION", help=WHERE_HELP, show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="How many at most.")] = 100,
    *,
    which: Selection | None = None,
) -> None:
    """List a topic's messages that match, by due; without a state, ready messages."""
    if expression is None and which is None:
        raise InvalidInput(f"find: expected an EXPRESSION or some of {', '.join(NAMES)}")
    session, wanted = session_of(context), which or ALL
    if expression is not None and wanted.where is not None:
        raise InvalidInput("where: got it beside an EXPRESSION, expected one of them")
    if expression is not None:
        wanted = msgspec.structs.replace(wanted, where=expression)
    with session.queue() as queue:
        found = queue.find(topic, wanted, limit=limit)
        if not print_messages(session.out, iter(found)):
            session.say_if_missing(queue, topic)
