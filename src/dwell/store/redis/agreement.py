"""What all instances of a store agree on: it is in the first shard, with a copy in each other.

A shard belongs to the store whose number its ``meta`` has. A shard without a number is new or has
lost all its data. If another shard still has a number, the store goes on under that; otherwise a
new store is made, with a number that no receipt from before has.
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

#: How many shards are asked at a time which store they belong to.
_AT_ONCE = 32
#: How much of the store's time limit the second shard may hold up who opens the store.
_PATIENCE = 0.1


class Config(msgspec.Struct, array_like=True, frozen=True):
    """What all instances of a store agree on.

    ``target`` is not 0 while messages move, and ``moves`` is how often they have been moved.
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
        # Elsewhere all shards are lost together.
        self._is_cluster = is_cluster

    @property
    def _key(self) -> str:
        return self._engine.keys(0).store

    async def is_made(self) -> bool:
        """Tell whether a store is there."""
        return await self._engine.ask("GET", self._key) is not None

    async def config(self, known: Config | None = None) -> Config:
        """Return the configuration; make a new store, with as many shards as known, if none is."""
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
        """Return the secret of the store; where it is lost, write what is known, or a new one."""
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
        """Return the shards but the first that the store may have."""
        return range(1, known.shards if known else MOST_SHARDS if self._is_cluster else 1)

    async def _newer_copy(self, config: Config) -> Config | None:
        """Return what the second shard follows, when that saw more reshards than the first."""
        try:
            copy = await self.copy(1, _PATIENCE * self._engine.timeout_s)
        except ServerUnreachable:
            # It is told when it is called.
            return None
        return copy if copy and copy.moves > config.moves else None

    async def _newest_copy(self, known: Config | None) -> Config | None:
        """Return the newest of the copies that other shards have, and of those the known one."""
        found = []
        for some in slices(self._all(known), _AT_ONCE):
            found += await asyncio.gather(*(self.copy(shard) for shard in some))
        copies = [copy for copy in found if copy]
        return max(copies, key=lambda copy: (copy.moves, copy == known), default=None)

    async def copy(self, shard: int, patience_s: float | None = None) -> Config | None:
        """Return the configuration that a shard follows; None if it is new or has lost all."""
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
    """Return a number for a store, which no other has."""
    return secrets.randbelow(2**31 - 1) + 1
