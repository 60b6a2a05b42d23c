"""Debts: what takes leased and nobody was handed is given back, with its attempt.

There are two such debts to a shard. A take whose answer did not come may have leased messages: the
same call is sent again with a limit of 0, which answers what the first one leased, or makes sure
that it never will be done. Of a take that has leased messages and could not read them, the names
are known. Debts are paid one after another, for as long as that takes; until then no other take
goes to that shard.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import msgspec

from dwell.errors import DwellError, ServerUnreachable
from dwell.slices import slices
from dwell.store.redis.engine import Call
from dwell.store.redis.numbers import SLOTS
from dwell.store.redis.records import is_of_block
from dwell.store.redis.shards import Shards
from dwell.tasks import Standing

_log = logging.getLogger(__name__)

#: How long to leave a shard alone that could not be paid.
_PAUSE_S = 0.2
#: How long a store that is closed goes on paying.
_CLOSING_S = 1.0
#: What a group of receipts has before its slots: a number and a take.
_GROUP_BYTES = 11
_ALL_SLOTS = bytes(range(SLOTS))
#: A delay of 0 for all, no error, not counted, no new priority.
_AS_IT_WAS = (bytes(6), msgspec.msgpack.encode(None), 0, b"")

Debt = Callable[[], Awaitable[None]]


class Debts:
    """What is owed to each shard."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._owed: dict[int, deque[Debt]] = {}
        self._errors: dict[int, DwellError] = {}
        self._payers: dict[int, Standing] = {}

    def is_owed(self, shard: int) -> bool:
        """Tell whether a shard is owed something, which it is while it cannot be reached."""
        return shard in self._owed

    def owe_call(self, shard: int, verb: str, call: Call, own: Sequence[object]) -> None:
        """Note a take whose answer is unknown: it is asked for again, and what it leased released.

        ``own`` are the arguments for that, with which the verb leases nothing new.
        """

        async def pay() -> None:
            try:
                answer = await self._shards.run(shard, verb, *own, call=call)
            except ServerUnreachable:
                raise
            except Exception:
                self._shards.engine.end(call)
                raise
            self._shards.engine.end(call)
            if answer.values[0] in (b"ok", b"more"):
                self.owe(shard, answer.values[1][::2])

        self._add(shard, pay)

    def owe(self, shard: int, entries: Iterable[bytes]) -> None:
        """Owe what the entries of a take name."""
        groups = [_group(entry) for entry in entries]
        for some in slices(groups, self._shards.limits.receipts):

            async def pay(some: list[bytes] = some) -> None:
                while some:
                    answer = await self._shards.run(shard, "release", *_AS_IT_WAS, *some)
                    some = _unanswered(some, answer.values[0])

            self._add(shard, pay)

    async def paid(self, shard: int, patience_s: float | None) -> None:
        """Wait until a shard is owed nothing; raises what kept it from being paid."""
        payer = self._payers.get(shard)
        if payer is None:
            return
        await payer.wait(self._shards.engine.patience_s(patience_s))
        if self.is_owed(shard):
            raise self._errors.get(shard) or ServerUnreachable(
                f"{self._shards.engine.address}: shard {shard} does not answer"
            )

    async def close(self) -> None:
        """Pay what can be paid at once, and forget the rest: those leases end by themselves."""
        payers = list(self._payers.values())
        await asyncio.gather(*(payer.wait(_CLOSING_S) for payer in payers))
        for payer in payers:
            await payer.stop()
        self._owed.clear()
        self._payers.clear()

    def _add(self, shard: int, debt: Debt) -> None:
        self._owed.setdefault(shard, deque()).append(debt)
        if shard not in self._payers:
            self._payers[shard] = Standing(partial(self._pay, shard))
            self._payers[shard].start()

    async def _pay(self, shard: int) -> None:
        debts = self._owed[shard]
        while debts:
            try:
                await debts[0]()
                debts.popleft()
            except ServerUnreachable as error:
                if shard not in self._errors:
                    _log.warning("shard %d cannot be given back what was leased: %s", shard, error)
                self._errors[shard] = error
                await asyncio.sleep(_PAUSE_S)
            except Exception:
                # To try again would not help, and would keep all others from that shard.
                _log.exception("shard %d was not given back what was leased; it will end", shard)
                debts.popleft()
        del self._owed[shard], self._payers[shard]
        self._errors.pop(shard, None)


def _unanswered(groups: list[bytes], results: bytes) -> list[bytes]:
    """Return the groups of receipts that an answer says nothing of: it has a byte for a receipt."""
    count = len(results)
    for at, group in enumerate(groups):
        if count <= 0:
            return groups[at:]
        count -= len(group) - _GROUP_BYTES
    return []


def _group(entry: bytes) -> bytes:
    """Return the receipts of what an entry of a take names, as the verbs are told them."""
    n, take = int.from_bytes(entry[:7], "big"), entry[-4:]
    if is_of_block(entry):
        return entry[:7] + take + _ALL_SLOTS
    return (n - n % SLOTS).to_bytes(7, "big") + take + bytes([n % SLOTS])
