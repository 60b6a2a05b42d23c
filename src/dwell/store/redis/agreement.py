"""The agreement of all instances of a store, kept in the first shard and copied to the others.

A shard belongs to the store whose number is in its ``meta``. A shard without a number is new or has
lost all its data. If another shard still has a number, the store keeps that number; otherwise a new
store is made, with a number that no earlier receipt has.
"""

import asyncio
import logging
import secrets

import msgspec

from dwell.errors import InvalidInput, ServerUnreachable, StoreError, StoreTooNew
from dwell.slices import slices
from dwell.store.redis.engine import Engine
from dwell.store.redis.numbers import MOST_SHARDS

_log = logging.getLogger(__name__)

FORMAT = 2

#: How many shards are asked at a time for the number of their store.
_AT_ONCE = 32
#: The part of the store's time limit that the second shard may delay an open.
_PATIENCE = 0.1


class Config(msgspec.Struct, array_like=True, frozen=True):
    """The configuration that all instances of a store agree on.

    ``target`` is not 0 while messages move, and ``moves`` counts the runs of a reshard.
    """

    format: int
    number: int
    shards: int
    target: int = 0
    moves: int = 0


class Agreement:
    """Reads and writes the configuration of a store; ``asked`` is a number of shards, or 0."""

    def __init__(self, engine: Engine, asked: int, *, is_cluster: bool) -> None:
        self._engine = engine
        self._asked = asked
        # Outside of a cluster all shards are lost together.
        self._is_cluster = is_cluster

    @property
    def _key(self) -> str:
        return self._engine.keys(0).store

    async def is_made(self) -> bool:
        """Tell whether a store exists."""
        return await self._engine.ask("GET", self._key) is not None

    async def config(self, known: Config | None = None) -> Config:
        """Return the configuration; without one, make a store with the known number of shards."""
        data = await self._engine.ask("GET", self._key)
        if data is None:
            new = await self._newest_copy(known) or self._new(known)
            await self._engine.ask("SET", self._key, msgspec.msgpack.encode(new), "NX")
            data = await self._engine.ask("GET", self._key)
        config = _config(data, self._key)
        newer = None if config == known else await self._newer_copy(config)
        if newer:
            _log.warning("%s: is from before a reshard, and the other shards are not", self._key)
            await self.write(newer)
            config = newer
        if config.format < FORMAT:
            config = msgspec.structs.replace(config, format=FORMAT)
            await self.write(config)
        if self._asked and config.shards != self._asked:
            raise InvalidInput(
                f"shards: got {self._asked}, and the store has {config.shards}; "
                "`dwell reshard` raises the number"
            )
        return config

    async def write(self, config: Config) -> None:
        """Write a new configuration."""
        await self._engine.ask("SET", self._key, msgspec.msgpack.encode(config))

    async def secret(self, known: bytes = b"") -> bytes:
        """Return the secret of the store; if it is lost, write the known one, or a new one."""
        key = self._engine.keys(0).secret
        found = await self._engine.ask("GET", key)
        if found is None:
            await self._engine.ask("SET", key, known or secrets.token_bytes(16), "NX")
            found = await self._engine.ask("GET", key)
        if not found:
            raise StoreError(f"{key}: got nothing, expected what was just written there")
        return bytes(found)

    def _new(self, known: Config | None) -> Config:
        return Config(FORMAT, drawn(), self._asked or (known.shards if known else 1))

    def _all(self, known: Config | None) -> range:
        """Return the possible shards of the store, without the first."""
        return range(1, known.shards if known else MOST_SHARDS if self._is_cluster else 1)

    async def _newer_copy(self, config: Config) -> Config | None:
        """Return the second shard's copy, if it is of a later reshard than the first shard's."""
        try:
            copy = await self.copy(1, _PATIENCE * self._engine.timeout_s)
        except ServerUnreachable:
            # The next call of the shard reports the error.
            return None
        return copy if copy and copy.moves > config.moves else None

    async def _newest_copy(self, known: Config | None) -> Config | None:
        """Return the newest copy in the other shards; of equally new copies the known one."""
        found = []
        for some in slices(self._all(known), _AT_ONCE):
            found += await asyncio.gather(*(self.copy(shard) for shard in some))
        copies = [copy for copy in found if copy]
        return max(copies, key=lambda copy: (copy.moves, copy == known), default=None)

    async def copy(self, shard: int, patience_s: float | None = None) -> Config | None:
        """Return the configuration in a shard; None if it is new or has lost everything."""
        key = self._engine.keys(shard).meta
        data = await self._engine.ask("HGET", key, "config", patience_s=patience_s)
        return _config(data, key) if data else None


def _config(data: bytes, key: str) -> Config:
    try:
        config = msgspec.msgpack.decode(data, type=Config)
    except (msgspec.MsgspecError, TypeError):
        raise StoreError(f"{key}: got what no Dwell store has there") from None
    if config.format > FORMAT:
        raise StoreTooNew(f"{key}: format {config.format}, this version reads {FORMAT}")
    return config


def drawn() -> int:
    """Return a random number for a new store."""
    return secrets.randbelow(2**31 - 1) + 1
