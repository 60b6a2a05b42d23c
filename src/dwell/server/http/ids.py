"""Messages by topic and id, or by a filter."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.results import Results
from dwell.errors import InvalidInput
from dwell.given import columns
from dwell.message import MAX_BATCH_MESSAGES, State
from dwell.server.http.answer import Answer, Refusal
from dwell.server.http.call import Call
from dwell.server.http.filters import Named, collect
from dwell.server.http.media import Media
from dwell.server.http.paging import first_of
from dwell.server.http.rows import message_rows, reached
from dwell.server.http.schemas.answers import Bulk, Found
from dwell.server.http.schemas.answers import Named as NamedAnswer
from dwell.server.http.schemas.answers import Results as ResultsAnswer
from dwell.server.http.schemas.requests import (
    CancelRequest,
    Filter,
    GetRequest,
    KickRequest,
    NamedRequest,
    RescheduleRequest,
)
from dwell.wire.columns import columns_of_batch
from dwell.wire.rows import span_of

_WAITING = (State.DELAYED, State.READY)


async def cancel(call: Call) -> Answer:
    """Forget messages that nobody has taken: cancelled, leased or unknown."""
    topic, ask = call.allowed_topic(), call.body(CancelRequest)
    _one_of(ids=ask.ids, filter=ask.filter)
    if ask.ids is not None:
        return _words(call, await call.queue.cancel(topic, ask.ids))
    states = (*_WAITING, State.DEAD)

    async def verb(part: list[Named]) -> Results:
        return await call.queue.cancel(topic, [message.id for message in part])

    return await _bulk(call, topic, ask.filter, states, ask.limit, verb)


async def reschedule(call: Call) -> Answer:
    """Change when messages fall due: moved, leased or unknown (also when dead)."""
    topic, ask = call.allowed_topic(), call.body(RescheduleRequest)
    _one_of(ids=ask.ids, filter=ask.filter)
    _one_of(delay=ask.delay, due=ask.due, due_ms=ask.due_ms, shift_ms=ask.shift_ms)
    delay = span_of(ask.delay)
    due: Any = ask.due_ms if ask.due is None else ask.due
    if not isinstance(due, list):
        due = reached(due, call.queue.clock.now_ms(), call.their_ms)
    if ask.ids is not None:
        if ask.shift_ms is not None:
            raise InvalidInput("shift_ms: got it beside ids, expected a filter")
        when: Any = due
        if isinstance(due, list):
            when = call.reached(np.array(due, np.int64))
        return _words(call, await call.queue.reschedule(topic, ask.ids, delay=delay, due=when))
    if isinstance(due, list):
        raise InvalidInput("due_ms: got a list beside a filter, expected one moment")

    async def verb(part: list[Named]) -> Results:
        ids = [message.id for message in part]
        if ask.shift_ms is None:
            return await call.queue.reschedule(topic, ids, delay=delay, due=due)
        dues_ms = np.array([message.due_ms for message in part], np.int64) + ask.shift_ms
        return await call.queue.reschedule(topic, ids, due=np.maximum(dues_ms, 0))

    return await _bulk(call, topic, ask.filter, _WAITING, ask.limit, verb)


async def kick(call: Call) -> Answer:
    """Bring dead messages back, with their attempts anew: kicked or unknown."""
    topic, ask = call.allowed_topic(), call.body(KickRequest)
    delay = span_of(ask.delay)
    if ask.ids is not None:
        if ask.filter is not None:
            raise InvalidInput("filter: got it beside ids, expected one of them")
        return _words(call, await call.queue.kick(topic, ask.ids, delay=delay))

    async def verb(part: list[Named]) -> Results:
        return await call.queue.kick(topic, [message.id for message in part], delay=delay)

    return await _bulk(call, topic, ask.filter or Filter(), (State.DEAD,), ask.limit, verb)


async def get(call: Call) -> Answer:
    """Return messages by their ids, null where one is unknown, 16 MiB of them at most.

    They are those of the first ids; ``next`` is the place of the first id of which nothing is said
    yet, where the next request begins, and null when something was said of each.
    """
    topic, ask = call.allowed_topic(), call.body(GetRequest)
    columns.any_ids(ask.ids)
    found = await first_of(call.queue, topic, ask.ids)
    following = len(found) if len(found) < len(ask.ids) else None
    there = [message for message in found if message is not None]
    if call.asked is Media.COLUMNS:
        told = columns_of_batch(Batch.of(there))
        told.next = following
        return Answer(msgspec.msgpack.encode(told), Media.COLUMNS)
    rows = iter(message_rows(there))
    each: Any = [None if m is None else next(rows) for m in found]
    return call.answer(Found(each, following))


async def get_one(call: Call) -> Answer:
    """Return one message by its id."""
    topic, id_ = call.allowed_topic(), call.path["id"]
    message = await call.queue.get(topic, id_)
    if message is None:
        raise Refusal(404, f"id: topic {topic!r} has no message {id_!r:.80}")
    return call.answer(message_rows([message])[0])


async def cancel_one(call: Call) -> Answer:
    """Forget one message, unless somebody has taken it: cancelled, leased or unknown."""
    result = await call.queue.cancel(call.allowed_topic(), call.path["id"])
    return call.answer(ResultsAnswer([str(result)]))


async def named(call: Call) -> Answer:
    """Return topic and id of messages by their numbers."""
    call.allow(None)
    ask = call.body(NamedRequest)
    names = await call.queue.named(ask.numbers)
    return call.answer(NamedAnswer([name and list(name) for name in names]))


def _one_of(**given: object) -> None:
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        said = " and ".join(names) or "none"
        raise InvalidInput(f"body: got {said}, expected one of {', '.join(given)}")


def _words(call: Call, results: Results) -> Answer:
    return call.answer(ResultsAnswer(list(map(str, results))))


async def _bulk(
    call: Call,
    topic: str,
    wanted: Filter | None,
    states: tuple[State, ...],
    limit: int,
    verb: Callable[[list[Named]], Awaitable[Results]],
) -> Answer:
    """Do a verb to all messages that match; all are found before the first one is changed."""
    assert wanted is not None
    found, is_complete = await collect(call.queue, topic, wanted, states, limit)
    counts: Counter[str] = Counter()
    for at in range(0, len(found), MAX_BATCH_MESSAGES):
        counts.update(map(str, await verb(found[at : at + MAX_BATCH_MESSAGES])))
    return call.answer(Bulk(len(found), dict(counts), is_complete))
