"""Schedules in a simulated world: each moment is put once, however often who fires them dies.

A run puts some schedules; then the process that fires them is killed, loses its power, meets faults
and a slow disk, and its clock is set. When all is calm again, the log of events says what was put.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

from dwell.batch.batch import Batch
from dwell.errors import InvalidSchedule
from dwell.message import Kind
from dwell.queue import Queue
from dwell.queue.schedules import TOPIC, Firer, firer
from dwell.queue.schedules.schedule import moment_text
from dwell.testing.views import events_from
from tools.simulation.history import Broken
from tools.simulation.process import Process
from tools.simulation.served import Served

_FIRED = "fired"
_LONGEST_S = 30


class FiringProcess(Process):
    """A process that fires schedules, as a server does."""

    firers = 1

    def _begin(self, queue: Queue) -> None:
        # What one process knew of its firers, the next does not.
        firer._firings.clear()
        for _ in range(self.firers):
            self._in_life(Firer(queue).run())


class Timetable(Served):
    """One run, drawn from a seed."""

    process_kind = FiringProcess
    #: Far below the setback from which on schedules fire again what they have fired.
    most_step_ms = 20_000

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        assert isinstance(self._process, FiringProcess)
        self._process.firers = self._chance.choice((1, 1, 2))
        #: The ids of the messages that have to be put, and of those that may be.
        self._expected: set[str] = set()
        self._possible: set[str] = set()

    async def _work(self) -> None:
        count = self._chance.choice((1, 3, 8))
        puts = [self._loop.create_task(self._put(f"s{at}")) for at in range(count)]
        ends = [self._loop.create_task(self._harm()) for _ in range(self._chance.choice((1, 3, 6)))]
        taking = self._loop.create_task(self._take())
        for task in (*puts, *ends):
            await task
        await self._calm()
        await self._end_all()
        taking.cancel()
        await self._check()

    async def _put(self, name: str) -> None:
        """Put a schedule, whose first moment is not near; each of its moments is to be one put."""
        chance = self._chance
        await asyncio.sleep(chance.random() * 2)
        every_ms = chance.choice((100, 250, 1_000, 7_000))
        start_ms = (self._clock.now_ms() // 1000 + chance.choice((2, 6, 20))) * 1000
        end_ms = start_ms + chance.choice((0, 3_000, _LONGEST_S * 1000))
        moments = range(start_ms, end_ms + 1, every_ms)
        ids = {f"{name}@{moment_text(ms)}" for ms in moments}
        self._possible |= ids
        times: dict[str, Any] = {"start": start_ms, "end": end_ms, "every": f"{every_ms}ms"}

        async def request(queue: Queue) -> str:
            return str(await queue.schedules.put(name, _FIRED, b"x", misfire="all", **times))

        try:
            await self._ask(request, f"put {name}")
        except InvalidSchedule:
            # It came so late that nothing is left of it.
            return
        if self._clock.now_ms() < start_ms:
            # Of one that was put late, what has passed by then is not put.
            self._expected |= ids
            self.tally["moments"] += len(ids)

    async def _take(self) -> None:
        while True:
            batch = await self._ask(
                lambda queue: queue.take(_FIRED, 100, lease=2.0, wait=1.0), "take", 1.0
            )
            if len(batch) and self._chance.random() < 0.9:
                await self._ask(partial(_ack, batch), "ack")

    async def _harm(self) -> None:
        await asyncio.sleep(self._chance.random() * (_LONGEST_S + 5))
        kinds = ("kill", "kill", "power", "fault", "slow", "clock", "restart")
        await self._harm_process(self._chance.choice(kinds))

    # --- the end ----------------------------------------------------------------------------------

    async def _end_all(self) -> None:
        """Wait until all schedules have ended; each is gone then."""
        for _ in range(2 * _LONGEST_S):
            await asyncio.sleep(2)
            counts = (await self._ask(lambda queue: queue.stats(), "stats")).topics.get(TOPIC)
            if counts is None or not counts.delayed + counts.ready + counts.leased:
                return
        raise Broken("hang", f"schedules have not ended: {counts}")

    async def _check(self) -> None:
        async def read(queue: Queue) -> list[Any]:
            return await events_from(queue.store, 0)

        events = await self._ask(read, "events", 20)
        puts = [e for e in events if e.topic == _FIRED and e.kind is Kind.PUT]
        came = Counter(event.id for event in puts)
        self._hash.update(f"{[(e.time_ms, e.id) for e in puts]}".encode())
        if lost := sorted(self._expected - set(came)):
            raise Broken("lost", f"{len(lost)} moments were never put: {lost[:5]}")
        if doubled := sorted(id_ for id_, count in came.items() if count > 1):
            raise Broken("doubled", f"{len(doubled)} moments were put twice: {doubled[:5]}")
        if strange := sorted(set(came) - self._possible):
            raise Broken("strange", f"{len(strange)} moments are none: {strange[:5]}")
        if early := [e.id for e in puts if not e.id.endswith(f"@{moment_text(e.due_ms)}")]:
            raise Broken("early", f"{len(early)} are not due at their moments: {early[:5]}")


async def _ack(batch: Batch, queue: Queue) -> None:
    await queue.ack(batch)
