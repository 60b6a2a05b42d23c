"""What came of messages: the results of acks, in and out."""

import msgspec

from dwell.batch.outcome import GONE, Outcome
from dwell.errors import InvalidInput
from dwell.given import values
from dwell.given.values import Millis
from dwell.server.http.answer import Answer
from dwell.server.http.bodies import check_written, unpacked
from dwell.server.http.call import Call
from dwell.server.http.media import Media
from dwell.server.http.paging import answer_bytes
from dwell.server.http.schemas.answers import OutcomeAnswer
from dwell.server.http.schemas.requests import MOST_WAIT_MS, AckRequest, ResultQuery
from dwell.server.http.spans import span
from dwell.wire.rows import from_base64, text_fields


async def result(call: Call) -> Answer:
    """Return what came of a message: its result if done, the reason if dead, else where it is.

    ``wait`` is how long to wait until it is done, dead or gone, 5 minutes at most. An unknown id is
    answered at once, and so is a wait that the server ends.
    """
    topic, id_, ask = call.allowed_topic(), call.path["id"], call.query(ResultQuery)
    values.any_id(id_)
    wait = span(_Wait(ask.wait, ask.wait_ms or None), "wait") or 0
    wait_ms = values.delay_ms(wait, "wait", MOST_WAIT_MS)
    await call.reserve_answer(answer_bytes(1))
    found = await call.queue.result(topic, id_)
    if wait_ms and not found.is_over and found.state != "unknown":
        call.release_answer()
        with call.waiting(1):
            work = call.queue.result(topic, id_, wait=Millis(wait_ms))
            waited = await call.waits.wait(call.delivery, work, call.check_again)
        found = found if waited is None else waited
        # The first look found the message.
        found = GONE if found.state == "unknown" else found
        call.check_again()
        await call.reserve_answer(2 * len(found.result or b"") + 256, is_held=True)
    return call.made_answer(_answer(call, found))


class _Wait(msgspec.Struct):
    """A span of time in either of its forms."""

    wait: str | None
    wait_ms: int | None


def _answer(call: Call, found: Outcome) -> Answer:
    """Return an outcome; in MessagePack its result is binary data."""
    if call.asked is Media.MSGPACK:
        return call.answer(found)
    own = text_fields("result", found.result)
    return call.answer(OutcomeAnswer(found.state, error=found.error, **own))


def results_of(call: Call, ask: AckRequest) -> list[bytes | None] | None:
    """Return the results of a request, one for each receipt or None; None without any."""
    if ask.results is not None and ask.results_base64 is not None:
        raise InvalidInput("results: got results and results_base64, expected one of them")
    if ask.results_base64 is not None:
        return [_from_base64(text, at) for at, text in enumerate(ask.results_base64)]
    if ask.results is None:
        return None
    packed = call.given is Media.MSGPACK
    return [_result_of(raw, f"results[{at}]", packed) for at, raw in enumerate(ask.results)]


def _result_of(raw: msgspec.Raw, field: str, packed: bool) -> bytes | None:
    begin = bytes(memoryview(raw)[:1])
    if packed or begin in (b'"', b"n"):
        value = unpacked(raw, field, packed=packed)
        return None if value is None else values.body(value, field)
    check_written(raw, field)
    # Any other JSON is kept as it was written.
    return values.body(bytes(raw), field)


def _from_base64(text: str | None, at: int) -> bytes | None:
    if text is None:
        return None
    field = f"results_base64[{at}]"
    return values.body(from_base64(text, field), field)
