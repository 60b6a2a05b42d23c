"""Taking: messages are leased shard after shard, and what one gave is kept whatever the next does.

A shard that fails is passed over while others give something. What was leased and cannot be handed
out, as its answer came late or not at all, or as the caller has gone, is given back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dwell.batch.batch import Batch
from dwell.errors import DwellError, ServerUnreachable
from dwell.message import MAX_BATCH_BYTES, U64
from dwell.slices import slices
from dwell.store.redis.debts import Debts
from dwell.store.redis.limits import BYTES_AS_ONE
from dwell.store.redis.numbers import SLOTS
from dwell.store.redis.records import Leased, is_of_block, packed_versions
from dwell.store.redis.shards import Shards

#: How much of the store's time limit one of several shards may keep those waiting who can ask
#: another.
_PATIENCE = 0.1


class Taking:
    """Takes from the shards of a store."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._debts = Debts(shards)

    async def close(self) -> None:
        """Give back what can be given back at once."""
        await self._debts.close()

    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease ready messages, from the home shard on round all others."""
        part = _Part(self._shards, self._debts)
        leased = part.leased

        async def ask(shard: int) -> None:
            has_more = True
            while has_more and len(leased) < limit and leased.size_bytes < MAX_BATCH_BYTES:
                beside = (lease_ms, owner, MAX_BATCH_BYTES - leased.size_bytes, *topics)
                # With a limit of none it leases nothing.
                own, nothing = (limit - len(leased), *beside), (0, *beside)
                has_more = await part.lease(shard, "take", own, nothing)

        await part.gather(ask)
        return leased.batch(self._shards.clock_of)

    async def take_ids(
        self,
        topic: str,
        ids: Sequence[bytes],
        lease_ms: int,
        owner: str,
        versions: U64 | None,
    ) -> Batch:
        """Lease those of some messages that are ready, in the order of their ids here."""
        part = _Part(self._shards, self._debts)
        none = (topic, b"", lease_ms, owner)
        most_bytes = self._shards.limits.taken * BYTES_AS_ONE

        async def ask(shard: int) -> None:
            for places in slices(range(len(ids)), self._shards.limits.ids):
                told = (topic, packed_versions(versions, places), lease_ms, owner)
                some = [ids[at] for at in places]
                # One call leases only so many bytes, and the next one the others of the same ids.
                is_cut = True
                while is_cut and part.leased.size_bytes < MAX_BATCH_BYTES:
                    before_bytes = part.leased.size_bytes
                    await part.lease(shard, "take_ids", (*told, *some), none)
                    is_cut = part.leased.size_bytes - before_bytes >= most_bytes

        await part.gather(ask)
        batch = part.leased.batch(self._shards.clock_of)
        where = {id_.encode(): at for at, id_ in enumerate(batch.ids)}
        return batch.picked([where.pop(id_) for id_ in ids if id_ in where])


class _Part:
    """One take, and what it was given so far."""

    def __init__(self, shards: Shards, debts: Debts) -> None:
        self._shards = shards
        self._debts = debts
        self._entries: list[tuple[int, Sequence[bytes]]] = []
        self._errors: dict[int, DwellError] = {}
        self._wait_s = _PATIENCE * shards.engine.timeout_s
        self.leased = Leased(shards.number)

    async def gather(self, ask: Callable[[int], Awaitable[None]]) -> None:
        """Ask shard after shard; raises the first error when nothing was leased.

        While one cannot be reached and the others have nothing, all are asked again and again:
        that one may be back, and the others may have got something.
        """
        give_up_at = _now() + self._shards.engine.timeout_s
        try:
            await self._round(ask)
            while self._can_go_on() and _now() < give_up_at:
                self._errors.clear()
                # Over a slow link a full answer may need longer than it was waited for.
                self._wait_s *= 2
                await self._round(ask)
        except BaseException:
            # The caller has gone: who else could take it has to find it.
            for shard, entries in self._entries:
                self._debts.owe(shard, entries)
            raise
        if self._errors and not len(self.leased):
            raise next(iter(self._errors.values()))

    def _can_go_on(self) -> bool:
        """Tell whether a shard is missed that may come back."""
        passing = all(isinstance(error, ServerUnreachable) for error in self._errors.values())
        return bool(self._errors) and passing and not len(self.leased)

    async def _round(self, ask: Callable[[int], Awaitable[None]]) -> None:
        for shard in self._order():
            if self._debts.is_owed(shard) and len(self.leased):
                continue
            try:
                await self._debts.paid(shard, self._patience_s())
                await ask(shard)
            except DwellError as error:
                self._errors[shard] = error

    def _order(self) -> list[int]:
        """Return all shards, those last that fail."""
        return sorted(self._shards.round(), key=self._debts.is_owed)

    def _patience_s(self) -> float | None:
        """Return how long a shard is waited for; what is leased already must not end meanwhile."""
        if self._shards.count == 1:
            return None
        if len(self.leased):
            return max(min(self._wait_s, (self.leased.ends_at - _now()) / 2), 0.01)
        return self._wait_s

    async def lease(
        self, shard: int, verb: str, own: Sequence[object], nothing: Sequence[object]
    ) -> bool:
        """Run a verb that leases; tell whether there may be more.

        ``nothing`` is what the verb is told to lease nothing.
        """
        engine = self._shards.engine
        call, patience_s = engine.new_call(), self._patience_s()
        try:
            answer = await self._shards.run(shard, verb, *own, call=call, patience_s=patience_s)
        except (ServerUnreachable, asyncio.CancelledError):
            self._debts.owe_call(shard, verb, call, nothing)
            raise
        except BaseException:
            engine.end(call)
            raise
        engine.end(call)
        word, entries = answer.values
        names, texts = entries[::2], entries[1::2]
        try:
            found = await blocks_of(self._shards, shard, names, patience_s)
        except BaseException:
            self._debts.owe(shard, names)
            raise
        self._entries.append((shard, names))
        pairs = [(name, found.get(name, text)) for name, text in zip(names, texts, strict=True)]
        self.leased.add(shard, pairs, answer.now_ms, _now())
        # One call makes only so many messages ready; what is due may be more.
        return word == b"more" or 0 < answer.next_ms <= answer.now_ms


async def blocks_of(
    shards: Shards, shard: int, entries: Sequence[bytes], patience_s: float | None = None
) -> dict[bytes, bytes | None]:
    """Return the texts of those entries of a take that are blocks; they are read past Lua."""
    blocks = [entry for entry in entries if is_of_block(entry)]
    block, texts = shards.engine.keys(shard).block, []
    for some in slices(blocks, shards.limits.read):
        keys = [f"{block}{int.from_bytes(entry[:7], 'big') // SLOTS}" for entry in some]
        texts += await shards.engine.ask("MGET", *keys, patience_s=patience_s)
    return dict(zip(blocks, texts, strict=True))


def _now() -> float:
    return asyncio.get_running_loop().time()
