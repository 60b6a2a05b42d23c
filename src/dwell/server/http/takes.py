"""Taking messages, and the verbs by receipt."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.puts import Puts
from dwell.batch.results import Results
from dwell.errors import InvalidInput
from dwell.given import columns, values
from dwell.given.receipts import given_receipts
from dwell.given.values import Delay, Millis
from dwell.message import MAX_BATCH_MESSAGES, U8, U64, Result
from dwell.queue.calling import calling_now
from dwell.server.http.answer import Answer
from dwell.server.http.call import MOST_ANSWER_BYTES, MOST_WAITING_TOPICS, Call, decoded
from dwell.server.http.encoding import Rows, is_small, size_of
from dwell.server.http.follows import acked_then, follow_up_of
from dwell.server.http.media import Media
from dwell.server.http.outcomes import results_of
from dwell.server.http.paging import answer_bytes, cursor_of, page_answer, read_in_rows, rows_answer
from dwell.server.http.results import results_answer
from dwell.server.http.rows import as_lines, message_rows
from dwell.server.http.schemas.answers import EndAnswer, Taken
from dwell.server.http.schemas.requests import (
    MOST_WAIT_MS,
    AckRequest,
    BuryRequest,
    OwnerQuery,
    PeekQuery,
    ReleaseRequest,
    TakenRequest,
    TakeRequest,
    TakeWhereRequest,
    TouchRequest,
)
from dwell.server.http.spans import span
from dwell.server.tokens import Right
from dwell.wire.columns import (
    ReceiptColumns,
    ResultColumns,
    columns_of_batch,
    unpacked,
    unpacked_receipts,
)
from dwell.wire.rows import span_of

#: A take of more messages or topics than this is large.
_LARGE_TAKE = 100

_encoder = msgspec.msgpack.Encoder()


async def take(call: Call) -> Answer:
    """Take messages that are due, waiting for the first one at most ``wait_ms``."""
    ask = call.body(TakeRequest)
    topics = [ask.topics] if isinstance(ask.topics, str) else ask.topics
    call.allow(topics)
    lease = lease_of(ask)
    await call.undo_takes(ask.poll)
    if call.is_undone():
        # Its client has sent it again, and had the answer of that.
        return await batch_answer(call, Batch.empty())
    if ask.ids is not None:
        if len(topics) != 1:
            raise InvalidInput(f"topics: got {len(topics)} beside ids, expected one topic")
        how: dict[str, Any] = {"lease": lease, "owner": ask.owner, "versions": ask.versions}
        async with call.large_takes:
            # Rights may have ended while it waited.
            call.allow(topics)
            batch = await call.queue.take_ids(topics[0], ask.ids, **how)
    elif ask.versions is not None:
        raise InvalidInput("versions: got them without ids, expected both")
    else:
        batch = await _take_due(call, ask, topics, lease)
    call.note_taken(batch)
    return await batch_answer(call, batch)


async def _take_due(
    call: Call, ask: TakeRequest, topics: Sequence[str], lease: Delay | None
) -> Batch:
    """Take due messages, at once if possible; wait only if no message is due."""
    take = partial(call.queue.take, topics, ask.limit, lease=lease, owner=ask.owner)
    wait_ms = values.delay_ms(span(ask, "wait") or 0, "wait", MOST_WAIT_MS)
    if not wait_ms or not call.queue.would_wait(topics, ask.limit):
        if max(ask.limit, len(topics)) > _LARGE_TAKE:
            async with call.large_takes:
                call.allow(topics)
                batch = await take()
        else:
            batch = await take()
        if len(batch) or not wait_ms:
            return batch
    check_waiting_topics(topics)
    with call.waiting(len(topics)):
        work = take(wait=Millis(wait_ms))
        check = partial(call.allow, topics)
        name = (call.token, ask.poll) if ask.poll else None
        waited = await call.waits.wait(call.delivery, work, check, name)
    return Batch.empty() if waited is None else waited


def check_waiting_topics(topics: Sequence[str]) -> None:
    """Refuse to wait on too many topics; raises InvalidInput."""
    if len(topics) > MOST_WAITING_TOPICS:
        raise InvalidInput(
            f"topics: got {len(topics)} to wait on, expected at most {MOST_WAITING_TOPICS}"
        )


def lease_of(ask: TakeRequest | TakeWhereRequest) -> Delay | None:
    """Return the requested lease, given in either of its forms."""
    if ask.lease_ms:
        if ask.lease is not None:
            raise InvalidInput("lease: got lease and lease_ms together, expected one of them")
        return Millis(ask.lease_ms)
    return span_of(ask.lease)


async def end_wait(call: Call) -> Answer:
    """End the wait of a take by the same token with that ``poll``; it answers with its messages."""
    return call.answer(EndAnswer(call.waits.end((call.token, call.path["poll"]))))


async def held(call: Call) -> Answer:
    """Return the messages that an owner holds again, from after ``cursor``, about 16 MiB at most.

    There are more if the answer has a cursor; in NDJSON that is the header ``dwell-cursor``.
    """
    ask = call.query(OwnerQuery)
    after = cursor_of(ask.cursor)
    await call.reserve_answer(MOST_ANSWER_BYTES)
    page_of = partial(call.queue.store.held_page, values.owner(ask.owner), after)
    if call.asked is Media.COLUMNS:
        return await page_answer(call, await page_of(MAX_BATCH_MESSAGES))
    page, rows = await read_in_rows(page_of, MAX_BATCH_MESSAGES, call.asked)
    return rows_answer(call, rows, page.cursor)


async def peek(call: Call) -> Answer:
    """Look at the messages that a take would give first, and leave them as they are."""
    topic, limit = call.allowed_topic(), call.query(PeekQuery).limit
    await call.reserve_answer(answer_bytes(limit))
    return await batch_answer(call, await call.queue.peek(topic, limit))


async def batch_answer(call: Call, batch: Batch) -> Answer:
    """Return messages in the form that the caller asks for.

    Rows that do not fit an answer are left out, and released if they were taken.
    """
    form = call.asked
    is_large = not is_small(batch)
    if is_large:
        await call.reserve_answer(2 * size_of(batch), is_held=True)
    if form is Media.COLUMNS:
        return call.made_answer(Answer(_encoder.encode(columns_of_batch(batch)), form))
    if is_large:
        rows = await Rows.of(batch, form)
        if rows.count < len(batch):
            call.give_back_from(rows.count)
        return call.made_answer(rows.answer())
    if form is Media.NDJSON:
        return call.made_answer(Answer(as_lines(message_rows(batch)), form))
    rows_ = message_rows(batch, packed=form is Media.MSGPACK)
    return call.made_answer(call.answer({"messages": rows_}))


# --- by receipt -------------------------------------------------------------------------------


_Verb: TypeAlias = Callable[..., Awaitable[Results | Result]]
#: The arguments of the verb for each message.
_Each: TypeAlias = Mapping[str, np.ndarray]
_NOTHING: _Each = MappingProxyType({})

#: Times as the queue takes them in columns.
_MILLIS = np.dtype("m8[ms]")


async def ack(call: Call) -> Answer:
    """Say that messages are done, and forget them: acked or stale."""
    if call.given is Media.COLUMNS:
        receipts, how = _receipt_columns(call)
        then = await follow_up_of(call, how, len(receipts))
        return _codes(await _acked(call, receipts, how.results, then))
    ask = call.body(AckRequest)
    then = await follow_up_of(call, ask, len(ask.receipts))
    return results_answer(call, await _acked(call, ask.receipts, results_of(call, ask), then))


async def _acked(
    call: Call, given: list[str] | U64, results: Sequence[object] | None, then: Puts | None
) -> Results | Result:
    """Ack messages; their results count in the caller's quota."""
    if then is not None:
        own = columns.results(results or [None], len(given))
        call.service.check_body(len(own[0] or b""))
        return await _done(
            call, given_receipts(given), lambda what: acked_then(call, what, own, then)
        )
    if results is None:
        return await _done(call, given, call.queue.ack)
    own = columns.results(results, len(given))
    sizes = [len(one) for one in own if one is not None]
    call.service.check_body(max(sizes, default=0))
    column = np.empty(len(own), object)
    column[:] = own
    receipts = given_receipts(given)
    if not sizes or await call.has_done(len(own)):
        return await _done(call, receipts, call.queue.ack, {"results": column})
    async with call.growth_room(sum(sizes)):
        return await _done(call, receipts, call.queue.ack, {"results": column})


