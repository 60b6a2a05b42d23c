"""``dwell stale``: compare the parts of a store of any kind."""

from typing import Annotated

import typer
from rich.text import Text

from dwell.batch.stats import Stale
from dwell.cli.exits import require
from dwell.cli.output import Output
from dwell.cli.session import session_of
from dwell.cli.terminal import table
from dwell.cli.texts import printable


def stale(
    context: typer.Context,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what is printed.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="How many at most.")] = 1000,
) -> None:
    """Compare the parts of the store, and print their differences.

    Unlike check, it also works over a server. A repair loses no message that has its body.
    """
    session = session_of(context)
    with session.queue() as queue:
        found = queue.find_stale(repair=repair, limit=limit)
    if session.out.json:
        for one in found:
            session.out.object({field: getattr(one, field) for field in Stale.__struct_fields__})
    elif found:
        _show(session.out, found)
    else:
        session.out.note("ok: all parts agree")
    require(repair or not found)


def _show(out: Output, found: list[Stale]) -> None:
    made = table("problem", "topic", "id", "number", "", right=("number",))
    for one in found:
        number = str(one.number) if one.number else ""
        done = "repaired" if one.repaired else ""
        cells = (one.problem, one.topic, printable(one.id), number, done)
        made.add_row(*map(Text, cells))
    out.show(made)
