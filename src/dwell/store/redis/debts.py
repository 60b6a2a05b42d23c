"""Debts: requeues messages whose take got no answer, without counting the attempt.

A shard can have two kinds of debt. A take without an answer may have leased messages: the same call
is sent again with a limit of 0, which answers with the messages that the first one leased, or makes
sure that it will never run. A take that leased messages but could not read them has their names.
Debts are settled one after another, however long that takes; until then the shard gets no other
take.
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

#: The pause before another attempt on a shard whose debt could not be settled.
_PAUSE_S = 0.2
#: How long a closing store still settles debts.
_CLOSING_S = 1.0
#: The bytes of a group of receipts before its slots: a number and a take.
_GROUP_BYTES = 11
_ALL_SLOTS = bytes(range(SLOTS))
#: A delay of 0 for all, no error, not counted, no new priority.
_AS_IT_WAS = (bytes(6), msgspec.msgpack.encode(None), 0, b"")

Debt = Callable[[], Awaitable[None]]


class Debts:
    """The debts to each shard."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._owed: dict[int, deque[Debt]] = {}
        self._errors: dict[int, DwellError] = {}
        self._payers: dict[int, Standing] = {}

    def is_owed(self, shard: int) -> bool:
        """Tell whether a shard has an open debt, as it does while it cannot be reached."""
        return shard in self._owed

    def owe_call(self, shard: int, verb: str, call: Call, own: Sequence[object]) -> None:
        """Note a take without an answer: it is sent again, and the messages it leased are released.

        ``own`` are its arguments for a repeat that leases nothing new.
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
        """Add the messages in the entries of a take to the debts."""
        groups = [_group(entry) for entry in entries]
        for some in slices(groups, self._shards.limits.receipts):

            async def pay(some: list[bytes] = some) -> None:
                while some:
                    answer = await self._shards.run(shard, "release", *_AS_IT_WAS, *some)
                    some = _unanswered(some, answer.values[0])

            self._add(shard, pay)

    async def paid(self, shard: int, patience_s: float | None) -> None:
        """Wait until a shard has no debt; raises the error that kept it from being settled."""
        payer = self._payers.get(shard)
        if payer is None:
            return
        await payer.wait(self._shards.engine.patience_s(patience_s))
        if self.is_owed(shard):
            raise self._errors.get(shard) or ServerUnreachable(
                f"{self._shards.engine.address}: shard {shard} does not answer"
            )

    async def close(self) -> None:
        """Settle the debts that can be settled at once; the other leases just end later."""
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
                # Another attempt would not help, and would block all other takes from that shard.
                _log.exception("shard %d was not given back what was leased; it will end", shard)
                debts.popleft()
        del self._owed[shard], self._payers[shard]
        self._errors.pop(shard, None)


def _unanswered(groups: list[bytes], results: bytes) -> list[bytes]:
    """Return the groups of receipts without an answer; an answer has a byte for each receipt."""
    count = len(results)
    for at, group in enumerate(groups):
        if count <= 0:
            return groups[at:]
        count -= len(group) - _GROUP_BYTES
    return []


def _group(entry: bytes) -> bytes:
    """Return the receipts of the messages in a take's entry, in the form that verbs take."""
    n, take = int.from_bytes(entry[:7], "big"), entry[-4:]
    if is_of_block(entry):
        return entry[:7] + take + _ALL_SLOTS
    return (n - n % SLOTS).to_bytes(7, "big") + take + bytes([n % SLOTS])