async def release(call: Call) -> Answer:
    """Give messages back, due now or later: released, buried or stale."""
    verb: _Verb
    if call.given is Media.COLUMNS:
        receipts, how = _receipt_columns(call)
        retry = how.delay_ms is None
        told_ms = 0 if how.delay_ms is None else how.delay_ms
        delay_ms = unpacked(told_ms, len(receipts), np.int64, "delay_ms")
        each: _Each = {"delay": delay_ms.view(_MILLIS)}
        verb = partial(call.queue.release, retry=retry, counted=how.counted, priority=how.priority)
        return _codes(await _done(call, receipts, *_own_errors(verb, how.error, each)))
    ask = call.body(ReleaseRequest)
    verb = partial(call.queue.release, retry=ask.retry, counted=ask.counted, priority=ask.priority)
    if not isinstance(ask.delay_ms, list):
        each = {}
        verb = partial(verb, delay=span(ask, "delay") or 0)
    elif ask.delay is None:
        each = {"delay": np.array(ask.delay_ms, _MILLIS)}
    else:
        raise InvalidInput("delay: got delay and delay_ms together, expected one of them")
    verb, each = _own_errors(verb, ask.error, each)
    given = given_receipts(ask.receipts) if each else ask.receipts
    return results_answer(call, await _done(call, given, verb, each))


