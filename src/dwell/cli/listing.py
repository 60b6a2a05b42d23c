"""``dwell list``: the messages of a topic, by state and due."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

import typer

from dwell.cli.messages import message_table
from dwell.cli.options import AllOption, LimitOption, TopicArgument
from dwell.cli.output import Output
from dwell.cli.session import session_of
from dwell.clock import RealClock
from dwell.given import values
from dwell.message import Message, State
from dwell.threads.sync import SyncQueue
from dwell.wire.rows import message_object

_PAGE = 1000

#: The order in which states are listed: what is nearest to a taker stands first.
_STATES = (State.LEASED, State.READY, State.DELAYED, State.DEAD)


def list_messages(
    context: typer.Context,
    topic: TopicArgument,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only delayed, ready, leased or dead; may be repeated.",
            show_default=False,
        ),
    ] = None,
    limit: LimitOption = 100,
    everything: AllOption = False,
) -> None:
    """List a topic's messages: state after state, each by due."""
    session = session_of(context)
    states = list(dict.fromkeys(map(values.state, state))) if state else _STATES
    most = None if everything else limit
    size = _PAGE if most is None else min(most, _PAGE)
    with session.queue() as queue:
        messages = _messages(queue, topic, states, size)
        count = print_messages(session.out, islice(messages, most))
        if not count:
            session.say_if_missing(queue, topic)
        if most is not None and next(messages, None) is not None:
            session.out.note("there are more: a larger --limit, or --all, shows them")


def _messages(
    queue: SyncQueue, topic: str, states: Iterable[State], size: int
) -> Iterator[Message]:
    for state in states:
        page = queue.scan(topic, state, limit=size)
        yield from page.messages
        while page.cursor is not None:
            page = queue.scan(topic, state, cursor=page.cursor, limit=size)
            yield from page.messages


def print_messages(out: Output, messages: Iterator[Message]) -> int:
    """Print messages as objects, or in tables; return how many there were."""
    count = 0
    if out.json:
        for count, message in enumerate(messages, 1):  # noqa: B007 - the last one is the count
            out.object(message_object(message))
        return count
    # A table a page, so that a list of millions needs no more room than one of a thousand.
    while page := list(islice(messages, _PAGE)):
        out.show(message_table(page, RealClock().now_ms()))
        count += len(page)
    return count
