"""``dwell events``: what happened to messages, in order."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from dwell.batch.events import Event, EventPage
from dwell.cli.options import AllOption, LimitOption
from dwell.cli.output import table
from dwell.cli.session import session_of
from dwell.cli.texts import printable, time_text
from dwell.threads.sync import SyncQueue

_PAGE = 1000


def events(
    context: typer.Context,
    position: Annotated[int, typer.Option("--from", metavar="POSITION", help="The first one.")] = 0,
    limit: LimitOption = 100,
    everything: AllOption = False,
) -> None:
    """Print what happened to messages, in order.

    Positions never change, so that a program can go on after the last one that it has seen. The
    oldest events are dropped in time: then the first one printed is the oldest that is kept.
    """
    out = session_of(context).out
    with session_of(context).queue() as queue:
        for page in _pages(queue, position, None if everything else limit):
            if 0 < position < page.first_position:
                out.note(f"events before {page.first_position} are no longer kept")
                position = 0
            if out.json:
                for event in page.events:
                    out.object(_object(event))
            else:
                out.show(_table(page.events))


def _pages(queue: SyncQueue, position: int, most: int | None) -> Iterator[EventPage]:
    """Yield the events in pages, until there are no more or there were ``most``."""
    while most is None or most > 0:
        page = queue.events(position, _PAGE if most is None else min(most, _PAGE))
        if not page.events:
            return
        yield page
        position = page.next_position
        most = None if most is None else most - len(page.events)


def _object(event: Event) -> dict[str, Any]:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {**fields, "kind": str(event.kind)}


def _table(events: Sequence[Event]) -> Table:
    made = table(
        "position", "time", "event", "topic", "id", "due", "attempt", right=("position", "attempt")
    )
    for event in events:
        made.add_row(
            Text(str(event.position)),
            Text(time_text(event.time_ms)),
            Text(str(event.kind)),
            Text(event.topic),
            Text(printable(event.id)),
            Text(time_text(event.due_ms)),
            Text(str(event.attempt)),
        )
    return made