def _own_errors(
    verb: _Verb, error: str | list[str | None] | None, each: _Each
) -> tuple[_Verb, _Each]:
    """Return a verb with the errors as arguments: one for all, or a column."""
    if isinstance(error, list):
        return verb, {**each, "error": np.array(error, object)}
    return partial(verb, error=error), each


async def touch(call: Call) -> Answer:
    """Extend leases: touched or stale."""
    if call.given is Media.COLUMNS:
        receipts, how = _receipt_columns(call)
        lease = Millis(how.lease_ms) if how.lease_ms else None
        return _codes(await _done(call, receipts, partial(call.queue.touch, lease=lease)))
    ask = call.body(TouchRequest)
    verb = partial(call.queue.touch, lease=span(ask, "lease"))
    return results_answer(call, await _done(call, ask.receipts, verb))


async def bury(call: Call) -> Answer:
    """Set messages aside as dead: buried or stale."""
    if call.given is Media.COLUMNS:
        receipts, how = _receipt_columns(call)
        verb = partial(call.queue.bury, reason=how.error, priority=how.priority)
        return _codes(await _done(call, receipts, verb))
    ask = call.body(BuryRequest)
    verb = partial(call.queue.bury, reason=ask.reason, priority=ask.priority)
    return results_answer(call, await _done(call, ask.receipts, verb))


async def taken(call: Call) -> Answer:
    """Return the topics of the messages whose receipts are still valid."""
    ask = call.body(TakenRequest)
    each = _of_the_callers(call, await call.queue.taken_from(given_receipts(ask.receipts)))
    return call.answer(Taken(sorted({topic for topic in each if topic is not None}), each))


def _receipt_columns(call: Call) -> tuple[U64, ReceiptColumns]:
    how = decoded(call.data, ReceiptColumns, Media.COLUMNS)
    return unpacked_receipts(how.receipts), how


async def _done(
    call: Call, given: list[str] | U64, verb: _Verb, each: _Each = _NOTHING
) -> Results | Result:
    """Apply a verb to messages if the caller has the right on their topics; a single one is joined.

    A receipt of another topic is stale, like a receipt whose message does not exist. ``each`` has
    the columns of arguments, by name. Raises InvalidInput if a column and the receipts differ in
    length.
    """
    for name, column in each.items():
        if len(column) != len(given):
            raise InvalidInput(f"{name}: got {len(column)} values, expected {len(given)}")
    what: Any = given[0] if isinstance(given, list) and len(given) == 1 else given
    if call.service.tokens.is_open or not len(given):
        if call.service.audit is not None and len(given):
            _mark_change(call, await call.queue.taken_from(given_receipts(given)))
        return await verb(what, **each)
    receipts = given_receipts(given)
    codes = await _outcomes(call, len(receipts))
    topics = _of_the_callers(call, await call.queue.taken_from(receipts))
    _mark_change(call, topics)
    # A receipt that is not good now could be by the time of the verb, and another's: it is stale,
    # unless this request has done it before.
    good = np.array([topic is not None for topic in topics], np.bool_) & (codes == 0)
    codes[(codes == 0) & ~good] = Result.STALE
    if good.any():
        if (calling := calling_now()) is not None:
            calling.skip(good)
        done = await verb(receipts[good], **{name: part[good] for name, part in each.items()})
        assert isinstance(done, Results)
        codes[good] = done.codes
    return Results(codes)


def _mark_change(call: Call, topics: list[str | None]) -> None:
    """Note changes of schedules by receipt for the audit log."""
    call.mark_change(sorted({topic for topic in topics if topic is not None}))


async def _outcomes(call: Call, count: int) -> U8:
    """Return the earlier results for each message of a repeated request, 0 without any."""
    calling = calling_now()
    if calling is None or not calling.is_again:
        return np.zeros(count, np.uint8)
    return await call.queue.store.outcomes(calling.coming(count))


def _of_the_callers(call: Call, topics: list[str | None]) -> list[str | None]:
    """Return topics of receipts, None in place of those on which the caller has no right."""
    may = {topic: topic is not None and call.may(topic, Right.TAKE) for topic in set(topics)}
    return [topic if may[topic] else None for topic in topics]


def _codes(results: Results | Result) -> Answer:
    assert isinstance(results, Results)
    data = _encoder.encode(ResultColumns(results.codes.tobytes()))
    return Answer(data, Media.COLUMNS)
