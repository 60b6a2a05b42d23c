"""Messages by topic and id, or by a filter."""

from typing import Any

import msgspec
import numpy as np

from dwell.batch.batch import Batch
from dwell.errors import InvalidInput, InvalidLimit, StoreDamaged
from dwell.given import columns, values
from dwell.message import MAX_BATCH_BYTES, Message
from dwell.queue import changes
from dwell.queue.changes import Change
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.server.http.answer import Answer, Refusal
from dwell.server.http.call import Call
from dwell.server.http.encoding import MOST_PAGE_BYTES, Rows
from dwell.server.http.filters import matcher_of, selection_of
from dwell.server.http.media import Media
from dwell.server.http.messageheaders import request_of
from dwell.server.http.paging import answer_bytes, first_of, place_of, place_text
from dwell.server.http.results import results_answer
from dwell.server.http.rows import message_rows
from dwell.server.http.schemas.answers import Bulk
from dwell.server.http.schemas.answers import Named as NamedAnswer
from dwell.server.http.schemas.requests import (
    CancelRequest,
    ChangeRequest,
    Filter,
    GetRequest,
    KickRequest,
    NamedRequest,
    RescheduleRequest,
)
from dwell.server.http.spans import span
from dwell.wire.columns import columns_of_batch


async def cancel(call: Call) -> Answer:
    """Delete messages that nobody has taken: cancelled, leased or unknown."""
    topic, ask = call.allowed_topic(), request_of(call, CancelRequest)
    _one_of(ids=ask.ids, filter=ask.filter)
    if ask.ids is not None:
        _check_ids_alone(call, ask)
        return results_answer(call, await call.queue.cancel(topic, ask.ids, versions=ask.versions))
    return await _bulk(call, topic, ask, changes.cancel())


async def reschedule(call: Call) -> Answer:
    """Change when messages fall due: moved, leased or unknown (also when dead)."""
    topic, ask = call.allowed_topic(), request_of(call, RescheduleRequest)
    _one_of(ids=ask.ids, filter=ask.filter)
    delay = span(ask, "delay")
    _one_of(delay=delay, due=ask.due, due_ms=ask.due_ms, shift_ms=ask.shift_ms)
    due = _due(ask)
    if ask.ids is not None:
        _check_ids_alone(call, ask)
        if ask.shift_ms is not None:
            raise InvalidInput("shift_ms: got it beside ids, expected a filter")
        verb = call.queue.reschedule
        moved = await verb(topic, ask.ids, delay=delay, due=due, versions=ask.versions)
        return results_answer(call, moved)
    if isinstance(ask.due_ms, list):
        raise InvalidInput("due_ms: got a list beside a filter, expected one moment")
    if ask.shift_ms is not None:
        return await _bulk(call, topic, ask, changes.shift(ask.shift_ms))
    (due_ms,) = columns.dues(delay, due, None, 1, call.queue.clock.now_ms()).tolist()
    return await _bulk(call, topic, ask, changes.move(due_ms))


async def kick(call: Call) -> Answer:
    """Make dead messages ready again, with all of their attempts: kicked or unknown."""
    topic, ask = call.allowed_topic(), request_of(call, KickRequest)
    delay = span(ask, "delay")
    columns.one_of(delay=delay, due=ask.due, due_ms=ask.due_ms)
    due = _due(ask)
    if ask.ids is not None:
        if ask.filter is not None:
            raise InvalidInput("filter: got it beside ids, expected one of them")
        _check_ids_alone(call, ask)
        call.is_audited = True
        verb = call.queue.kick
        kicked = await verb(topic, ask.ids, delay=delay, due=due, versions=ask.versions)
        return results_answer(call, kicked)
    if due is not None:
        raise InvalidInput("due: got it without ids, expected a delay")
    how = changes.kick(values.delay_ms(delay or 0), ask.pace, ask.paced)
    return await _bulk(call, topic, ask, how)


