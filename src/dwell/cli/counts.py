"""How many messages there are: ``stats`` and ``topics``."""

import typer
from rich.text import Text

from dwell.cli.output import Output, table
from dwell.cli.session import session_of
from dwell.store.base import TopicStats

_STATES = tuple(TopicStats.__dataclass_fields__)


def stats(context: typer.Context) -> None:
    """Count the messages by topic and state, and what has happened to messages so far."""
    session = session_of(context)
    with session.queue() as queue:
        found = queue.stats()
    if session.out.json:
        topics = {topic: _counts(counts) for topic, counts in sorted(found.topics.items())}
        session.out.object({"topics": topics, "totals": found.totals})
    else:
        _show_topics(session.out, found.topics)
        session.out.line("")
        _show_totals(session.out, found.totals)


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
