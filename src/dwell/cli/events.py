"""``dwell events``: the events of messages, in order."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from msgspec.structs import astuple
from rich.table import Table
from rich.text import Text

from dwell.batch.events import Event, EventPage, Events
from dwell.cli.options import AllOption, LimitOption
from dwell.cli.session import session_of
from dwell.cli.terminal import table
from dwell.cli.texts import printable, time_text
from dwell.errors import StoreError
from dwell.threads.sync import SyncQueue

_PAGE = 1000
#: The headings of fields in a table, if they differ from the names.
_TITLES = {"kind": "event"}


def events(
    context: typer.Context,
    position: Annotated[int, typer.Option("--from", metavar="POSITION", help="The first one.")] = 0,
    limit: LimitOption = 100,
    everything: AllOption = False,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Of this topic only.")] = None,
    id_: Annotated[str | None, typer.Option("--id", metavar="ID", help="Of this id only.")] = None,
    history: Annotated[
        str | None, typer.Option(metavar="NAME", help="Fail if the events before differ.")
    ] = None,
) -> None:
    """Print the events of messages, in order: of all messages, of a topic, or of an id.

    So `--topic mails --id 7` shows when that message was put and taken, and when it died. The last
    note says with which `--from` and `--history` to continue: positions never change, but a store
    that was restored has other events in some of them, and another name of its history. The store
    drops the oldest events in time: then the first printed event is the oldest kept.
    """
    out = session_of(context).out
    with session_of(context).queue() as queue:
        left = None if everything else limit
        last: int | None = None
        for page in _pages(queue, position):
            if history and page.since and page.since != history:
                raise StoreError(
                    f"history: got {history!r}, and the store has {page.since!r} before position "
                    f"{position}: it was restored, or is another one"
                )
            if 0 < position < page.first_position:
                out.note(f"events before {page.first_position} are no longer kept")
            if position > page.end_position:
                out.note(
                    f"the newest event is before {page.end_position}: the store was restored, or "
                    "is another one"
                )
            found = _of(page.events, topic, id_)[:left]
            if out.json:
                for event in found:
                    out.object(_object(event))
            elif found:
                out.show(_table(found))
            last = found[-1].position if found else last
            position, history = page.next_position, page.history
            left = None if left is None else left - len(found)
            if left == 0:
                break
        if last is not None and (name := queue.events(last + 1, 1).since):
            out.note(f"continue with --from {last + 1} --history {name}")


def _pages(queue: SyncQueue, position: int) -> Iterator[EventPage]:
    """Yield the events in pages, until a page is empty."""
    page: EventPage | None = None
    while page is None or page.events:
        page = queue.events(position, _PAGE)
        yield page
        position = page.next_position


def _of(events: Events, topic: str | None, id_: str | None) -> Sequence[Event]:
    """Return the events of a topic, of an id, or of both, as far as they are given."""
    if topic is None and id_ is None:
        return events
    pairs = enumerate(zip(events.topics, events.ids, strict=True))
    return [events[at] for at, pair in pairs if topic in (None, pair[0]) and id_ in (None, pair[1])]


def _object(event: Event) -> dict[str, Any]:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {**fields, "kind": str(event.kind)}


def _table(events: Sequence[Event]) -> Table:
    names = Event.__struct_fields__
    titles = [_TITLES.get(name, name.removesuffix("_ms")) for name in names]
    made = table(*titles, right=("position", "attempt"))
    for event in events:
        values = zip(names, astuple(event), strict=True)
        made.add_row(*(Text(_text(name, value)) for name, value in values))
    return made


def _text(name: str, value: Any) -> str:
    return time_text(value) if name.endswith("_ms") else printable(str(value))
