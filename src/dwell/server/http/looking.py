"""Endpoints that read: lists, events, counts, and the settings of topics."""

from typing import Any

import msgspec

from dwell.batch.selection import ALL
from dwell.batch.stats import Stats, TopicStats
from dwell.batch.sweep import EVERY, Sweep, Wanted
from dwell.errors import InvalidHeaders
from dwell.given import values
from dwell.message import TopicSettings
from dwell.server.http import arrow
from dwell.server.http.answer import Answer
from dwell.server.http.call import Call
from dwell.server.http.filters import look, selection_of
from dwell.server.http.media import Media
from dwell.server.http.paging import (
    answer_bytes,
    cursor_of,
    cursor_of_rest,
    names_after,
    page_answer,
    read_in_rows,
    with_cursor,
)
from dwell.server.http.rows import as_lines, event_rows
from dwell.server.http.schemas.answers import (
    Counts,
    EventsPage,
    SizesAnswer,
    StatsAnswer,
    TopicsAnswer,
)
from dwell.server.http.schemas.requests import (
    EventsQuery,
    ListQuery,
    SettingsChange,
    SweepRequest,
    TopicsQuery,
)
from dwell.wire.columns import columns_of_events, columns_of_sweep

#: The size of nearly every event at most: two names and some numbers.
_EVENT_BYTES = 1024


async def list_messages(call: Call) -> Answer:
    """List a topic's messages of one state by due, from after ``cursor``.

    NDJSON and Arrow answers have the next cursor in the header ``dwell-cursor``.
    """
    topic, ask = call.allowed_topic(), call.query(ListQuery)
    state, cursor = values.state(ask.state), cursor_of(ask.cursor)
    form = call.asked
    which = selection_of(ask, _header_of(ask.header))
    await call.reserve_answer(answer_bytes(ask.limit))
    if form is Media.COLUMNS and which == ALL:
        page = await call.queue.scan(topic, state, cursor=cursor, limit=ask.limit)
    else:
        page = await look(call, topic, which, state, cursor, ask.limit)
    if form is Media.ARROW:
        data, count = await arrow.messages(page.messages)
        answer = with_cursor(Answer(data, form), cursor_of_rest(page, count))
        return call.made_answer(answer)
    return await page_answer(call, page)


def _header_of(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    name, colon, value = text.partition(":")
    if not colon:
        raise values.refusal(InvalidHeaders, "header", text, "name:value")
    return {name: value}


async def sweep(call: Call) -> Answer:
    """Return the messages of a range of places, in no order: each that stays comes once."""
    ask = call.body(SweepRequest)
    call.allow(ask.topics or None)
    wanted = Wanted(
        topics=tuple(ask.topics),
        states=EVERY.states if ask.states is None else tuple(map(values.state, ask.states)),
        due_from_ms=ask.due_from_ms,
        due_to_ms=ask.due_to_ms,
        key=ask.key,
    )
    await call.reserve_answer(answer_bytes(ask.limit))
    form = call.asked

    async def read(limit: int) -> Sweep:
        return await call.queue.sweep(wanted, start=ask.start, stop=ask.stop, limit=limit)

    if form is Media.COLUMNS:
        told = columns_of_sweep(await read(ask.limit))
        return call.made_answer(Answer(msgspec.msgpack.encode(told), form))
    found, rows = await read_in_rows(read, ask.limit, form)
    return call.made_answer(rows.answer(next_place=found.next_place, places=found.places))


async def events(call: Call) -> Answer:
    """Return events in order, from a position on."""
    ask = call.query(EventsQuery)
    await call.reserve_answer(ask.limit * _EVENT_BYTES)
    page = await call.queue.events(ask.position, ask.limit)
    form = call.asked
    if form is Media.COLUMNS:
        answer = Answer(msgspec.msgpack.encode(columns_of_events(page)), form)
    elif form is Media.ARROW:
        answer = Answer(await arrow.events(page.events), form)
    elif form is Media.NDJSON:
        answer = Answer(as_lines(await event_rows(page.events)), form)
    else:
        rows = await event_rows(page.events)
        places = (page.next_position, page.first_position, page.end_position)
        answer = call.answer(EventsPage(rows, *places, page.since, page.history))
    answer.headers["dwell-next-position"] = str(page.next_position)
    answer.headers["dwell-first-position"] = str(page.first_position)
    answer.headers["dwell-end-position"] = str(page.end_position)
    answer.headers["dwell-since"] = page.since
    answer.headers["dwell-history"] = page.history
    return call.made_answer(answer)


async def stats(call: Call) -> Answer:
    """Return the number of messages by state, and the totals of events by kind.

    Topics are in the order of their names; if the answer has a ``next``, more follow. Only topics
    that the caller may see are listed; the totals need the right to see all topics.
    """
    found = await call.queue.stats()
    counts, following = await _counts(call, found)
    totals = found.totals if "" in call.prefixes() else {}
    return call.answer(StatsAnswer(counts, totals, following))


async def topics(call: Call) -> Answer:
    """List topics with their numbers of messages by state.

    Topics are in the order of their names; if the answer has a ``next``, more follow. Only topics
    that the caller may see are listed.
    """
    return call.answer(TopicsAnswer(*await _counts(call, await call.queue.stats())))


async def _counts(call: Call, found: Stats) -> tuple[dict[str, Counts], str | None]:
    """Return the counts of as many topics as fit into an answer, and where the next one begins."""
    prefixes, after = call.prefixes(), call.query(TopicsQuery).after
    seen = (name for name in found.topics if name.startswith(prefixes))
    names, following = await names_after(seen, after)
    return {name: _count(found.topics[name]) for name in names}, following


def _count(topic: TopicStats) -> Counts:
    return Counts(topic.delayed, topic.ready, topic.leased, topic.dead)


async def sizes(call: Call) -> Answer:
    """Return the number of a topic's messages by state, for each shard of the store."""
    shards = await call.queue.sizes(call.allowed_topic())
    return call.answer(SizesAnswer(list(map(_count, shards))))


async def settings(call: Call) -> Answer:
    """Return the settings of a topic: the defaults of its messages."""
    return call.answer(await call.queue.settings(call.allowed_topic()))


async def configure(call: Call) -> Answer:
    """Change some of a topic's settings, and return them all."""
    return await _configured(call, _settings(call))


async def replace_settings(call: Call) -> Answer:
    """Replace all settings of a topic; omitted settings get their defaults. Return them."""
    everything = {**msgspec.structs.asdict(TopicSettings()), **_settings(call)}
    return await _configured(call, everything)


async def _configured(call: Call, changes: dict[str, Any]) -> Answer:
    topic = call.allowed_topic()
    call.change = {"settings": changes}
    await call.service.quotas.configure(call.token, topic)
    call.check_again()
    return call.answer(await call.queue.configure(topic, **changes))


def _settings(call: Call) -> dict[str, Any]:
    changes = msgspec.structs.asdict(call.body(SettingsChange))
    return {name: value for name, value in changes.items() if value is not msgspec.UNSET}
