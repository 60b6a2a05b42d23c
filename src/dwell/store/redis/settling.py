"""Settling: the settings of topics, which the first shard decides and the other shards follow.

A change is merged into the settings in the first shard, in one call, and gets a version; if another
shard has newer settings, because the first came back with older data, the change is merged into
those. Every shard keeps the newest version that it has seen. The first shard keeps a note of each
change until all shards have it, and a shard notes when its engine restarts with other data. The
next tick of any instance sees such a note, and the settings of all shards are compared.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from dwell.errors import DwellError, ServerUnreachable
from dwell.message import TopicSettings
from dwell.slices import slices
from dwell.store.redis.layout import settings_of
from dwell.store.redis.shards import Shards, all_of

_log = logging.getLogger(__name__)

#: Version and MessagePack of the settings of each topic.
Versions = dict[bytes, tuple[int, bytes]]
_NONE = (0, b"")
_DEFAULTS = TopicSettings()
#: How many topics one call reads the settings of.
_SETTINGS_AT_ONCE = 500


class Settling:
    """Changes the settings of topics on all shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._task: asyncio.Task[None] | None = None

    async def settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic."""
        engine = self._shards.engine
        data = await engine.ask("HGET", engine.keys(0).topics, topic)
        return TopicSettings() if data is None else _decoded(settings_of(data))

    async def dead_retentions(self) -> dict[str, int]:
        """Return the ``keep_dead_ms`` of each topic that sets it, as the first shard has it."""
        engine, kept = self._shards.engine, dict[str, int]()
        cursor: Any = b"0"
        while True:
            cursor, told = await engine.ask(
                "HSCAN", engine.keys(0).topics, cursor, "COUNT", _SETTINGS_AT_ONCE
            )
            for topic, data in _pairs(told).items():
                kept[topic.decode()] = _decoded(settings_of(data)).keep_dead_ms
            if int(cursor) == 0:
                return {topic: keep_ms for topic, keep_ms in kept.items() if keep_ms}

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        """Merge changes into the settings of a topic; return the result."""
        if self._shards.count > 1:
            await self._catch_up(topic)
        if await self.settings(topic) == replace(_DEFAULTS, **changes) == _DEFAULTS:
            # An entry for a topic without settings would stay.
            return _DEFAULTS
        data, version = await self._set(0, topic, msgspec.msgpack.encode(changes), "")
        others = range(1, self._shards.count)
        await all_of([self._set(shard, topic, data, version) for shard in others])
        if others:
            await self._shards.run(0, "settled", topic, version)
        return _decoded(data)

    async def _catch_up(self, topic: str) -> None:
        """Give the first shard the newest settings of a topic from all reachable shards."""
        first, *others = await all_of(
            [self._version_there(shard, topic) for shard in range(self._shards.count)]
        )
        newest = max(others)
        if newest[0] > first[0]:
            await self._set(0, topic, newest[1], str(newest[0]))

    async def _version_there(self, shard: int, topic: str) -> tuple[int, bytes]:
        try:
            return await self._version(shard, topic)
        except ServerUnreachable:
            # A comparison updates it when it is back.
            return _NONE

    async def _version(self, shard: int, topic: str) -> tuple[int, bytes]:
        engine, keys = self._shards.engine, self._shards.engine.keys(shard)
        data = await engine.ask("HGET", keys.topics, topic)
        if data is None:
            return _NONE
        return int(await engine.ask("HGET", keys.versions, topic) or 1), settings_of(data)

    async def _set(
        self, shard: int, topic: str | bytes, data: bytes, version: str
    ) -> tuple[bytes, str]:
        answer = await self._shards.run(shard, "configure", topic, data, version)
        word, data, told = answer.values
        while word == b"form":
            word, *_ = (await self._shards.run(shard, "form", topic)).values
        return data, told.decode()

    # --- comparing ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start comparing the settings of all shards, unless a comparison is running."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._compare())

    async def close(self) -> None:
        """Stop a running comparison."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _compare(self) -> None:
        try:
            await self.compare()
        except DwellError as error:
            _log.warning("settings cannot be compared between shards, trying again: %s", error)

    async def compare(self, count: int = 0) -> None:
        """Give each of ``count`` shards, usually all, the newest settings of each topic."""
        engine, shards = self._shards.engine, range(count or self._shards.count)
        notes = [_pairs(await engine.ask("HGETALL", engine.keys(of).unsettled)) for of in shards]
        found = [await self.versions(shard) for shard in shards]
        for topic in sorted({topic for of in found for topic in of}):
            newest = max(of.get(topic, _NONE) for of in found)
            behind = [at for at in shards if found[at].get(topic, _NONE)[0] < newest[0]]
            for shard in behind:
                await self._set(shard, topic, newest[1], str(newest[0]))
            if behind:
                _log.info("settings of topic %r: shards %s were behind", topic.decode(), behind)
        for shard in shards:
            for some in slices(list(notes[shard].items()), self._shards.limits.topics):
                told = [part for pair in some for part in pair]
                await self._shards.run(shard, "settled", *told)

    async def versions(self, shard: int) -> Versions:
        """Return the settings of all topics as a shard has them."""
        engine, keys = self._shards.engine, self._shards.engine.keys(shard)
        numbers = _pairs(await engine.ask("HGETALL", keys.versions))
        topics = _pairs(await engine.ask("HGETALL", keys.topics))
        return {
            topic: (int(numbers.get(topic, 1)), settings_of(data)) for topic, data in topics.items()
        }


def _decoded(data: bytes) -> TopicSettings:
    return msgspec.msgpack.decode(data, type=TopicSettings)


def _pairs(found: Any) -> dict[bytes, bytes]:
    """Return the answer of HGETALL as a dict; it is a dict, or alternating fields and values."""
    return found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
