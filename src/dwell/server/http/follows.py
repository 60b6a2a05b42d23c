"""Follow-ups: a message that is put in the same step as the ack of another."""

from collections.abc import Sequence

import msgspec

from dwell.batch.puts import Puts
from dwell.batch.results import Results
from dwell.errors import InvalidInput
from dwell.given import values
from dwell.message import U64, Result
from dwell.server.http.call import Call
from dwell.server.http.newrows import rows_in_turns
from dwell.server.http.putrows import row_alone
from dwell.server.http.puts import puts_of_columns
from dwell.server.http.schemas.requests import AckRequest
from dwell.server.tokens import Right
from dwell.wire.columns import ReceiptColumns


async def follow_up_of(call: Call, ask: AckRequest | ReceiptColumns, count: int) -> Puts | None:
    """Return the follow-up of a request that acks ``count`` messages, None without one.

    The caller needs the right put on its topic.
    """
    given = ask.then if isinstance(ask, ReceiptColumns) else _given(ask.then)
    if given is None and not ask.then_topic:
        return None
    if given is None or not ask.then_topic:
        raise InvalidInput("then: expected then and then_topic, or neither")
    if count != 1:
        raise InvalidInput(f"then: got {count} receipts beside it, expected one")
    topic = values.topic(ask.then_topic, "then_topic")
    call.allow((topic,), Right.PUT)
    if not isinstance(given, bytes):
        puts = await puts_of_columns(call, topic, given)
        _check_alone(len(puts))
        return puts
    rows = await rows_in_turns(given, call.given)
    _check_alone(len(rows))
    return Puts.of_rows(topic, [await row_alone(call, topic, rows[0])])


def _check_alone(count: int) -> None:
    if count != 1:
        raise InvalidInput(f"then: got {count} messages, expected one")


def _given(raw: msgspec.Raw) -> bytes | None:
    data = bytes(raw)
    return None if data in (b"", b"null", b"\xc0") else data


async def acked_then(
    call: Call, receipts: U64, results: Sequence[bytes | None], then: Puts
) -> Results:
    """Ack one message and put its follow-up, which counts in the caller's quota.

    It counts as a message only where the acked one did not, so a chain goes on at a full quota. A
    repeat of a request that was done puts nothing, and needs no room. A server that drains puts
    it too: it takes the place of the acked message, and ends the work that has begun.
    """
    if await call.has_done(1):
        return await call.queue.ack_puts(receipts, results, then)
    call.service.check_growth()
    size_bytes = then.size_bytes + sum(len(result) for result in results if result is not None)
    messages = 0
    if call.service.quotas.has(call.token):
        (acked,) = await call.queue.taken_from(receipts)
        messages = int(acked is not None and not call.may(acked, Right.PUT))
    async with call.room(then.topic, messages, size_bytes) as room:
        answer = await call.queue.ack_puts(receipts, results, then)
        if room is not None and not answer.count(Result.ACKED):
            room.refused()
        return answer
