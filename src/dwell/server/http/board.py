"""The board over HTTP: what all who look at a server see, each of it what they may administer."""

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import TypeAlias

from dwell.batch.spans import Spans
from dwell.batch.stats import Holder
from dwell.given import values
from dwell.message import I64
from dwell.server.board.board import Look
from dwell.server.http.answer import Answer
from dwell.server.http.call import Call
from dwell.server.http.schemas.board import (
    HoldersAnswer,
    HoldersQuery,
    LoadAnswer,
    LoadRequest,
    OldestAnswer,
    OverviewQuery,
    RightsAnswer,
)

_Count: TypeAlias = Callable[[Sequence[str], Spans], Awaitable[I64]]


async def rights(call: Call) -> Answer:
    """Say what the caller may do, and on which topics."""
    call.allow(())
    grant = call.grant
    answer = RightsAnswer(
        not call.service.tokens.is_open,
        list(grant.put),
        list(grant.take),
        list(grant.admin),
        version("dwell"),
        call.queue.clock.now_ms(),
    )
    return call.answer(answer)


async def overview(call: Call) -> Answer:
    """Show topics with their counts, rates and lateness: those that the caller may administer."""
    look = look_of(call, call.query(OverviewQuery))
    return call.answer(await call.service.board.overview(look))


def look_of(call: Call, ask: OverviewQuery) -> Look:
    """Return what is asked for, of what the caller may administer."""
    return Look(call.prefixes(), ask.match, ask.sort, ask.offset, ask.limit)


async def load(call: Call) -> Answer:
    """Count what will fall due, span after span."""
    return call.answer(await load_of(call, call.body(LoadRequest), call.queue.store.count_due))


async def load_of(call: Call, ask: LoadRequest, count: _Count) -> LoadAnswer:
    """Return how much falls due when, of topics that the caller may administer."""
    topics: Sequence[str] = [values.topic(topic) for topic in ask.topics]
    spans, prefixes = Spans(ask.start_ms, ask.span_ms, ask.count), call.prefixes()
    call.allow(topics)
    if not topics and "" not in prefixes:
        topics = await call.service.board.names(prefixes)
        if not topics:
            return LoadAnswer(spans.none().tolist())
    return LoadAnswer((await count(topics, spans)).tolist())


async def oldest(call: Call) -> Answer:
    """Say since when the message that waits longest for a taker has been due, by topic."""
    prefixes = call.prefixes()
    found = await call.queue.oldest_ready()
    return call.answer(OldestAnswer({n: ms for n, ms in found.items() if n.startswith(prefixes)}))


async def holders(call: Call) -> Answer:
    """Say who has how many messages under lease, and how many takers wait, by topic."""
    ask = call.query(HoldersQuery)
    return call.answer(_seen(call, await call.queue.holders(ask.limit)))


async def holders_of(call: Call) -> HoldersAnswer:
    """Return the same as the board has it."""
    return _seen(call, await call.service.board.holders())


def _seen(call: Call, found: list[Holder]) -> HoldersAnswer:
    prefixes, waiting = call.prefixes(), call.queue.waiting
    return HoldersAnswer(
        [holder for holder in found if holder.topic.startswith(prefixes)],
        {name: count for name, count in waiting.items() if name.startswith(prefixes)},
    )
