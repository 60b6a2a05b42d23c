"""``dwell result``: the outcome of a message."""

from typing import Annotated

import typer

from dwell.batch.outcome import Outcome
from dwell.cli.exits import require
from dwell.cli.options import TopicArgument
from dwell.cli.session import session_of
from dwell.cli.texts import body_text, printable
from dwell.wire.rows import span_of, text_fields


def result(
    context: typer.Context,
    topic: TopicArgument,
    id_: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    wait: Annotated[
        str, typer.Option(metavar="SPAN", help="How long to wait until it is done or dead.")
    ] = "0s",
) -> None:
    """Print what came of a message: its result, why it is dead, or where it is.

    A result is what its worker gave with the ack; it is kept as long as the topic remembers ids.
    The exit code is 1 unless the message is done.
    """
    session = session_of(context)
    with session.queue() as queue:
        found = queue.result(topic, id_, wait=span_of(wait))
    error = {} if found.error is None else {"error": found.error}
    told = {"topic": topic, "id": id_, "state": found.state}
    session.out.answer({**told, **text_fields("result", found.result), **error}, _line(id_, found))
    require(found.state == "done")


def _line(id_: str, found: Outcome) -> str:
    text = f"{found.state}  {printable(id_)}"
    if found.error is not None:
        return f"{text}  {printable(found.error)}"
    return text if found.result is None else f"{text}\n{body_text(found.result, lines=True)}"
