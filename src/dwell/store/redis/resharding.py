"""Resharding: adds shards to a store that is not open anywhere, without losing a message.

A message moves when its id, or its key, belongs to another shard by the new number: the new shard
adopts it first, then the old one drops it. Both steps can be repeated, so an interrupted run is
simply started again with the same number. Each run gives the store a new number, without which the
shards do nothing: an earlier run that was only slow ends at its next call. Queue-made ids name
their shard, so their messages stay; nothing moves while an ordered topic has such messages whose
keys belong to another shard, or while two messages with one id, under different keys, would meet in
one shard.
"""

from array import array
from collections.abc import AsyncIterator
from math import gcd

import numpy as np
from msgspec import msgpack

from dwell.errors import InvalidInput, StoreLocked
from dwell.message import QUEUE_ID_MARK, State, decode_extra
from dwell.slices import tuples
from dwell.store.redis.log import Log
from dwell.store.redis.numbers import MOST_SHARDS, receipts_of
from dwell.store.redis.options import options_of
from dwell.store.redis.putting import shard_for
from dwell.store.redis.records import Row
from dwell.store.redis.settling import Settling
from dwell.store.redis.shards import Shards

#: How many messages one call adopts: as many as a block of numbers has.
_PART = 64
#: How many leases are ended together.
_ENDED = 1_000
_EVERY_N = 2**45


async def reshard(url: str, shards: int) -> int:
    """Give a store ``shards`` shards; return how many messages have moved.

    Raises InvalidInput for a number that is not above the present one, and while an ordered topic
    has messages that cannot move to the shard of their key, because the queue made their ids, or
    two messages of one id would meet in one shard; and StoreLocked while an instance has the store
    open, and once a later run has begun. Current leases end.
    """
    store = Shards(options_of(url, {}), None, lambda topic, count: None, lambda: None)
    await store.open(is_alone=True)
    try:
        return await _Move(store, shards).run()
    finally:
        await store.close()


