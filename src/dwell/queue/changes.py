"""Changes by selection: finds all messages that match before it changes the first.

Otherwise a search would meet a message again that was moved ahead. A message is changed only in the
version that was found. If another caller has changed it since, it is read again, and changed if it
still matches.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import compress
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.changed import Changed
from dwell.batch.page import Cursor
from dwell.batch.results import counts_of
from dwell.message import (
    I64,
    MAX_BATCH_BYTES,
    MAX_DELAY_MS,
    U8,
    U64,
    Message,
    Result,
    State,
)
from dwell.queue.matcher import Matcher
from dwell.queue.search import BEGINNING, find
from dwell.store.base import Store

#: How often messages are read again that others change all the time.
_MOST_LOOKS = 10
#: How many messages are changed before other tasks run, and how many are read again together.
_AT_ONCE = 4_000
_READ_AT_ONCE = 100
_KNOWN_PARTS = 256


class Seen(NamedTuple):
    """The facts about matching messages that a verb needs; bodies may be large and are left out.

    The garbage collector walks through a list each time, but skips such a tuple.
    """

    ids: tuple[bytes, ...]
    dues_ms: I64
    versions: U64

    def part(self, start: int, stop: int) -> "Seen":
        """Return some of them, in a row."""
        part = slice(start, stop)
        return Seen(self.ids[part], self.dues_ms[part], self.versions[part])

    def where(self, which: list[bool]) -> "Seen":
        """Return the messages whose flag in ``which`` is true."""
        ids = tuple(compress(self.ids, which))
        return Seen(ids, self.dues_ms[which], self.versions[which])


_Verb: TypeAlias = Callable[[Store, str, Seen], Awaitable[U8]]


class Change(NamedTuple):
    """A change of messages: a verb by id, the states of messages it applies to, and its arguments.

    ``words`` are the arguments as a request to a server states them.
    """

    verb: str
    states: tuple[State, ...]
    words: dict[str, Any]
    apply: _Verb


class Place(NamedTuple):
    """The position where a search through the states has stopped."""

    state: State
    cursor: Cursor


def cancel() -> Change:
    """Return the change that cancels messages."""

    def apply(store: Store, topic: str, seen: Seen) -> Awaitable[U8]:
        return store.cancel(topic, seen.ids, versions=seen.versions)

    return Change("cancel", (State.DELAYED, State.READY, State.DEAD), {}, apply)


def kick(delay_ms: int, pace: int | None = None, paced: int = 0) -> Change:
    """Return the change that requeues dead messages after a delay, ``pace`` of them a second.

    They follow ``paced`` others.
    """
    done, begun_ms = paced, 0

    async def apply(store: Store, topic: str, seen: Seen) -> U8:
        nonlocal done, begun_ms
        begun_ms = begun_ms or store.clock.now_ms()
        late_ms = np.full(len(seen.ids), delay_ms, np.int64)
        if pace is not None:
            # With a pace, that many messages fall due together, and the next group a second later.
            late_ms += (done + np.arange(len(seen.ids))) // pace * 1000
            done += len(seen.ids)
        # Without a delay the due time is 0, which is now by the clock of any store.
        due_ms = np.where(late_ms > 0, begun_ms + late_ms, 0)
        return await store.kick(topic, seen.ids, due_ms, versions=seen.versions)

    words = {"delay_ms": delay_ms} | ({} if pace is None else {"pace": pace})
    return Change("kick", (State.DEAD,), words, apply)


def move(due_ms: int) -> Change:
    """Return the change that sets the due."""

    def apply(store: Store, topic: str, seen: Seen) -> Awaitable[U8]:
        dues_ms = np.full(len(seen.ids), due_ms, np.int64)
        return store.reschedule(topic, seen.ids, dues_ms, versions=seen.versions)

    return Change("reschedule", (State.DELAYED, State.READY), {"due_ms": due_ms}, apply)


def shift(shift_ms: int) -> Change:
    """Return the change that shifts each due by ``shift_ms``, which may be negative.

    Dues stay between 1970 and MAX_DELAY_MS from now.
    """

    def apply(store: Store, topic: str, seen: Seen) -> Awaitable[U8]:
        latest_ms = store.clock.now_ms() + MAX_DELAY_MS
        dues_ms = np.clip(seen.dues_ms + shift_ms, 0, np.maximum(seen.dues_ms, latest_ms))
        return store.reschedule(topic, seen.ids, dues_ms, versions=seen.versions)

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
    check: Callable[[], None] = lambda: None,
) -> tuple[Changed, Place | None]:
    """Change at most ``limit`` messages that match, and return where more of them may be.

    The search begins after ``start``. ``dry_run`` counts the messages, and changes nothing. A
    message that no longer matches when it is to be changed is ``unknown``, or ``leased`` if it was
    taken. ``check`` is called when the messages are found and before each part is changed; an error
    that it raises ends the change.
    """
    states = matcher.selection.states or how.states
    parts, following = await _seen(store, topic, matcher, states, limit, start)
    matched, results = sum(len(part.ids) for part in parts), Counter[Result]()
    check()
    if dry_run:
        return Changed(matched, results, following is None), following
    checked = how._replace(apply=_after(check, how.apply))
    missed = await _apply(store, topic, checked, parts, results)
    for _ in range(_MOST_LOOKS):
        if not await _match_still(store, topic, matcher, states, list(missed)):
            break
        again, _ = await _seen(store, topic, matcher, states, len(missed), start, missed)
        results[Result.UNKNOWN] -= sum(len(part.ids) for part in again)
        missed.difference_update(*(part.ids for part in again))
        missed |= await _apply(store, topic, checked, again, results)
    return Changed(matched, +results, following is None), following


def _after(check: Callable[[], None], apply: _Verb) -> _Verb:
    def checked(store: Store, topic: str, seen: Seen) -> Awaitable[U8]:
        check()
        return apply(store, topic, seen)

    return checked


async def _apply(
    store: Store, topic: str, how: Change, parts: Sequence[Seen], results: Counter[Result]
) -> set[bytes]:
    """Change messages, count the results, and return the ids of messages that had changed."""
    missed: set[bytes] = set()
    for part in parts:
        codes = await how.apply(store, topic, part)
        results.update(counts_of(codes))
        missed.update(part.ids[at] for at in np.flatnonzero(codes == Result.UNKNOWN).tolist())
        await asyncio.sleep(0)
    return missed


async def _match_still(
    store: Store, topic: str, matcher: Matcher, states: Sequence[State], ids: list[bytes]
) -> bool:
    """Tell whether any of some messages still matches."""
    for at in range(0, len(ids), _READ_AT_ONCE):
        found = await store.get(topic, ids[at : at + _READ_AT_ONCE])
        there: list[Message] = [
            one for one in found if isinstance(one, Message) and one.state in states
        ]
        if there and (await matcher.places(Batch.of(there))).places:
            return True
    return False


async def _seen(
    store: Store,
    topic: str,
    matcher: Matcher,
    states: Sequence[State],
    limit: int,
    start: Place | None,
    only: Collection[bytes] | None = None,
) -> tuple[list[Seen], Place | None]:
    """Return messages that match, of ``only`` some ids if given, and where more may be.

    A part has as many as a verb by id takes at once. A message that moves during the search may be
    found twice; it is returned once.
    """
    parts: list[Seen] = []
    known = _Known()
    for state in states:
        cursor = BEGINNING
        if start is not None:
            if state is not start.state:
                continue
            cursor, start = start.cursor, None
        place: Place | None = Place(state, cursor)
        while place is not None:
            missing = limit - sum(len(part.ids) for part in parts)
            if missing <= 0 or matcher.is_spent:
                return parts, place
            most = min(missing, _AT_ONCE)
            part, place = await _page(store, topic, matcher, place, most, only)
            parts.append(part.where(known.add(part.ids)))
            # The next search, or change, is in a turn of its own.
            await asyncio.sleep(0)
    return parts, None


class _Known:
    """The ids that a search has met.

    They are in dicts, as the collector of garbage goes through all of a set, and in many, as one
    that has a million stops everything else while it grows.
    """

    def __init__(self) -> None:
        self._parts: list[dict[bytes, None]] = [{} for _ in range(_KNOWN_PARTS)]

    def add(self, ids: Sequence[bytes]) -> list[bool]:
        """Add ids, which are distinct; return which are new."""
        parts = [self._parts[hash(id_) % _KNOWN_PARTS] for id_ in ids]
        new = [id_ not in part for part, id_ in zip(parts, ids, strict=True)]
        for part, id_ in zip(parts, ids, strict=True):
            part[id_] = None
        return new


async def _page(
    store: Store,
    topic: str,
    matcher: Matcher,
    place: Place,
    limit: int,
    only: Collection[bytes] | None,
) -> tuple[Seen, Place | None]:
    page = await find(
        store, topic, matcher, place.state, place.cursor, limit, most_bytes=MAX_BATCH_BYTES
    )
    following = None if page.cursor is None else Place(place.state, page.cursor)
    ids = tuple(id_.encode() for id_ in page.messages.ids)
    dues_ms, versions = page.messages.due_ms, page.versions
    found = Seen(ids, dues_ms, versions)
    if only is not None:
        found = found.where([id_ in only for id_ in ids])
    return found, following
