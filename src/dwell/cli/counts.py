"""How many messages there are: ``stats`` and ``topics``."""

from typing import Annotated

import typer
from rich.text import Text

from dwell.batch.stats import TopicStats
from dwell.cli.output import Output
from dwell.cli.session import Session, session_of
from dwell.cli.terminal import table

_STATES = tuple(TopicStats.__dataclass_fields__)


def stats(
    context: typer.Context,
    shards: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Only this topic, and each shard of the store on its own.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Count the messages by topic and state, and the events by kind."""
    session = session_of(context)
    if shards is not None:
        return _show_shards(session, shards)
    with session.queue() as queue:
        found = queue.stats()
    if session.out.json:
        topics = {topic: _counts(counts) for topic, counts in sorted(found.topics.items())}
        session.out.object({"topics": topics, "totals": found.totals})
    else:
        _show_topics(session.out, found.topics)
        session.out.line("")
        _show_totals(session.out, found.totals)
    return None


def _show_shards(session: Session, topic: str) -> None:
    with session.queue() as queue:
        sizes = queue.sizes(topic)
    if session.out.json:
        session.out.object({"topic": topic, "shards": list(map(_counts, sizes))})
        return
    made = table("shard", *_STATES, right=("shard", *_STATES))
    for shard, counts in enumerate(sizes):
        made.add_row(str(shard), *(f"{count:,}" for count in _counts(counts).values()))
    session.out.show(made)


def topics(context: typer.Context) -> None:
    """List the topics."""
    session = session_of(context)
    with session.queue() as queue:
        found = queue.stats().topics
    for topic, counts in sorted(found.items()):
        if session.out.json:
            session.out.object({"topic": topic, **_counts(counts)})
        else:
            session.out.line(topic)


def _counts(counts: TopicStats) -> dict[str, int]:
    return {state: getattr(counts, state) for state in _STATES}


def _show_topics(out: Output, topics: dict[str, TopicStats]) -> None:
    made = table("topic", *_STATES, right=_STATES)
    for topic, counts in sorted(topics.items()):
        made.add_row(Text(topic), *(f"{count:,}" for count in _counts(counts).values()))
    if len(topics) != 1:
        sums = (sum(getattr(counts, state) for counts in topics.values()) for state in _STATES)
        made.add_row(Text("all"), *(f"{count:,}" for count in sums), style="bold")
    out.show(made)


def _show_totals(out: Output, totals: dict[str, int]) -> None:
    made = table("event", "so far", right=("so far",))
    for kind, count in totals.items():
        made.add_row(Text(kind), f"{count:,}")
    out.show(made)
