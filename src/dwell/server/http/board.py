"""The board over HTTP: what all who look at a server see, each of it what their token covers."""

from collections.abc import Awaitable, Callable, Iterable
from itertools import product
from typing import TypeAlias

from dwell.batch.spans import Spans
from dwell.given import values
from dwell.message import I64
from dwell.server.board.board import MOST_WAITING, Counted, HoldersAnswer, Look
from dwell.server.http.answer import Answer
from dwell.server.http.call import Call
from dwell.server.http.paging import names_after
from dwell.server.http.schemas.board import (
    HoldersQuery,
    LoadAnswer,
    LoadRequest,
    OldestAnswer,
    OverviewQuery,
    RightsAnswer,
)
from dwell.server.http.schemas.requests import TopicsQuery
from dwell.version import VERSION

#: What a row of holders takes at most, nearly always: two names and two numbers.
_ROW_BYTES = 1024

_Count: TypeAlias = Callable[[Counted], Awaitable[I64]]


async def rights(call: Call) -> Answer:
    """Say what the caller may do, and on which topics."""
    grant = call.grant
    answer = RightsAnswer(
        not call.service.tokens.is_open,
        list(grant.put),
        list(grant.take),
        list(grant.read),
        list(grant.admin),
        grant.metrics,
        VERSION,
        call.queue.clock.now_ms(),
    )
    return call.answer(answer)


async def overview(call: Call) -> Answer:
    """Show topics with their counts, rates and lateness: those that the caller may see."""
    look = look_of(call, call.query(OverviewQuery))
    return call.answer(await call.service.board.overview(look, call.token))


def look_of(call: Call, ask: OverviewQuery) -> Look:
    """Return what is asked for, of what the caller may see."""
    return Look(call.prefixes(), ask.match, ask.sort, ask.offset, ask.limit)


async def load(call: Call) -> Answer:
    """Count what will fall due, span after span."""
    return call.answer(await load_of(call, call.body(LoadRequest), call.service.board.count))


async def load_of(call: Call, ask: LoadRequest, count: _Count) -> LoadAnswer:
    """Return how much falls due when, of topics that the caller may see."""
    topics = tuple(sorted({values.topic(topic) for topic in ask.topics}))
    spans, prefixes = Spans(ask.start_ms, ask.span_ms, ask.count), call.prefixes()
    call.allow(topics)
    return LoadAnswer((await count((topics, prefixes, spans))).tolist())


async def oldest(call: Call) -> Answer:
    """Say since when the message that waits longest for a taker has been due, by topic.

    They come in the order of their names; where the answer has a ``next`` there are more after it.
    """
    prefixes, after = call.prefixes(), call.query(TopicsQuery).after
    found = await call.queue.oldest_ready()
    names, following = await names_after(
        (name for name in found if name.startswith(prefixes)), after
    )
    return call.answer(OldestAnswer({name: found[name] for name in names}, following))


async def holders(call: Call) -> Answer:
    """Say who has how many messages under lease, and how many takers wait, by topic."""
    ask = call.query(HoldersQuery)
    prefixes = _both(call.prefixes(), ask.prefixes.split(","))
    await call.reserve_answer((ask.limit + MOST_WAITING) * _ROW_BYTES)
    found = await call.queue.holders(ask.limit, prefixes=prefixes)
    waiting = await call.service.board.waiting(prefixes, call.token)
    return call.made_answer(call.answer(HoldersAnswer(found, *waiting)))


def _both(some: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return how names begin that begin as one of some, and as one of others."""
    pairs = product(some, others)
    return tuple({max(a, b, key=len) for a, b in pairs if a.startswith(b) or b.startswith(a)})
