"""``dwell list``: the messages of a topic, by state and due."""

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice

import typer

from dwell.batch.selection import ALL, Selection
from dwell.cli.messages import message_table
from dwell.cli.options import AllOption, LimitOption, TopicArgument
from dwell.cli.output import Output
from dwell.cli.selecting import selecting
from dwell.cli.session import session_of
from dwell.clock import RealClock
from dwell.message import Message, State
from dwell.threads.sync import SyncQueue
from dwell.wire.rows import message_object

_PAGE = 1000

#: The order of states in a list: the states closest to a taker come first.
_STATES = (State.LEASED, State.READY, State.DELAYED, State.DEAD)


@selecting()
def list_messages(
    context: typer.Context,
    topic: TopicArgument,
    limit: LimitOption = 100,
    everything: AllOption = False,
    *,
    which: Selection | None = None,
) -> None:
    """List a topic's messages, or a selection of them: state after state, each by due."""
    session = session_of(context)
    most = None if everything else limit
    with session.queue() as queue, closing(matching(queue, topic, which, most)) as messages:
        count = print_messages(session.out, islice(messages, most))
        if not count:
            session.say_if_missing(queue, topic)
        if most is not None:
            note_more(session.out, messages, ", or --all,")


def matching(
    queue: SyncQueue, topic: str, which: Selection | None, most: int | None
) -> Generator[Message]:
    """Yield the messages of a topic that match, page by page; the caller needs ``most`` of them."""
    wanted = which or ALL
    states = None if wanted.states else _STATES
    size = _PAGE if most is None else min(most, _PAGE)
    for page in queue.pages(topic, states, which=wanted, limit=size):
        yield from page


def note_more(out: Output, messages: Iterator[Message], others: str = "") -> None:
    """Say that there are messages left, if there are."""
    if next(messages, None) is not None:
        out.note(f"there are more: a larger --limit{others} shows them")


def print_messages(out: Output, messages: Iterator[Message]) -> int:
    """Print messages as objects, or in tables; return how many there were."""
    count = 0
    if out.json:
        for count, message in enumerate(messages, 1):  # noqa: B007 - the last one is the count
            out.object(message_object(message))
        return count
    # One table a page, so that a list of millions needs the same memory as a list of a thousand.
    while page := list(islice(messages, _PAGE)):
        out.show(message_table(page, RealClock().now_ms()))
        count += len(page)
    return count
