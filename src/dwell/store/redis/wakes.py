"""Wakes: messages from other instances about ready messages and nearer deadlines."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from redis import exceptions

from dwell.store.redis.engine import ERRORS, Engine, close_quietly
from dwell.tasks import Standing

_log = logging.getLogger(__name__)
_PAUSE_S = 0.5
#: After this long a silence the engine is pinged; after twice that it counts as gone.
_SILENCE_S = 2.0

#: Called with the next deadline of a shard, 0 for none, and pairs of topic and count.
Heard = Callable[[int, int, list[Any]], None]

_Pairs = list[tuple[str, int]]


class Wakes:
    """Listens to channels, one of each shard. The next tick makes up for a lost wake."""

    def __init__(self, engine: Engine, shards: Mapping[bytes, int], heard: Heard) -> None:
        self._engine = engine
        self._heard = heard
        self._shards = shards
        self._standing = Standing(self._run)
        self._is_failing = False

    def start(self) -> None:
        """Begin to listen; needs a running event loop."""
        self._standing.start()

    async def stop(self) -> None:
        """Stop listening."""
        await self._standing.stop()

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except ERRORS as error:
                if not self._is_failing:
                    _log.warning("the channel of wakes is broken, trying again: %s", error)
                self._is_failing = True
            await asyncio.sleep(_PAUSE_S)

    async def _listen(self) -> None:
        subscription = self._engine.subscription()
        try:
            await subscription.subscribe(*self._shards)
            heard_at = _now()
            while _now() - heard_at < 2 * _SILENCE_S:
                told = await subscription.get_message(timeout=_SILENCE_S)
                if told is None:
                    await subscription.ping()
                    continue
                heard_at, self._is_failing = _now(), False
                if told["type"] == "message":
                    self._hear(told["channel"], told["data"])
            raise exceptions.TimeoutError("the engine is silent")
        finally:
            await close_quietly(subscription)

    def _hear(self, channel: bytes, data: bytes) -> None:
        shard = self._shards.get(channel)
        try:
            name, next_ms, new = msgspec.msgpack.decode(data, type=tuple[str, int, list[str | int]])
            pairs = msgspec.convert(list(zip(new[::2], new[1::2], strict=True)), _Pairs)
        except ValueError:
            return
        if shard is not None and name != self._engine.name:
            self._heard(shard, next_ms, [part for pair in pairs for part in pair])


def _now() -> float:
    return asyncio.get_running_loop().time()
