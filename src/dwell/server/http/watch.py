"""Watching: the data of the console as server-sent events, sent again after each change."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
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

#: How often to look for changes, and how long a stream may be silent.
_LOOK_S = 0.4
_SILENCE_S = 15.0
#: How many may watch at a time.
MOST_WATCHERS = 500

_Views = dict[str, Callable[[], Awaitable[object]]]
#: The kind of an event, and its data in JSON.
_Told: TypeAlias = tuple[str, Raw]


async def watch(call: Call) -> Answer:
    """Send the requested views as server-sent events: at once, and after each change.

    An event has the name of its view, and the data that the view's own endpoint returns. The stream
    ends when the caller loses the right to a view.
    """
    views = _views(call, call.body(WatchRequest))
    board = call.service.board
    if board.watchers >= MOST_WATCHERS:
        raise ServerBusy(f"{board.watchers} streams are watched, at most {MOST_WATCHERS} may")
    call.check_waiting(len(call.waits) + len(call.waits.streams))
    # Refuse here, before the answer begins; the stream counts as long as it runs.
    with call.watching(MOST_WATCHERS), call.stream():
        pass
    answer = Answer(b"", "text/event-stream; charset=utf-8")
    answer.headers["cache-control"] = "no-store"
    # Otherwise nginx keeps events until its buffer is full.
    answer.headers["x-accel-buffering"] = "no"
    answer.parts = counted(call, _events(call, views))
    return answer


def _views(call: Call, ask: WatchRequest) -> _Views:
    """Return a function for each requested view; raises Forbidden without the right to it."""
    views: _Views = {}
    board, overview, load = call.service.board, ask.overview, ask.load
    if overview is not None:
        views["overview"] = lambda: board.told(look_of(call, overview), call.token)
    if load is not None:
        call.allow([values.topic(topic) for topic in load.topics])
        views["load"] = lambda: load_of(call, load, partial(board.load, whose=call.token))
    if ask.holders:
        views["holders"] = lambda: board.holders(call.prefixes(), call.token)
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
                del event
    except (AccessDenied, ServerBusy):
        return
    finally:
        board.watchers -= 1
        del streams[name]


async def _changes(call: Call, views: _Views) -> AsyncIterator[bytes]:
    # Kept as the object of the board, which many streams share; the event is a copy.
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
    """Return the present data of a view, or its error; raises AccessDenied."""
    try:
        found = await find()
    except AccessDenied:
        raise
    except DwellError as error:
        kind, found = "problem", problem_of(error)
    return kind, found if isinstance(found, Raw) else Raw(msgspec.json.encode(found))
