"""``dwell clear``: cancel everything that waits in a topic."""

from typing import Annotated

import typer

from dwell.cli.exits import ask
from dwell.cli.options import TopicArgument
from dwell.cli.session import session_of
from dwell.given import values


def clear(
    context: typer.Context,
    topic: TopicArgument,
    delete: Annotated[
        bool, typer.Option("--delete", help="Reset its settings, too: it is no longer listed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
) -> None:
    """Cancel every message of a topic that is not leased: delayed, ready and dead.

    Leased messages stay with their takers.
    """
    session = session_of(context)
    question = f"Cancel every message of {values.topic(topic)} that nobody has taken?"
    with session.queue() as queue:
        if not yes:
            ask(question)
        count = queue.delete_topic(topic) if delete else queue.clear(topic)
    session.out.confirm({"topic": topic, "cancelled": count}, f"{count:,} cancelled")