async def get(call: Call) -> Answer:
    """Return up to 16 MiB of messages by their ids, null for an unknown or damaged message.

    The answer covers the first ids. ``next`` is the place of the first id that it does not cover,
    where the next request begins, and null when it covers all.
    """
    topic, ask = call.allowed_topic(), call.body(GetRequest)
    ids = columns.any_ids(ask.ids)
    await call.reserve_answer(answer_bytes(len(ids)))
    most_bytes = MAX_BATCH_BYTES if call.asked is Media.COLUMNS else MOST_PAGE_BYTES
    found = await first_of(call.queue, topic, ids, most_bytes)
    following = len(found) if len(found) < len(ids) else None
    damaged = [at for at, one in enumerate(found) if isinstance(one, StoreDamaged)]
    there = [one if isinstance(one, Message) else None for one in found]
    if call.asked is Media.COLUMNS:
        told = columns_of_batch(Batch.of([message for message in there if message is not None]))
        told.next, told.damaged = following, damaged
        return call.made_answer(Answer(msgspec.msgpack.encode(told), Media.COLUMNS))
    rows = await Rows.of(there, call.asked, MOST_PAGE_BYTES)
    following = rows.count if rows.count < len(ids) else None
    damaged = [at for at in damaged if at < rows.count]
    return call.made_answer(rows.answer(next=following, damaged=damaged))


async def get_one(call: Call) -> Answer:
    """Return one message by its id."""
    topic, id_ = call.allowed_topic(), call.path["id"]
    await call.reserve_answer(answer_bytes(1))
    message = await call.queue.get(topic, id_)
    if message is None:
        raise Refusal(404, f"id: topic {topic!r} has no message {id_!r:.80}")
    return call.made_answer(call.answer(message_rows([message])[0]))


async def cancel_one(call: Call) -> Answer:
    """Delete one message, unless it is leased: cancelled, leased or unknown."""
    result = await call.queue.cancel(call.allowed_topic(), call.path["id"])
    return results_answer(call, result)


async def named(call: Call) -> Answer:
    """Return topic and id of messages by their numbers."""
    ask = call.body(NamedRequest)
    names = await call.queue.named(ask.numbers)
    return call.answer(NamedAnswer([name and list(name) for name in names]))


def _due(ask: RescheduleRequest | KickRequest) -> Any:
    """Return the due of all messages, a column of dues, or None."""
    if ask.due is not None:
        return ask.due
    return np.array(ask.due_ms, np.int64) if isinstance(ask.due_ms, list) else ask.due_ms


def _one_of(**given: object) -> None:
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        said = " and ".join(names) or "none"
        raise InvalidInput(f"body: got {said}, expected one of {', '.join(given)}")


def _check_ids_alone(call: Call, ask: ChangeRequest) -> None:
    """Refuse fields that need a filter if ids are given; with ids only schedules are audited."""
    call.is_audited = call.path["topic"] == SCHEDULES
    call.change = {"ids": len(ask.ids or ())}
    for name in ("cursor", "dry_run", "pace", "paced"):
        if getattr(ask, name, None):
            raise InvalidInput(f"{name}: got it beside ids, expected a filter")


async def _bulk(call: Call, topic: str, ask: ChangeRequest, how: Change) -> Answer:
    """Do a verb to messages that match; all are found before the first one is changed."""
    if ask.versions is not None:
        raise InvalidInput("versions: got them beside a filter, expected ids")
    wanted, start = ask.filter or Filter(), place_of(ask.cursor)
    which = selection_of(wanted, wanted.headers, wanted.states)
    if start is not None and start.state not in (which.states or how.states):
        raise values.refusal(InvalidLimit, "cursor", ask.cursor, "that of the same request")
    # A reschedule that continued after a cut would find moved messages again, so it is not cut.
    is_cut = ask.dry_run or how.verb != "reschedule"
    call.is_audited = not ask.dry_run
    call.change = {"filter": msgspec.to_builtins(wanted)}
    async with call.looking():
        changed, following = await changes.change(
            call.queue.store,
            topic,
            matcher_of(which, is_cut=is_cut),
            how,
            ask.limit,
            start=start,
            dry_run=ask.dry_run,
            check=call.check_again,
        )
    results = {str(result): count for result, count in changed.results.items()}
    call.change = {**call.change, "matched": changed.matched, "results": results}
    cursor = None if following is None else place_text(following)
    return call.answer(Bulk(changed.matched, results, changed.is_complete, cursor))
