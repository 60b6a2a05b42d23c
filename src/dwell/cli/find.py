"""``dwell find``: the messages of a topic whose bodies match."""

from typing import Annotated

import typer

from dwell.cli.listing import print_messages
from dwell.cli.options import WHERE_HELP, TopicArgument
from dwell.cli.session import session_of


def find(
    context: typer.Context,
    topic: TopicArgument,
    where: Annotated[
        str, typer.Argument(metavar="EXPRESSION", help=WHERE_HELP, show_default=False)
    ],
    state: Annotated[
        str, typer.Option(metavar="STATE", help="Delayed, ready, leased or dead.")
    ] = "ready",
    limit: Annotated[int, typer.Option(metavar="N", help="How many at most.")] = 100,
) -> None:
    """List a topic's messages of one state whose bodies match, by due."""
    session = session_of(context)
    with session.queue() as queue:
        found = queue.find(topic, where, state=state, limit=limit)
        if not print_messages(session.out, iter(found)):
            session.say_if_missing(queue, topic)
