"""``dwell take``: messages that are due, under a lease, with the receipts that end it."""

from typing import Annotated

import typer

from dwell.batch.batch import Batch
from dwell.batch.selection import Selection
from dwell.cli.exits import require
from dwell.cli.interrupts import held_back
from dwell.cli.messages import message_block
from dwell.cli.options import LeaseOption
from dwell.cli.output import Output
from dwell.cli.selecting import NAMES, selecting
from dwell.cli.session import session_of
from dwell.cli.stdout import flush
from dwell.clock import RealClock
from dwell.errors import InvalidInput
from dwell.given import values
from dwell.threads.bridge import LoopThread
from dwell.threads.sync import SyncQueue
from dwell.wire.rows import message_object, span_of


@selecting(has_state=False)
def take(
    context: typer.Context,
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC", help="Topics, looked at in this order.", show_default=False
        ),
    ],
    limit: Annotated[int, typer.Option(metavar="N", help="How many at most.")] = 1,
    wait: Annotated[
        str, typer.Option(metavar="SPAN", help="How long to wait when there is none.")
    ] = "0s",
    lease: LeaseOption = None,
    owner: Annotated[
        str, typer.Option(metavar="NAME", help="Who takes them.", show_default=False)
    ] = "",
    *,
    which: Selection | None = None,
) -> None:
    """Take messages that are due, and print them with their receipts.

    You hold them until the lease ends: ack, release or bury them by receipt before that, or they
    come back. Messages that cannot be printed are released at once. With options that select
    messages, the command takes from one topic, by due, without --wait.
    """
    session = session_of(context)
    span, waiting = span_of(lease), span_of(wait)
    if which is not None and (len(topics) != 1 or values.delay_ms(waiting, "wait")):
        raise InvalidInput(f"take: expected one topic and no --wait beside {', '.join(NAMES)}")

    def taken(queue: SyncQueue) -> Batch:
        if which is not None:
            return queue.take_where(topics[0], which, limit, lease=span, owner=owner)
        return queue.take(topics, limit, lease=span, owner=owner, wait=waiting)

    # A wait may be interrupted; messages received by then are shown, or released.
    with session.queue() as queue, held_back(but_in=LoopThread.hand.__code__):
        batch = taken(queue)
        _show(session.out, queue, batch)
        if not batch:
            session.say_if_missing(queue, *topics)
            is_like_it = "" if which is None else " that matches"
            session.out.note(f"nothing{is_like_it} is due in {', '.join(topics)}")
    require(len(batch) > 0)


def _show(out: Output, queue: SyncQueue, batch: Batch) -> None:
    """Print taken messages, each flushed at once; messages that cannot be printed are released."""
    now_ms, shown = RealClock().now_ms(), 0
    try:
        for message in batch:
            if out.json:
                out.object(message_object(message))
            else:
                out.line(message_block(message, now_ms))
            flush()
            shown += 1
    finally:
        if shown < len(batch):
            queue.release(batch[shown:], counted=False)
