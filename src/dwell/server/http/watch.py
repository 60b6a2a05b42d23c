"""Watching: what the board shows, as server-sent events, sent anew when it has changed."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import msgspec
from msgspec import Raw

from dwell.errors import AccessDenied, DwellError, ServerBusy
from dwell.given import values
from dwell.server.http.answer import Answer
from dwell.server.http.board import load_of, look_of
from dwell.server.http.call import Call
from dwell.server.http.health import health_of
from dwell.server.http.push import counted, event_of
from dwell.server.http.schemas.board import WatchRequest
from dwell.server.http.waits import Stream
from dwell.wire.problems import problem_of

#: How often it is looked whether there is anything new, and how long a stream is silent at most.
_LOOK_S = 0.4
_SILENCE_S = 15.0
#: How many may watch at a time.
MOST_WATCHERS = 500

_Views = dict[str, Callable[[], Awaitable[object]]]
#: The kind of an event, and its data in JSON.
_Told: TypeAlias = tuple[str, Raw]


async def watch(call: Call) -> Answer:
    """Send what is asked for as server-sent events: at once, and whenever it has changed.

    Each is an event of the name that it was asked for by, with the data of the endpoint that
    answers it once. It ends when the caller has no right to it any more.
    """
    views = _views(call, call.body(WatchRequest))
    board = call.service.board
    if board.watchers >= MOST_WATCHERS:
        raise ServerBusy(f"{board.watchers} streams are watched, at most {MOST_WATCHERS} may")
    call.check_waiting(len(call.waits) + len(call.waits.streams))
    # Refused here, while there is an answer to say so; counted for as long as the stream runs.
    with call.watching(MOST_WATCHERS), call.stream():
        pass
    answer = Answer(b"", "text/event-stream; charset=utf-8")
    answer.headers["cache-control"] = "no-store"
    # nginx would keep what is sent until it has a buffer full of it.
    answer.headers["x-accel-buffering"] = "no"
    answer.parts = counted(call, _events(call, views))
    return answer


def _views(call: Call, ask: WatchRequest) -> _Views:
    """Return what finds out each thing that is asked for; refuses who may not see it."""
    views: _Views = {}
    board, overview, load = call.service.board, ask.overview, ask.load
    if overview is not None:
        views["overview"] = lambda: board.told(look_of(call, overview))
    if load is not None:
        call.allow([values.topic(topic) for topic in load.topics])
        views["load"] = lambda: load_of(call, load, board.load)
    if ask.holders:
        views["holders"] = lambda: board.holders(call.prefixes())
    if ask.health:
        call.allow(None)
        views["health"] = lambda: health_of(call)
    call.prefixes()
    return views


async def _events(call: Call, views: _Views) -> AsyncGenerator[bytes]:
    board, streams, name = call.service.board, call.waits.streams, secrets.token_hex(16)
    streams[name] = Stream(0)
    board.watchers += 1
    try:
        with call.watching(MOST_WATCHERS):
            async for event in _changes(call, views):
                yield event
    except (AccessDenied, ServerBusy):
        return
    finally:
        board.watchers -= 1
        del streams[name]


async def _changes(call: Call, views: _Views) -> AsyncIterator[bytes]:
    # Kept as the board has it, which is the same for many streams; the event is a copy.
    loop, sent, latest_s = asyncio.get_running_loop(), dict[str, _Told](), 0.0

    def check() -> None:
        call.prefixes()

    while not call.waits.is_over and not call.delivery.is_ended:
        for kind, find in views.items():
            told = await _told(kind, find)
            if sent.get(kind) != told:
                sent[kind], latest_s = told, loop.time()
                yield event_of(*told)
        if loop.time() - latest_s >= _SILENCE_S:
            latest_s = loop.time()
            yield b": still here\n\n"
        await call.waits.wait(call.delivery, asyncio.sleep(_LOOK_S), check)


async def _told(kind: str, find: Callable[[], Awaitable[object]]) -> _Told:
    """Return what there is to see now, or why it cannot be seen; raises AccessDenied."""
    try:
        found = await find()
    except AccessDenied:
        raise
    except DwellError as error:
        kind, found = "problem", problem_of(error)
    return kind, found if isinstance(found, Raw) else Raw(msgspec.json.encode(found))
