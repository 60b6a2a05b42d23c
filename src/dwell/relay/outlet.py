"""The way out: due messages go to a sink, and are acked when the broker has them."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.results import Results
from dwell.errors import DwellError, InvalidSettings, StoreClosed
from dwell.given.values import Millis
from dwell.message import MAX_BATCH_MESSAGES, Result
from dwell.queue import Queue
from dwell.relay import envelope
from dwell.relay.apart import Apart
from dwell.relay.contract import BrokerUnreachable, LaneLost, OnceSink, Sink
from dwell.relay.dead import DeadLetters
from dwell.relay.patience import AGAIN_S, patiently
from dwell.relay.record import Record, Refusal
from dwell.relay.sent import name_of, names_of, numbers_of, store_of
from dwell.relay.tally import Tally
from dwell.slices import slices

T = TypeVar("T")

_log = logging.getLogger(__name__)

_WAIT = "1h"
_LOOK_S = 0.1
#: How many characters of a reason a message keeps.
_MOST_REASON = 200
#: When a lease is extended while a broker is slow, as a part of the lease.
_KEEP_EVERY = 0.25
_NO_TARGET = f"target: got none, expected a header {envelope.TO}, or a topic in --to"


class Way(NamedTuple):
    """The takes of an outlet: at most ``limit`` messages of a topic at once, as ``owner``.

    Their lease is ``lease_ms``, which is longer than the time limit of the broker. ``to`` is the
    target of a message that names none. With ``is_ordered`` nothing is taken while earlier messages
    of the topic are leased.
    """

    queue: Queue
    topic: str
    lease_ms: int
    to: str | None = None
    owner: str = ""
    limit: int = 5_000
    is_ordered: bool = False


class Outlet:
    """Sends the messages of one topic, batch after batch, in order, until it is stopped."""

    def __init__(self, way: Way, sink: Sink, dead: DeadLetters, tally: Tally) -> None:
        self._queue, self._topic, self._lease_ms, self._to, self._owner, self._limit, _ = way
        #: Whether others may hold messages of an ordered topic.
        self._is_shared = way.is_ordered
        self._is_ordered = way.is_ordered
        self._sink = sink
        self._dead = dead
        self._tally = tally
        self._apart = Apart()
        self._is_waiting = False
        self._is_stopping = False
        self._queue_name = f"queue of {way.topic}"
        self._taking: asyncio.Task[Batch] | None = None

    async def run(self) -> None:
        """Take and send until stopped; raises StoreClosed."""
        while not self._is_stopping:
            try:
                batch = await patiently(
                    self._take, self._tally, self._queue_name, is_over=lambda: self._is_stopping
                )
            except DwellError:
                if not self._is_stopping:
                    raise
                return
            if len(batch):
                await self._pass_on(batch)
            if self._is_waiting:
                # A message that keeps its place would be taken again at once.
                self._is_waiting = False
                await asyncio.sleep(AGAIN_S)

    @property
    def is_stopping(self) -> bool:
        """Tell whether it is stopping."""
        return self._is_stopping

    def stop(self) -> None:
        """Stop taking; messages already taken are sent, or given back."""
        self._is_stopping = True
        if self._taking is not None:
            self._taking.cancel()

    def forget(self) -> None:
        """Drop the troubles of this outlet, which has ended: others send what it has left."""
        for who in (self._topic, self._queue_name, *map(_who, self._apart.targets)):
            self._tally.trouble.pop(who, None)

    async def _take(self) -> Batch:
        if self._is_shared:
            await self._wait_for_others()
        # A take whose reply is lost has taken messages all the same.
        self._is_shared = self._is_ordered
        # The return of the queue should be noticed before a message falls due.
        wait = 0 if self._queue_name in self._tally.trouble else _WAIT
        take = self._queue.take(
            self._topic, self._limit, lease=Millis(self._lease_ms), owner=self._owner, wait=wait
        )
        self._taking = asyncio.get_running_loop().create_task(take)
        try:
            batch = await self._taking
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            return Batch.empty()
        finally:
            self._taking = None
        self._is_shared = False
        return batch

    async def _pass_on(self, batch: Batch) -> None:
        batch, records = await self._records(batch)
        batch, records = await self._passing(batch, records)
        if not len(batch):
            return
        try:
            refused = await self._kept(batch, self._sink.send(records))
        except BrokerUnreachable as error:
            await self._give_back(batch, str(error))
        else:
            await self._settle(batch, records, refused)

    async def _kept(self, batch: Batch, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a broker, and extend the leases of a batch: they run from the take.

        Records of other lanes may be sent first, and a broker may be slow for each part.
        """
        task = asyncio.get_running_loop().create_task(work)
        while not task.done():
            await asyncio.wait([task], timeout=self._lease_ms / 1000 * _KEEP_EVERY)
            if not task.done():
                with contextlib.suppress(DwellError):
                    await self._queue.touch(batch, Millis(self._lease_ms))
        return task.result()

    async def _records(self, batch: Batch) -> tuple[Batch, list[Record]]:
        """Return the records in a batch; messages that are not a relay's are set aside."""
        records = envelope.records_of(batch, self._to or "")
        lost: dict[str, list[int]] = {}
        for at, record in enumerate(records):
            if record.broken or not record.topic:
                lost.setdefault(record.broken or _NO_TARGET, []).append(at)
        if not lost:
            return batch, records
        for reason, places in lost.items():
            self._tally.dead["sink"] += len(places)
            await self._bury(batch.picked(places), reason)
        return _without([at for places in lost.values() for at in places], batch, records)

    async def _settle(
        self, batch: Batch, records: Sequence[Record], refused: Sequence[Refusal | None]
    ) -> None:
        taken = [one.topic for one, why in zip(records, refused, strict=True) if why is None]
        self._pass_again(self._apart.discard(taken))
        if not any(refused):
            await self._sent(batch)
            return
        places: dict[str, list[int]] = {"sent": [], "back": [], "dead": []}
        for at, refusal in enumerate(refused):
            kind = "sent" if refusal is None else "dead" if refusal.is_final else "back"
            places[kind].append(at)
        if places["sent"]:
            await self._sent(batch.picked(places["sent"]))
        if places["dead"]:
            dead = [(at, records[at], refused[at]) for at in places["dead"]]
            await self._set_aside(batch, dead)  # type: ignore[arg-type]
        back = await self._set_apart(batch, records, refused)
        if left := [at for at in places["back"] if at not in back]:
            first = refused[left[0]]
            await self._give_back(batch.picked(left), first.reason if first else "")

    async def _passing(
        self, batch: Batch, records: list[Record], reason: str = ""
    ) -> tuple[Batch, list[Record]]:
        """Return the messages that may be sent; those for targets set apart are given back.

        They keep their place, so that they leave in order, unless they would fill each take: then
        they are due at the next attempt of their target, because other messages would never be
        taken.
        """
        now_ms = self._queue.clock.now_ms()
        self._pass_again(self._apart.forgotten(now_ms))
        waits = self._apart.waits(records, now_ms)
        back = [at for places in waits.values() for at in places]
        is_filling = 2 * len(back) >= self._limit
        if back and not is_filling:
            self._is_waiting = True
        for delay_ms, places in waits.items():
            part, delay = batch.picked(places), Millis(delay_ms if is_filling else 0)
            why = reason or f"{records[places[0]].topic}: is set apart, as it took nothing"
            await self.patiently(partial(self._release, part, delay, why))
        return _without(back, batch, records)

    async def _release(self, batch: Batch, delay: Millis, reason: str) -> None:
        await self._queue.release(batch, delay, counted=False, error=reason[:_MOST_REASON])

    async def _set_apart(
        self, batch: Batch, records: Sequence[Record], refused: Sequence[Refusal | None]
    ) -> Set[int]:
        """Give back messages whose targets accept nothing now; return their places."""
        places = [at for at, why in enumerate(refused) if why is not None and _is_of_target(why)]
        if not places:
            return set()
        targets = {records[at].topic: refused[at] for at in places}
        self._apart.add(targets, self._queue.clock.now_ms())
        for target, why in targets.items():
            reason = why.reason if why is not None else ""
            if self._tally.is_news(_who(target), reason):
                _log.warning("%s: its messages wait for the broker: %s", target, reason)
            mine = [at for at in places if records[at].topic == target]
            part = batch.picked(mine)
            late, _ = await self._passing(part, [records[at] for at in mine], reason)
            if len(late):
                # The queue was away for as long as the pause.
                await self._give_back(late, reason)
        return set(places)

    def _pass_again(self, targets: Collection[str]) -> None:
        """Note that targets are no longer set apart."""
        for target in targets:
            self._tally.trouble.pop(_who(target), None)

    async def _sent(self, batch: Batch) -> None:
        """Ack messages, and count how late they were."""
        self._count_sent(batch)
        await self._ack(batch)

    def _count_sent(self, batch: Batch) -> None:
        self._tally.trouble.pop(self._topic, None)
        self._tally.sent += len(batch)
        self._tally.add_late(batch.due_ms, self._queue.clock.now_ms())

    async def _set_aside(self, batch: Batch, dead: Sequence[tuple[int, Record, Refusal]]) -> None:
        """Make dead letters of messages that the broker never accepts; bury the rest.

        A message whose letter cannot be kept now, because the topic of letters is full, is given
        back.
        """
        letters = self._letters(batch, dead)
        try:
            refused = await self._kept(batch, self._sink.send(letters))
        except BrokerUnreachable as error:
            await self._give_back(batch.picked([at for at, _, _ in dead]), str(error))
            return
        waiting = [why for why in refused if why is not None and not why.is_final]
        self._tally.dead["sink"] += len(dead) - len(waiting)
        back = []
        for (at, _, refusal), again in zip(dead, refused, strict=True):
            if again is None:
                await self._ack(batch.picked([at]))
            elif again.is_final:
                await self._bury(batch.picked([at]), refusal.reason)
            else:
                back.append(at)
        if back:
            await self._give_back(batch.picked(back), f"dead letters: {waiting[0].reason}")

    def _letters(self, batch: Batch, dead: Sequence[tuple[int, Record, Refusal]]) -> list[Record]:
        part = batch.picked([at for at, _, _ in dead])
        origins = envelope.origins_of(part)
        letters = []
        for (_, record, refusal), id_, origin in zip(dead, part.ids, origins, strict=True):
            record.id, record.origin = id_, origin
            letters.append(self._dead.letter(record, refusal.reason))
        return letters

    async def _give_back(self, batch: Batch, reason: str) -> None:
        """Give messages back unchanged, and wait a little."""
        if self._tally.is_news(self._topic, reason):
            _log.warning("%s: %d messages wait for the broker: %s", self._topic, len(batch), reason)
        await self.patiently(partial(self._release, batch, Millis(0), reason))
        await asyncio.sleep(AGAIN_S)

    async def _bury(self, batch: Batch, reason: str) -> None:
        await self.patiently(lambda: self._queue.bury(batch, reason))

    async def _ack(self, batch: Batch) -> Results | None:
        results = await self.patiently(lambda: self._queue.ack(batch))
        if results is not None and (stale := results.count(Result.STALE)):
            _log.warning("%s: %d leases had ended before the ack", self._topic, stale)
        return results

    async def patiently(self, verb: Callable[[], Awaitable[T]]) -> T | None:
        """Retry a verb until it succeeds; None when the leases are over, or on a stop."""
        until_ms = self._queue.clock.now_ms() + self._lease_ms
        try:
            return await patiently(
                verb,
                self._tally,
                self._queue_name,
                is_over=lambda: self._is_stopping or self._queue.clock.now_ms() > until_ms,
            )
        except StoreClosed:
            raise
        except DwellError as error:
            _log.warning("%s: the leases end by themselves: %s", self._topic, error)
            return None

    async def _wait_for_others(self) -> None:
        """Return when no message of the topic is leased: it was sent, or its lease is over.

        So messages taken by a dead relay, or lost on their way here, leave before later messages.
        """
        until_ms = self._queue.clock.now_ms() + self._lease_ms
        while not self._is_stopping and self._queue.clock.now_ms() <= until_ms:
            with contextlib.suppress(DwellError):
                if not any(shard.leased for shard in await self._queue.sizes(self._topic)):
                    return
            await asyncio.sleep(_LOOK_S)


