"""The job protocol: one JSON command a request, ``add``, ``pop``, ``finish`` or ``delete``.

It is the protocol that Youzan published for its delay queue: the caller names every job, an id is
unique over all topics, and every answer has the same shape. A job may also be named by topic and
id, which finds it without a search. One of a topic on which the caller has no right is not there.
"""

from base64 import b64encode
from itertools import repeat

import numpy as np

from dwell.batch.page import Cursor
from dwell.errors import DwellError, InvalidId, InvalidInput
from dwell.given import values
from dwell.message import MAX_ATTEMPTS, MAX_BATCH_MESSAGES, Message, Result, State
from dwell.server.http.answer import Answer
from dwell.server.http.bodies import unpacked
from dwell.server.http.call import MOST_ANSWER_BYTES, Call
from dwell.server.http.media import Media
from dwell.server.http.schemas.answers import CommandAnswer
from dwell.server.http.schemas.requests import Command
from dwell.server.parts import in_turns
from dwell.server.tokens import Right

#: The owner of what this protocol takes, by which it is found after a restart.
OWNER = "command"

#: What a TTR of 0 means, as in the beanstalk protocol.
_LEAST_TTR_MS = 1000

#: Why a job was not added.
_REFUSED = {
    Result.DROPPED: "topic: it is full and drops more jobs",
    Result.LEASED: "id: a consumer has popped the job of this id",
}

#: What a look for an id in a topic counts as in a turn of the event loop.
_LOOK_BYTES = 4096


async def command(call: Call) -> Answer:
    """Do one command of the job protocol: add, pop, finish or delete."""
    ask = call.body(Command)
    try:
        answer = await _VERBS[_verb(ask)](call, ask)
    except DwellError as error:
        answer = CommandAnswer(False, error=f"{type(error).__name__}: {error}", id=ask.id)
    return call.answer(answer)


def _verb(ask: Command) -> str:
    if ask.command not in _VERBS:
        raise values.refusal(InvalidInput, "command", ask.command, " or ".join(_VERBS))
    return ask.command


async def _add(call: Call, ask: Command) -> CommandAnswer:
    topic, id_ = values.topic(ask.topic), _id(ask)
    values.own_id(id_)
    call.allow([topic], Right.PUT)
    call.service.check_puts()
    given = unpacked(ask.body, "body", packed=call.given is Media.MSGPACK)
    if given is None:
        raise InvalidInput("body: got none, expected text or what JSON can say")
    body = values.body(given)
    call.service.check_body(len(body))
    async with call.room(topic, 1, len(body) + len(id_)) as room:
        put = await call.queue.put(
            topic,
            body,
            id=id_,
            delay=float(ask.delay),
            lease=values.Millis(round(ask.ttr * 1000) or _LEAST_TTR_MS),
            max_attempts=MAX_ATTEMPTS,
            on_conflict="replace",
        )
        if room is not None:
            room.done(np.array([put.result], np.uint8))
    return CommandAnswer(put.result not in _REFUSED, error=_REFUSED.get(put.result), id=put.id)


async def _pop(call: Call, ask: Command) -> CommandAnswer:
    topic = values.topic(ask.topic)
    call.allow([topic], Right.TAKE)
    batch = await call.queue.take(topic, owner=OWNER)
    call.note_taken(batch)
    if not len(batch):
        return CommandAnswer(True)
    message = batch[0]
    call.waits.receipts.add(message, call.queue.clock.now_ms())
    try:
        return CommandAnswer(True, id=message.id, value=message.body.decode())
    except UnicodeDecodeError:
        return CommandAnswer(True, id=message.id, value_base64=b64encode(message.body).decode())


async def _finish(call: Call, ask: Command) -> CommandAnswer:
    id_ = _id(ask)
    topic = None if ask.topic is None else values.topic(ask.topic)
    # The receipt at hand may be of an older pop, when the newer one was asked of another server.
    if await _ack(call, _at_hand(call, topic, id_)) or await _ack(
        call, await _held(call, ask, topic, id_)
    ):
        return CommandAnswer(True, id=id_)
    return CommandAnswer(False, error="nobody has taken it, or its TTR is over", id=id_)


def _at_hand(call: Call, topic: str | None, id_: str) -> str | None:
    receipts = call.waits.receipts
    if id_ not in receipts or topic not in (None, receipts[id_].topic):
        return None
    # The same id may have been popped from another's topic since.
    if not call.may(receipts[id_].topic, Right.TAKE):
        return None
    return receipts.pop(id_).receipt


async def _held(call: Call, ask: Command, topic: str | None, id_: str) -> str | None:
    # Most ids that are not at hand are not there: what this owner holds is much to read.
    found = await _find(call, ask, id_, Right.TAKE)
    if found is None or found.state is not State.LEASED:
        return None
    return await _receipt_of(call, topic, id_)


async def _receipt_of(call: Call, topic: str | None, id_: str) -> str | None:
    """Return the receipt of what was popped; None where it is not held, or another's.

    What all callers have popped may be as large as the store, so it is read page by page.
    """
    cursor: Cursor | None = None
    async with call.looking():
        await call.reserve_answer(MOST_ANSWER_BYTES)
        while True:
            page = await call.queue.store.held_page(OWNER, cursor, MAX_BATCH_MESSAGES)
            for at, held_id in enumerate(page.messages.ids):
                of_topic = page.messages.topics[at] if held_id == id_ else ""
                if of_topic and topic in (None, of_topic) and call.may(of_topic, Right.TAKE):
                    return page.messages[at].receipt
            cursor = page.cursor
            if cursor is None:
                return None


async def _ack(call: Call, receipt: str | None) -> bool:
    """Ack what was popped; tell whether the receipt was good."""
    if receipt is None:
        return False
    if not call.service.tokens.is_open or call.service.audit is not None:
        (topic,) = await call.queue.taken_from([receipt])
        # One that is not good now could be by the time of the ack, and another's.
        if topic is None or not call.may(topic, Right.TAKE):
            return False
        call.mark_change([topic])
    return await call.queue.ack(receipt) is Result.ACKED


async def _delete(call: Call, ask: Command) -> CommandAnswer:
    id_ = _id(ask)
    message = await _find(call, ask, id_, Right.PUT)
    if message is None:
        return CommandAnswer(False, error="there is no such job", id=id_)
    call.mark_change([message.topic])
    result = await call.queue.cancel(message.topic, id_)
    if result is Result.LEASED:
        return CommandAnswer(False, error="a consumer has taken it", id=id_)
    return CommandAnswer(result is Result.CANCELLED, id=id_)


async def _find(call: Call, ask: Command, id_: str, right: Right) -> Message | None:
    """Return the job of an id, looking through all the caller's topics where none is named."""
    if ask.topic is not None:
        topic = values.topic(ask.topic)
        return await _get(call, topic, id_, right)
    async with call.looking():
        names = list((await call.queue.stats()).topics)
        async for topic in in_turns(names, repeat(_LOOK_BYTES)):
            message = await _get(call, topic, id_, right)
            if message is not None:
                return message
    return None


async def _get(call: Call, topic: str, id_: str, right: Right) -> Message | None:
    """Return a job of a topic, if the caller may see it before and after it is read."""
    if not call.may(topic, right):
        return None
    message = await call.queue.get(topic, id_)
    return message if call.may(topic, right) else None


def _id(ask: Command) -> str:
    if ask.id is None:
        raise InvalidId("id: got none, expected one that is unique over all topics")
    values.any_id(ask.id)
    return ask.id


_VERBS = {"add": _add, "pop": _pop, "finish": _finish, "delete": _delete}
