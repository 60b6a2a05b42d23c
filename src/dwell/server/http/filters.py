"""Filters: which messages of a topic a request means, and how far one request looks for them."""

import math
from collections.abc import Mapping, Sequence

from dwell.batch.page import Cursor, Page
from dwell.batch.selection import Selection
from dwell.given import selecting, values
from dwell.message import MAX_BATCH_BYTES, State
from dwell.queue.matcher import Matcher
from dwell.queue.search import find
from dwell.server.http.call import Call
from dwell.server.http.schemas.requests import Which

#: How many messages one request may look at to find matches, or to cancel them.
MOST_LOOKED_AT = 100_000

#: How many steps an expression may take in one request: some seconds.
MOST_STEPS = 10_000_000


#: How long one request may search, in seconds; then its answer says where to go on.
MOST_LOOK_S = 1.0


def selection_of(
    ask: Which, headers: Mapping[str, str], states: Sequence[str] | None = None
) -> Selection:
    """Return which messages a request means; raises InvalidInput."""
    said = {name: getattr(ask, name) for name in Which.__struct_fields__}
    named = None if states is None else tuple(map(values.state, states))
    return selecting.selection(Selection(**said, headers=dict(headers), states=named))


def matcher_of(selection: Selection, *, is_cut: bool = True) -> Matcher:
    """Return a matcher with the limits of one request; raises InvalidQuery.

    Unless ``is_cut``, it has no time limit, and only the steps are limited.
    """
    return Matcher(selection, MOST_STEPS, MOST_LOOK_S if is_cut else math.inf)


async def look(
    call: Call, topic: str, which: Selection, state: State, cursor: Cursor | None, limit: int
) -> Page:
    """Return at most ``limit`` messages that match, up to the size of an answer."""
    return await find(
        call.queue.store,
        topic,
        matcher_of(which),
        state,
        cursor,
        limit,
        most=MOST_LOOKED_AT,
        most_bytes=MAX_BATCH_BYTES,
    )
