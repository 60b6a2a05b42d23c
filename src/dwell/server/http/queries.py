"""Queries: messages that match, and all messages of a topic, a bounded part a request."""

import msgspec

from dwell.given import values
from dwell.message import MAX_BATCH_BYTES, TopicSettings
from dwell.queue import search
from dwell.server.http import filters
from dwell.server.http.answer import Answer
from dwell.server.http.call import Call
from dwell.server.http.messageheaders import request_of
from dwell.server.http.paging import answer_bytes, cursor_of, page_answer
from dwell.server.http.schemas.answers import ClearAnswer
from dwell.server.http.schemas.requests import FindRequest, TakeWhereRequest
from dwell.server.http.takes import lease_of


async def find(call: Call) -> Answer:
    """Return messages of one state that match, by due, from after ``cursor``.

    A request examines 100,000 messages at most, fewer if that is much work, and its answer holds
    16 MiB of them. As long as the answer has a cursor there may be more, even if it has no
    messages.
    """
    topic, ask = call.allowed_topic(), request_of(call, FindRequest)
    which, state = filters.selection_of(ask, ask.headers), values.state(ask.state)
    await call.reserve_answer(answer_bytes(ask.limit))
    page = await filters.look(call, topic, which, state, cursor_of(ask.cursor), ask.limit)
    return await page_answer(call, page)


async def take_where(call: Call) -> Answer:
    """Take ready messages that match, by due, from after ``cursor``, at once.

    A request examines 100,000 messages at most, fewer if that is much work, and its answer holds
    16 MiB of them. As long as the answer has a cursor there may be more. It has no cursor if
    ``limit`` messages were taken.
    """
    topic, ask = call.allowed_topic(), request_of(call, TakeWhereRequest)
    await call.reserve_answer(answer_bytes(ask.limit))
    page = await search.take_where(
        call.queue.store,
        topic,
        filters.matcher_of(filters.selection_of(ask, ask.headers)),
        cursor_of(ask.cursor),
        ask.limit,
        values.lease_ms(lease_of(ask)),
        values.owner(ask.owner),
        most=filters.MOST_LOOKED_AT,
        most_bytes=MAX_BATCH_BYTES,
        check=call.check_again,
    )
    call.note_taken(page.messages)
    return await page_answer(call, page)


async def clear(call: Call) -> Answer:
    """Cancel every message of a topic that nobody has taken; leased messages stay.

    A request cancels about 100,000 messages at most, and says whether the topic has more.
    """
    return call.answer(await _cleared(call, call.allowed_topic()))


async def delete_topic(call: Call) -> Answer:
    """Clear a topic, and reset its settings once it is clear.

    A request cancels about 100,000 messages at most, and says whether the topic has more.
    """
    topic = call.allowed_topic()
    cleared = await _cleared(call, topic)
    if cleared.is_complete:
        call.check_again()
        await call.queue.configure(topic, **msgspec.structs.asdict(TopicSettings()))
    return call.answer(cleared)


async def _cleared(call: Call, topic: str) -> ClearAnswer:
    count, is_complete = await search.clear(
        call.queue.store, topic, most=filters.MOST_LOOKED_AT, check=call.check_again
    )
    call.change = {"cancelled": count, "is_complete": is_complete}
    return ClearAnswer(count, is_complete)
