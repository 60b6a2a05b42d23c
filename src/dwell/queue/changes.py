"""Changing the messages that match: all of them are found before the first one is changed.

Otherwise one that was moved ahead would be met again.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dwell.batch.changed import Changed
from dwell.batch.page import Cursor
from dwell.batch.results import results_of
from dwell.message import I64, MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, U8, State
from dwell.queue.matcher import Matcher
from dwell.queue.search import BEGINNING, find
from dwell.store.base import Store

_Verb: TypeAlias = Callable[[Store, str, Sequence[bytes], I64], Awaitable[U8]]


class Change(NamedTuple):
    """What is done to messages: a verb by id, in what states it finds them, and how it is done.

    ``words`` say the latter to a server; ``apply`` is given ids and dues.
    """

    verb: str
    states: tuple[State, ...]
    words: dict[str, Any]
    apply: _Verb


class Place(NamedTuple):
    """Where a search stopped that goes state by state."""

    state: State
    cursor: Cursor


class _Found(NamedTuple):
    """What a verb has to know of messages that match; their bodies may be large."""

    ids: list[bytes]
    dues_ms: I64
    following: Place | None


def cancel() -> Change:
    """Return what forgets messages."""

    def apply(store: Store, topic: str, ids: Sequence[bytes], dues_ms: I64) -> Awaitable[U8]:
        return store.cancel(topic, ids)

    return Change("cancel", (State.DELAYED, State.READY, State.DEAD), {}, apply)


def kick(delay_ms: int, pace: int | None = None) -> Change:
    """Return what brings dead messages back, due so long after that, ``pace`` of them a second."""
    done = 0

    async def apply(store: Store, topic: str, ids: Sequence[bytes], dues_ms: I64) -> U8:
        nonlocal done
        if pace is None:
            return await store.kick(topic, ids, delay_ms)
        codes, at = [], 0
        while at < len(ids):
            # So many fall due together, and the next so many a second later.
            second, begun = divmod(done, pace)
            part = ids[at : at + pace - begun]
            codes.append(await store.kick(topic, part, delay_ms + 1000 * second))
            at, done = at + len(part), done + len(part)
        return np.concatenate(codes)

    words = {"delay_ms": delay_ms} | ({} if pace is None else {"pace": pace})
    return Change("kick", (State.DEAD,), words, apply)


def move(due_ms: int) -> Change:
    """Return what makes messages due at a moment."""

    def apply(store: Store, topic: str, ids: Sequence[bytes], dues_ms: I64) -> Awaitable[U8]:
        return store.reschedule(topic, ids, np.full(len(ids), due_ms, np.int64))

    return Change("reschedule", (State.DELAYED, State.READY), {"due_ms": due_ms}, apply)


def shift(shift_ms: int) -> Change:
    """Return what makes each message due so much later than it was, or earlier; not before 1970."""

    def apply(store: Store, topic: str, ids: Sequence[bytes], dues_ms: I64) -> Awaitable[U8]:
        return store.reschedule(topic, ids, np.maximum(dues_ms + shift_ms, 0))

    return Change("reschedule", (State.DELAYED, State.READY), {"shift_ms": shift_ms}, apply)


async def change(
    store: Store,
    topic: str,
    matcher: Matcher,
    how: Change,
    limit: int,
    *,
    start: Place | None = None,
    dry_run: bool = False,
) -> tuple[Changed, Place | None]:
    """Change at most ``limit`` messages that match, and return where more of them may be.

    It looks at those from after ``start``. ``dry_run`` counts them, and changes nothing.
    """
    found = await _found(store, topic, matcher, how.states, limit, start)
    results: Counter[Any] = Counter()
    for at in range(0, 0 if dry_run else len(found.ids), MAX_BATCH_MESSAGES):
        part = slice(at, at + MAX_BATCH_MESSAGES)
        codes = await how.apply(store, topic, found.ids[part], found.dues_ms[part])
        results.update(results_of(codes))
    return Changed(len(found.ids), results, found.following is None), found.following


async def _found(
    store: Store,
    topic: str,
    matcher: Matcher,
    states: Sequence[State],
    limit: int,
    start: Place | None,
) -> _Found:
    ids: list[bytes] = []
    dues_ms = [np.empty(0, np.int64)]
    following: Place | None = None
    for state in matcher.selection.states or states:
        cursor = BEGINNING
        if start is not None:
            if state is not start.state:
                continue
            cursor, start = start.cursor, None
        following = await _add(store, topic, matcher, Place(state, cursor), limit, ids, dues_ms)
        if following is not None:
            break
    return _Found(ids, np.concatenate(dues_ms), following)


async def _add(
    store: Store,
    topic: str,
    matcher: Matcher,
    place: Place,
    limit: int,
    ids: list[bytes],
    dues_ms: list[I64],
) -> Place | None:
    """Add the messages of one state that match; return where it stopped, if not at the end."""
    while len(ids) < limit and not matcher.is_spent:
        page = await find(
            store,
            topic,
            matcher,
            place.state,
            place.cursor,
            limit - len(ids),
            most_bytes=MAX_BATCH_BYTES,
        )
        ids += [id_.encode() for id_ in page.messages.ids]
        dues_ms.append(page.messages.due_ms)
        if page.cursor is None:
            return None
        place = Place(place.state, page.cursor)
    return place
