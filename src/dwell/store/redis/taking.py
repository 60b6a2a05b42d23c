"""Taking: leases messages from one shard after another, and keeps them if a later shard fails.

A failing shard is skipped while others give messages. Leased messages that cannot be returned to
the caller, because the answer came late or not at all, or because the caller has gone, are given
back.
"""

import asyncio
from collections import Counter, defaultdict
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

#: The part of the store's time limit that one of several shards may delay a caller.
_PATIENCE = 0.1


class Taking:
    """Takes from the shards of a store."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._debts = Debts(shards)

    async def close(self) -> None:
        """Give back leased messages, as far as possible at once."""
        await self._debts.close()

    async def take(self, topics: Sequence[str], limit: int, lease_ms: int, owner: str) -> Batch:
        """Lease ready messages, from the home shard first, then from the others."""
        part = _Part(self._shards, self._debts)
        leased = part.leased

        async def ask(shard: int) -> None:
            for some in slices(topics, self._shards.limits.topics):
                has_more = True
                while has_more and len(leased) < limit and leased.size_bytes < MAX_BATCH_BYTES:
                    beside = (lease_ms, owner, MAX_BATCH_BYTES - leased.size_bytes, *some)
                    # With a limit of 0 it leases nothing.
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
        """Lease some messages by id, if they are ready, in the order of the ids.

        Messages with other keys, which other shards may have, may have the same id. Each time that
        an id is named, one of them is leased.
        """
        part = _Part(self._shards, self._debts)
        none = (topic, b"", lease_ms, owner)
        most_bytes = self._shards.limits.taken * BYTES_AS_ONE

        async def ask(shard: int) -> None:
            # Versions tell them apart.
            asked = _missing(ids, part.leased) if versions is None else range(len(ids))
            for places in slices(asked, self._shards.limits.ids):
                told = (topic, packed_versions(versions, places), lease_ms, owner)
                some = [ids[at] for at in places]
                # One call leases a limited number of bytes, and the next call the rest of the same
                # ids.
                is_cut = True
                while is_cut and part.leased.size_bytes < MAX_BATCH_BYTES:
                    before_bytes = part.leased.size_bytes
                    await part.lease(shard, "take_ids", (*told, *some), none)
                    is_cut = part.leased.size_bytes - before_bytes >= most_bytes

        await part.gather(ask)
        batch = part.leased.batch(self._shards.clock_of)
        where: defaultdict[bytes, list[int]] = defaultdict(list)
        for at, id_ in enumerate(batch.ids):
            where[id_.encode()].append(at)
        return batch.picked([where[id_].pop(0) for id_ in ids if where[id_]])


def _missing(ids: Sequence[bytes], leased: Leased) -> Sequence[int]:
    """Return the places of the ids that no leased message has."""
    if not len(leased):
        return range(len(ids))
    found, missing = Counter(leased.ids()), []
    for at, id_ in enumerate(ids):
        if found[id_]:
            found[id_] -= 1
        else:
            missing.append(at)
    return missing


class _Part:
    """One take, and the messages it got so far."""

    def __init__(self, shards: Shards, debts: Debts) -> None:
        self._shards = shards
        self._debts = debts
        self._entries: list[tuple[int, Sequence[bytes]]] = []
        self._errors: dict[int, DwellError] = {}
        self._wait_s = _PATIENCE * shards.engine.timeout_s
        self.leased = Leased(shards.number)

    async def gather(self, ask: Callable[[int], Awaitable[None]]) -> None:
        """Ask shard after shard; raises the first error if nothing was leased.

        While a shard is unreachable and the others have nothing, all are asked again and again: the
        shard may come back, and the others may have got messages.
        """
        give_up_at = _now() + self._shards.engine.timeout_s
        try:
            await self._round(ask)
            while self._can_go_on() and _now() < give_up_at:
                self._errors.clear()
                # Over a slow link a full answer may need a longer wait.
                self._wait_s *= 2
                await self._round(ask)
        except BaseException:
            # The caller has gone: another taker must find the messages.
            for shard, entries in self._entries:
                self._debts.owe(shard, entries)
            raise
        if self._errors and not len(self.leased):
            raise next(iter(self._errors.values()))

    def _can_go_on(self) -> bool:
        """Tell whether a failed shard may come back."""
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
        """Return all shards, with the failing shards last."""
        return sorted(self._shards.round(), key=self._debts.is_owed)

    def _patience_s(self) -> float | None:
        """Return how long to wait for a shard; no lease taken before may end during the wait."""
        if self._shards.count == 1:
            return None
        if len(self.leased):
            return max(min(self._wait_s, (self.leased.ends_at - _now()) / 2), 0.01)
        return self._wait_s

    async def lease(
        self, shard: int, verb: str, own: Sequence[object], nothing: Sequence[object]
    ) -> bool:
        """Run a verb that leases; tell whether there may be more.

        ``nothing`` are the arguments that make the verb lease nothing.
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
        # One call makes a limited number of messages ready; more may be due.
        return word == b"more" or 0 < answer.next_ms <= answer.now_ms


async def blocks_of(
    shards: Shards, shard: int, entries: Sequence[bytes], patience_s: float | None = None
) -> dict[bytes, bytes | None]:
    """Return the texts of the blocks among a take's entries; they are read without Lua."""
    blocks = [entry for entry in entries if is_of_block(entry)]
    block, texts = shards.engine.keys(shard).block, []
    for some in slices(blocks, shards.limits.read):
        keys = [f"{block}{int.from_bytes(entry[:7], 'big') // SLOTS}" for entry in some]
        texts += await shards.engine.ask("MGET", *keys, patience_s=patience_s)
    return dict(zip(blocks, texts, strict=True))


def _now() -> float:
    return asyncio.get_running_loop().time()