class _Move:
    """One move of a store from its number of shards to a larger one."""

    def __init__(self, shards: Shards, target: int) -> None:
        if not shards.count < target <= MOST_SHARDS:
            raise InvalidInput(
                f"shards: got {target}, expected more than the store's {shards.count}, "
                f"at most {MOST_SHARDS}"
            )
        self._shards = shards
        self._settling = Settling(shards)
        self._before = shards.count
        self._target = target
        self._moved = 0

    async def run(self) -> int:
        """Move everything, and write the new number."""
        if await self._shards.listeners():
            raise StoreLocked("an instance has the store open; stop all of them first")
        await self._check_lanes()
        await self._check_ids()
        await self._shards.announce_move(self._target)
        await self._settling.compare(self._target)
        # Remembered ids are moved first: an adopted message keeps the memory of its id.
        for shard in range(self._before):
            await self._copy_memories(shard)
        for shard in range(self._before):
            await self._move_messages(shard)
        if self._before == 1:
            await Log(self._shards).begin()
        await self._shards.end_move(self._target)
        return self._moved

    async def _check_lanes(self) -> None:
        """Raise InvalidInput for a message that would stay in the old shard of its key.

        Later messages of the key would go to the new shard, and overtake it.
        """
        known = (await self._settling.versions(0)).items()
        ordered = {topic.decode() for topic, (_, data) in known if msgpack.decode(data)["ordered"]}
        for shard in range(self._before) if ordered else ():
            async for _, row in self._messages(shard):
                is_made = row.id.startswith(QUEUE_ID_MARK) and row.topic in ordered
                if is_made and self._home_of(row, b"") not in (None, shard):
                    raise InvalidInput(
                        f"topic {row.topic!r}: is ordered and has messages whose ids the queue "
                        "made, which cannot move to the new shards of their keys; let workers "
                        "finish them, or set ordered off, before it gets more shards"
                    )

    async def _check_ids(self) -> None:
        """Raise InvalidInput for two messages of one id that would meet in one shard.

        Under different keys they are two messages, and a shard can keep one of them, even while the
        other is about to leave. A message adopted by an interrupted run may still be in its old
        shard, and is not another message.
        """
        if self._before == 1 or self._shards.is_moving:
            return
        hashes = array("q")
        async for name in self._own_ids():
            hashes.append(hash(name))
        found, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
        twice, seen = set(found[counts > 1].tolist()), set[tuple[int, str, str]]()
        if not twice:
            return
        async for name in self._own_ids():
            if name in seen:
                _, topic, id_ = name
                raise InvalidInput(
                    f"id {id_!r} of topic {topic!r}: two messages have it, under different keys, "
                    "and would meet in one shard; cancel or finish one of them first"
                )
            if hash(name) in twice:
                seen.add(name)

    async def _own_ids(self) -> AsyncIterator[tuple[int, str, str]]:
        """Yield shard, topic and id of each message with a caller's id, for both of its shards."""
        for shard in range(self._before):
            async for _, row in self._messages(shard):
                if not row.id.startswith(QUEUE_ID_MARK):
                    for place in {shard, self._home(shard, row)}:
                        yield place, row.topic, row.id

    def _home(self, shard: int, row: Row) -> int:
        """Return the new shard of a message; a queue-made id binds it to the one that it names."""
        is_made = row.id.startswith(QUEUE_ID_MARK)
        home = None if is_made else self._home_of(row, row.id.encode())
        return shard if home is None else home

    def _home_of(self, row: Row, id_: bytes) -> int | None:
        return shard_for(id_, decode_extra(row.extra).key, self._target)

    async def _messages(self, shard: int) -> AsyncIterator[tuple[tuple[int, bytes], Row]]:
        """Yield all messages of a shard: number and text, and the decoded row."""
        n = 0
        while True:
            answer = await self._shards.run(shard, "sweep", n, _EVERY_N, 1_000)
            entries, _, n, _ = answer.values
            for found in zip(tuples(entries, 2), self._shards.rows(shard, answer), strict=True):
                yield found
            if not n:
                return

    async def _move_messages(self, shard: int) -> None:
        moving: dict[int, list[tuple[int, bytes]]] = {}
        leased: list[Row] = []
        async for pair, row in self._messages(shard):
            home = self._home(shard, row)
            if home != shard:
                moving.setdefault(home, []).append(pair)
                if len(moving[home]) == _PART:
                    await self._move(shard, home, moving.pop(home))
            elif row.state == State.LEASED:
                leased.append(row._replace(body=b""))
                if len(leased) == _ENDED:
                    await self._end_leases(leased)
                    leased = []
        await self._end_leases(leased)
        for home, pairs in moving.items():
            await self._move(shard, home, pairs)

    async def _move(self, shard: int, home: int, pairs: list[tuple[int, bytes]]) -> None:
        await self._shards.run(home, "adopt", *[text for _, text in pairs])
        await self._shards.run(shard, "disown", *[n for n, _ in pairs])
        self._moved += len(pairs)

    async def _end_leases(self, rows: list[Row]) -> None:
        """End the leases of messages that stay: their receipts belong to another store."""
        numbers = np.array([row.number for row in rows], np.uint64)
        takes = np.array([row.take for row in rows], np.uint64)
        receipts = receipts_of(numbers, takes, self._shards.number)
        await self._shards.by_receipt(
            "touch", receipts, self._shards.limits.receipts, lambda _: (1,)
        )

    async def _copy_memories(self, shard: int) -> None:
        """Copy a remembered id to every shard that a message with this id may now belong to.

        That is the shard of its key, which is no longer known. The old shard, and shards that never
        need it, drop it in time.
        """
        engine = self._shards.engine
        step = gcd(self._before, self._target)
        homes = [home for home in range(shard % step, self._target, step) if home != shard]
        for topic in await engine.ask("HKEYS", engine.keys(shard).known):
            for part in ("ids", "earlier"):
                cursor = b"0"
                while True:
                    answer = await self._shards.run(shard, "memories", topic, cursor, part)
                    cursor, told = answer.values
                    for home in homes if told else ():
                        await self._shards.run(home, "remember", topic, *told)
                    if cursor == b"0":
                        break