class OnceOutlet(Outlet):
    """Sends the messages of one lane exactly once, to a sink with transactions.

    ``is_committed`` tells whether the source knows that a message of a lane is held: until then the
    source may return it again, and the queue need not remember sent messages.
    """

    def __init__(
        self,
        way: Way,
        sink: OnceSink,
        dead: DeadLetters,
        tally: Tally,
        lane: str,
        is_committed: Callable[[str, str], bool],
    ) -> None:
        super().__init__(way, sink, dead, tally)
        self._once = sink
        self._lane = lane
        self._is_committed = is_committed
        #: The names of messages that were sent and may still be in the queue, and the number of
        #: its store.
        self._names: Set[bytes] | None = None
        self._store = 0

    async def _pass_on(self, batch: Batch) -> None:
        try:
            names = await self._kept(batch, self._entered(store_of(batch)))
        except StoreClosed:
            raise
        except InvalidSettings as error:
            await self.patiently(partial(self._release, batch, Millis(0), str(error)))
            raise
        except DwellError as error:
            await self._give_back(batch, str(error))
            return
        again = np.array([name in names for name in names_of(batch)], bool)
        if again.any():
            self._tally.repeated += int(again.sum())
            await self._acked(batch.picked(np.flatnonzero(again).tolist()))
            batch = batch.picked(np.flatnonzero(~again).tolist())
        batch, records = await self._records(batch)
        batch, records = await self._committed(batch, records)
        batch, records = await self._passing(batch, records)
        if len(batch):
            await self._send_once(batch, records)

    async def _entered(self, store: int) -> Set[bytes]:
        """Return the names of sent messages that may still be here, once the lane is entered.

        It is entered again for another store, which is in place of one that was lost: the next
        relay knows only the number of the present one.
        """
        if self._names is None or store != self._store:
            self._names, self._store = None, store
            self._names = await self._living(await self._once.enter(self._lane, store))
        return self._names

    async def _living(self, names: Collection[bytes]) -> Set[bytes]:
        """Return the names whose messages are in the queue."""
        living = set[bytes]()
        # Some are left of earlier batches, so that there may be more than one call takes.
        for part in slices(numbers_of(names), MAX_BATCH_MESSAGES):
            pairs = zip(part, await self._queue.named(part), strict=True)
            living |= {name_of(number, found[1]) for number, found in pairs if found is not None}
        return living.intersection(names)

    async def _committed(self, batch: Batch, records: list[Record]) -> tuple[Batch, list[Record]]:
        """Return messages that the source does not return again; give back the rest for a while."""
        until_ms = self._queue.clock.now_ms() + self._lease_ms // 4
        origins = envelope.origins_of(batch)
        while late := [
            at for at, origin in enumerate(origins) if not self._is_committed(self._lane, origin)
        ]:
            if self._queue.clock.now_ms() > until_ms or self._is_stopping:
                await self._give_back(batch.picked(late), "the source has not committed them yet")
                return _without(late, batch, records)
            await asyncio.sleep(_LOOK_S / 10)
        return batch, records

    async def _send_once(self, batch: Batch, records: list[Record]) -> None:
        assert self._names is not None
        while len(batch):
            names = self._names | set(names_of(batch))
            try:
                sending = self._once.send_once(self._lane, records, names)
                refused = await self._kept(batch, sending)
            except (BrokerUnreachable, LaneLost) as error:
                # Whether they were sent is known once the lane is entered again.
                self._names = None
                await self._give_back(batch, str(error))
                return
            if not any(refused):
                self._names = names
                self._pass_again(self._apart.discard(record.topic for record in records))
                self._tally.dead["sink"] += sum(map(self._is_letter, records))
                self._count_sent(batch)
                await self._acked(batch)
                return
            if back := await self._set_apart(batch, records, refused):
                # Nothing was sent, so the others are sent without them.
                batch, records = _without(back, batch, records)
                continue
            waiting = next((r for r in refused if r is not None and not r.is_final), None)
            if waiting is not None:
                await self._give_back(batch, waiting.reason)
                return
            batch, records = await self._replaced(batch, records, refused)

    def _is_letter(self, record: Record) -> bool:
        return record.topic == self._dead.topic

    async def _replaced(
        self, batch: Batch, records: list[Record], refused: Sequence[Refusal | None]
    ) -> tuple[Batch, list[Record]]:
        """Put letters in the place of refused records, and bury refused letters.

        Returns the rest to send.
        """
        told = [(at, records[at], why) for at, why in enumerate(refused) if why is not None]
        buried = [(at, why) for at, record, why in told if self._is_letter(record)]
        told = [one for one in told if not self._is_letter(one[1])]
        for (at, _, _), letter in zip(told, self._letters(batch, told), strict=True):
            records[at] = letter
        for at, why in buried:
            self._tally.dead["sink"] += 1
            await self._bury(batch.picked([at]), why.reason)
        return _without([at for at, _ in buried], batch, records)

    async def _acked(self, batch: Batch) -> None:
        """Ack messages; acked messages are never seen again, so their names are dropped."""
        results = await self._ack(batch)
        assert self._names is not None
        if results is not None:
            acked = batch.picked(np.flatnonzero(results.codes == Result.ACKED).tolist())
            self._names = self._names - set(names_of(acked))
        if len(self._names) > self._limit:
            # A message that was sent and could not be acked may have been cancelled.
            with contextlib.suppress(DwellError):
                self._names = await self._living(self._names)

    async def leave(self) -> None:
        """End with the lane."""
        await self._once.leave(self._lane)


def _is_of_target(why: Refusal) -> bool:
    return why.is_of_target and not why.is_final


def _who(target: str) -> str:
    return f"target {target}"


def _without(
    places: Collection[int], batch: Batch, records: Sequence[Record]
) -> tuple[Batch, list[Record]]:
    """Return a batch and its records without some places."""
    if not places:
        return batch, list(records)
    gone = set(places)
    left = [at for at in range(len(batch)) if at not in gone]
    return batch.picked(left), [records[at] for at in left]
