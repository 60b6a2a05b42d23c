"""Events: the entries that the functions wrote into a shard's log, as columns."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dwell.batch.events import EVENT_COLUMNS, Events
from dwell.store.redis.layout import BLOCK_NOTE, NOTE
from dwell.store.redis.records import Names

_ONE, _BLOCK = NOTE.python, BLOCK_NOTE.python


@dataclass(frozen=True, slots=True)
class Entry:
    """The events written by one call of a function; ``first`` is the position of the first."""

    shard: int
    first: int
    count: int
    time_ms: int
    text: bytes


class Columns:
    """The columns of events, growing."""

    def __init__(self) -> None:
        self._lists: dict[str, list[Any]] = {name: [] for name in EVENT_COLUMNS}

    def add(self, entry: Entry) -> None:
        """Add one entry of a log."""
        at, text = 0, entry.text
        while at < len(text):
            is_one = text[at] == 0
            at = self._add_one(text, at) if is_one else self._add_block(entry.shard, text, at)
        self._extend(
            positions=range(entry.first, entry.first + entry.count),
            time_ms=[entry.time_ms] * entry.count,
        )

    def _extend(self, **columns: Iterable[Any]) -> None:
        for name, values in columns.items():
            self._lists[name].extend(values)

    def _add_one(self, text: bytes, at: int) -> int:
        topic: int
        id_: int
        _, kind, topic, due, attempt, id_ = _ONE.unpack_from(text, at)
        at += _ONE.size
        self._extend(
            kind=[kind],
            topics=[text[at : at + topic].decode()],
            ids=[text[at + topic : at + topic + id_].decode()],
            due_ms=[int.from_bytes(due, "big")],
            attempt=[attempt],
        )
        return at + topic + id_

    def _add_block(self, shard: int, text: bytes, at: int) -> int:
        size: int
        _, kind, n, attempt, count, size = _BLOCK.unpack_from(text, at)
        at += _BLOCK.size
        names = Names(shard, [(int.from_bytes(n, "big"), text[at : at + size])])
        self._extend(
            kind=[kind] * count,
            topics=names.topics(),
            ids=names.ids,
            due_ms=names.due_ms.tolist(),
            attempt=[attempt] * count,
        )
        return at + size

    def events(self, start: int, limit: int) -> Events:
        """Return at most ``limit`` events from position ``start`` on."""
        skip = bisect_left(self._lists["positions"], start)
        return Events.of_lists(values[skip : skip + limit] for values in self._lists.values())


def whole(entries: Sequence[Entry], start: int, end: int) -> tuple[list[Entry], int]:
    """Return consecutive entries without a gap, and the position of their first event.

    That is ``start``; or the first event of the oldest entry, if that is later; or, without
    entries, ``end``, the position of the next event.
    """
    if not entries:
        return [], max(start, end) if start < end else start
    start = max(start, entries[0].first)
    found, ends = [], entries[0].first
    for entry in entries:
        if entry.first != ends:
            break
        found.append(entry)
        ends = entry.first + entry.count
    return found, start


def entries_of(found: Sequence[Sequence]) -> list[Entry]:  # type: ignore[type-arg]
    """Return the entries of a stream."""
    entries = []
    for name, values in found:
        of = dict(zip(values[::2], values[1::2], strict=True))
        count, ends = int(of[b"n"]), int(name.split(b"-")[0])
        entries.append(Entry(int(of.get(b"s", 0)), ends - count, count, int(of[b"t"]), of[b"e"]))
    return entries
