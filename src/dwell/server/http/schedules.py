"""Schedules over HTTP: rules that put messages repeatedly, by a calendar.

They belong to the server, not to a topic. To change them, a token needs the admin right on the
topic of the schedules, and the right to put into the topic that a schedule names.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from dwell.batch.blobs import sizes_of
from dwell.batch.puts import Puts
from dwell.errors import InvalidSchedule, StoreDamaged
from dwell.given import values
from dwell.message import Result
from dwell.queue.schedules.schedule import TOPIC, Planned, Schedule, planned
from dwell.queue.schedules.schedules import Schedules
from dwell.queue.schedules.words import changed, made
from dwell.server.http.answer import Answer, Refusal
from dwell.server.http.call import Call
from dwell.server.http.filters import MOST_LOOK_S
from dwell.server.http.messageheaders import request_of
from dwell.server.http.paging import answer_bytes, cursor_of
from dwell.server.http.schemas.answers import (
    PastRunsAnswer,
    PreviewAnswer,
    PutResult,
    RunRow,
    ScheduleAnswer,
    ScheduleRow,
    SchedulesPage,
)
from dwell.server.http.schemas.requests import (
    PastRunsQuery,
    PreviewRequest,
    RunsQuery,
    ScheduleChange,
    ScheduleRequest,
    SchedulesQuery,
)
from dwell.server.http.spans import span
from dwell.server.parts import in_turns
from dwell.wire.rows import Line, body_of

#: The cost of a byte of a schedule in a turn, as all of it is checked again.
_BYTE_COST = 16
_SPANS = ("every", "jitter", "grace", "lease", "ttl")
_PLAIN = (
    *("cron", "dialect", "rrule", "zone", "start", "end", "misfire", "key", "headers", "priority"),
    *("max_attempts", "overlap", "days_off", "when_off"),
)


async def put_schedule(call: Call) -> Answer:
    """Put a schedule, also in place of another: created, replaced, or kept as it was the same."""
    name, ask = _name(call), request_of(call, ScheduleRequest)
    _allow_also(call, [ask.topic])
    call.service.check_puts()
    words: dict[str, Any] = {word: getattr(ask, word) for word in _PLAIN}
    spans: dict[str, Any] = {
        word: found for word in _SPANS if (found := span(ask, word)) is not None
    }
    body = body_of(Line(body=ask.body, body_base64=ask.body_base64))
    await _check_room(call, ask.topic)
    words |= spans
    schedules = _checked(call, lambda old, new: [new])
    new = None
    if call.service.quotas.has(call.token):
        new = made(name, ask.topic, body, words, call.queue.clock.now_ms())
    put = partial(schedules.put, name, ask.topic, body, **words)
    return await _kept(call, new, put)


async def change_schedule(call: Call) -> Answer:
    """Change the fields of a schedule that the body names: replaced, kept if equal, or unknown."""
    name, ask = _name(call), request_of(call, ScheduleChange)
    schedules = _checked(call, lambda old, new: [old, new])
    topics = [] if ask.topic is UNSET else [ask.topic]
    if (found := await schedules.get(name)) is not None:
        topics.append(found.schedule.topic)
    if topics:
        _allow_also(call, topics)
    if ask.topic is not UNSET:
        await _check_room(call, ask.topic)
    words: dict[str, Any] = {
        word: said for word in ("topic", *_PLAIN) if (said := getattr(ask, word)) is not UNSET
    }
    for word in _SPANS:
        said = {one: getattr(ask, one) for one in (word, f"{word}_ms")}
        if any(value is not UNSET for value in said.values()):
            plain = {one: None if value is UNSET else value for one, value in said.items()}
            words[word] = span(SimpleNamespace(**plain), word)
    if ask.body or ask.body_base64 is not None:
        words["body"] = body_of(Line(body=ask.body, body_base64=ask.body_base64))
    new = None
    if found is not None and call.service.quotas.has(call.token):
        new = changed(found.schedule, words, call.queue.clock.now_ms())
    return await _kept(call, new, partial(schedules.change, name, **words))


async def get_schedule(call: Call) -> Answer:
    """Return a schedule, and its next ``runs`` as moments in its zone."""
    ask, found = call.query(RunsQuery), await _existing(call)
    runs = await call.queue.schedules.next(found.schedule.name, ask.runs) if ask.runs else []
    row = msgspec.structs.replace(_row(found), runs=[run.isoformat() for run in runs])
    return call.made_answer(call.answer(row))


async def preview(call: Call) -> Answer:
    """Return when a schedule with this rule would fire next; nothing is put."""
    ask = request_of(call, PreviewRequest)
    words: dict[str, Any] = {word: getattr(ask, word) for word in PreviewRequest.__struct_fields__}
    del words["every_ms"]
    found = await call.queue.schedules.preview(**{**words, "every": span(ask, "every")})
    return call.answer(PreviewAnswer([run.isoformat() for run in found.runs], found.cron))


async def past_runs(call: Call) -> Answer:
    """Return the last messages of a schedule, and what became of each, from the event log.

    A request searches for a second at most.
    """
    found = await _existing(call)
    _allow_also(call, [found.schedule.topic])
    name, ask = found.schedule.name, call.query(PastRunsQuery)
    runs, is_whole = await call.queue.schedules.runs(name, ask.count, within=MOST_LOOK_S)
    rows = msgspec.convert(runs, list[RunRow], from_attributes=True)
    return call.made_answer(call.answer(PastRunsAnswer(rows, is_whole)))


async def list_schedules(call: Call) -> Answer:
    """List the schedules of one state by when they fire next, from after ``cursor``.

    They are without their bodies and headers, which the schedule itself has.
    """
    ask = call.query(SchedulesQuery)
    state = values.state(ask.state)
    page = await call.queue.scan(TOPIC, state, cursor=cursor_of(ask.cursor), limit=ask.limit)
    rows = []
    async for message in in_turns(page.messages, _BYTE_COST * sizes_of(page.messages.bodies)):
        try:
            row = _row(planned(message))
            rows.append(msgspec.structs.replace(row, body=None, body_base64=None, headers={}))
        except InvalidSchedule:
            continue
    return call.answer(SchedulesPage(rows, str(page.cursor) if page.cursor else None))


async def remove_schedule(call: Call) -> Answer:
    """Delete a schedule: cancelled or unknown. The messages that it has put stay."""
    return _said(call, await _checked(call).remove(_name(call)))


async def pause_schedule(call: Call) -> Answer:
    """Pause a schedule: replaced, kept if it was paused already, or unknown."""
    return _said(call, await _checked(call).pause(_name(call)))


async def resume_schedule(call: Call) -> Answer:
    """Resume a schedule from now on: replaced, kept or unknown."""
    return _said(call, await _checked(call).resume(_name(call)))


async def run_schedule(call: Call) -> Answer:
    """Put the message of a schedule at once, even if the schedule is paused: created.

    The schedule's next run does not change.
    """
    found = await _existing(call)
    topic = found.schedule.topic
    _allow_also(call, [topic])
    call.service.check_puts()
    row = found.schedule.row_now(call.queue.clock.now_ms(), "")
    # Its key, headers and id are stored, too.
    async with call.room(topic, 1, Puts.of_rows(topic, [row]).size_bytes) as room:
        put = await call.queue.schedules.run(found)
        if room is not None:
            room.done(np.array([put.result], np.uint8))
    call.change = {**call.change, "id": put.id, "result": str(put.result)}
    return call.made_answer(call.answer(PutResult(put.id, str(put.result), put.number)))


def _name(call: Call) -> str:
    """Return the schedule that the path names."""
    return values.topic(call.path["name"], "name")


async def _existing(call: Call) -> Planned:
    """Return the schedule that the path names, as stored; raises Refusal."""
    name = _name(call)
    # It is held while its moments wait to be computed.
    await call.reserve_answer(answer_bytes(1))
    found = await call.queue.schedules.get(name)
    if found is None:
        raise Refusal(404, f"name: there is no schedule {name!r}")
    return found


def _checked(
    call: Call,
    concerned: Callable[[Schedule | None, Schedule | None], Sequence[Schedule | None]] = (
        lambda old, new: ()
    ),
) -> Schedules:
    """Return the schedules of the queue, which check the caller's rights at each change.

    A schedule may change after the first look, and a change may wait for long. ``concerned``
    selects, from the stored schedule and the new one, the schedules into whose topics the caller
    must have the right to put.
    """

    def check(old: Schedule | None, new: Schedule | None) -> None:
        call.authorize()
        topics = [one.topic for one in concerned(old, new) if one is not None]
        if topics:
            _allow_also(call, topics)

    return Schedules(call.queue, check)


def _allow_also(call: Call, topics: Sequence[str]) -> None:
    """Refuse a caller that may not put into the topics of the given schedules."""
    assert call.endpoint.also is not None
    topics = list(dict.fromkeys(map(values.topic, topics)))
    call.change = {"topics": topics}
    call.allow(topics, call.endpoint.also)


async def _check_room(call: Call, topic: str) -> None:
    """Refuse a caller whose quota has no room in a topic; raises StoreFull.

    Messages that the schedule puts later count against no caller.
    """
    async with call.room(topic, 1, 0) as room:
        if room is not None:
            room.refused()


async def _growth_bytes(call: Call, new: Schedule) -> int:
    """Return by how many bytes the store grows with a schedule, which may replace another."""
    try:
        old = await call.queue.get(TOPIC, new.name)
    except StoreDamaged:
        old = None
    old_bytes = 0 if old is None else len(old.id) + len(old.body)
    return max(len(new.name) + len(new.data) - old_bytes, 0)


async def _kept(call: Call, new: Schedule | None, verb: Callable[[], Awaitable[Result]]) -> Answer:
    """Run a verb that stores a schedule, within the caller's quota; ``new`` is None without one."""
    growth_bytes = 0 if new is None else await _growth_bytes(call, new)
    async with call.growth_room(growth_bytes) as room:
        result = await verb()
        if room is not None and result not in (Result.CREATED, Result.REPLACED):
            room.refused()
    return _said(call, result)


def _said(call: Call, result: Result) -> Answer:
    call.change = {**call.change, "result": str(result)}
    return call.answer(ScheduleAnswer(str(result)))


def _row(found: Planned) -> ScheduleRow:
    return msgspec.convert(found.as_dict(), ScheduleRow)
