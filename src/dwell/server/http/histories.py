"""Histories: the events of one message, and the reasons of dead messages, found by a search."""

import asyncio
from collections import Counter
from typing import NamedTuple

from dwell.batch.events import Event, Events
from dwell.batch.sweep import Wanted
from dwell.given import values
from dwell.message import Kind, State
from dwell.queue.lookback import pages_before
from dwell.server.http.answer import Answer
from dwell.server.http.call import Call
from dwell.server.http.filters import MOST_LOOK_S
from dwell.server.http.rows import event_rows
from dwell.server.http.schemas.board import (
    HistoryAnswer,
    HistoryQuery,
    ReasonRow,
    ReasonsAnswer,
    ReasonsQuery,
)

#: How many events of one message an answer holds, and how many reasons.
_MOST_EVENTS = 1000
_MOST_REASONS = 1000
_SWEPT = 1000


class _Found(NamedTuple):
    """The result of a search back through the event log; ``before`` is None at the log's end."""

    events: list[Event]
    before: int | None
    is_whole: bool
    looked: int


async def history(call: Call) -> Answer:
    """Return the events of a message, from the event log, back to its put.

    A request searches for a second at most, from the position ``before`` back; as long as the
    answer has one, there may be more.
    """
    topic = call.allowed_topic()
    id_ = values.any_id(call.path["id"]).decode()
    found = await _search(call, topic, id_, call.query(HistoryQuery).before)
    rows = await event_rows(Events.of(found.events))
    return call.answer(HistoryAnswer(rows, found.before, found.is_whole, found.looked))


async def _search(call: Call, topic: str, id_: str, before: int | None) -> _Found:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + MOST_LOOK_S
    found, is_whole, is_first, end = list[Event](), False, True, 0
    async for start, events, is_first in pages_before(call.queue.events, before):
        some, before, end = _of(events, topic, id_), start, end or start + len(events)
        is_whole = any(event.kind is Kind.PUT for event in some)
        room = _MOST_EVENTS - len(found)
        if len(some) > room:
            some, is_whole, is_first = some[-room:], False, False
            before = some[0].position
        found = some + found
        if is_whole or len(found) == _MOST_EVENTS or loop.time() >= ends_s:
            break
    looked = end - (before or 0)
    return _Found(found, None if is_whole or is_first else before, is_whole, looked)


def _of(events: Events, topic: str, id_: str) -> list[Event]:
    """Return the events of one message since its last put among them."""
    places = [at for at, other in enumerate(events.ids) if other == id_]
    found = [events[at] for at in places if events.topics[at] == topic]
    puts = [at for at, event in enumerate(found) if event.kind is Kind.PUT]
    return found[puts[-1] :] if puts else found


async def reasons(call: Call) -> Answer:
    """Count a topic's dead messages by their last error.

    A request searches for a second at most, from ``place`` on; as long as the answer has a
    ``next_place`` there may be more.
    """
    topic, place = call.allowed_topic(), call.query(ReasonsQuery).place
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + MOST_LOOK_S
    counts: Counter[str] = Counter()
    ids: dict[str, str] = {}
    wanted, following = Wanted(topics=(topic,), states=(State.DEAD,)), None
    while True:
        found = await call.queue.sweep(wanted, start=place, limit=_SWEPT)
        batch, following = found.messages, found.next_place
        errors, names = batch.errors, batch.ids
        for at in range(len(batch)):
            reason = errors.get(at, "")
            reason = reason if reason in ids or len(ids) < _MOST_REASONS else ""
            counts[reason] += 1
            ids.setdefault(reason, names[at])
        if following is None or loop.time() >= ends_s:
            break
        place = following
        await asyncio.sleep(0)
    rows = [ReasonRow(reason, count, ids[reason]) for reason, count in counts.most_common()]
    return call.answer(ReasonsAnswer(rows, following, found.places))
