"""The end of a run: nothing goes wrong any more, all is taken, and the books must balance."""

import asyncio
import random
from typing import Any

from dwell.batch.batch import Batch
from dwell.batch.stats import Stats
from dwell.message import Kind
from dwell.queue import Queue
from dwell.testing.views import events_from, facts_of
from tools.simulation.history import Broken
from tools.simulation.plan import TOPICS
from tools.simulation.scene import Scene

_DAY_MS = 86_400_000


class Drain:
    """Takes and acks everything, and looks at what is left."""

    def __init__(self, world: Scene) -> None:
        self._world = world
        self._chance = random.Random(world.plan.seed)
        self._drained: set[str] = set()

    async def run(self) -> None:
        """Drain the queue, and check; raises Broken."""
        await self._calm()
        for topic in TOPICS:
            await self._ask(
                lambda queue, topic=topic: queue.configure(
                    topic,
                    paused=False,
                    max_pending=0,
                    max_attempts=16,
                    retry_delays_ms=(),
                    most_leased=0,
                )
            )
        for _ in range(8):
            stats: Stats = await self._ask(lambda queue: queue.stats())
            if not any(_count(counts) for counts in stats.topics.values()):
                break
            if await self._take_all(stats):
                continue
            # All that is delayed falls due, and every lease ends.
            self._world.clock.step(_DAY_MS)
            await asyncio.sleep(1)
        else:
            raise Broken("stuck", f"something cannot be taken: {stats.topics}")
        self._world.ledger.check_drained(self._drained)
        await self._check_books(stats)
        await self._check_reopened()

    async def _calm(self) -> None:
        world = self._world
        world.network.is_calm, world.network.is_cut_off = True, False
        world.loop.slowness = 1.0
        world.process.next_faults = []
        world.process.disk.free()
        world.history.is_tight = False
        for _ in range(200):
            await asyncio.sleep(0.1)
            world.process.disk.free()
            world.process.look()
            if world.process.is_up and world.loop.time() - world.process.up_since_s > 0.5:
                return
        raise Broken("hang", "the store does not come up again")

    async def _ask(self, request: Any) -> Any:
        return await self._world.network.call(request, self._chance, "drain", 20)

    async def _take_all(self, stats: Stats) -> bool:
        """Take what can be taken, or brought back; tell whether that was all."""
        for topic, counts in stats.topics.items():
            if counts.dead:
                await self._ask(lambda queue, topic=topic: queue.kick(topic))
            if counts.dead or counts.ready:
                while await self._take(topic):
                    pass
        return not any(counts.delayed or counts.leased for counts in stats.topics.values())

    async def _take(self, topic: str) -> int:
        """Take what is there, of each key the next in an ordered topic; return how many."""
        batch: Batch = await self._ask(lambda queue: queue.take(topic, 1_000))
        self._drained.update(batch.ids)
        if len(batch):
            await self._ask(lambda queue: queue.ack(batch))
        return len(batch)

    async def _check_books(self, stats: Stats) -> None:
        """Check that nothing is left, and that the events tell how it went."""
        world = self._world
        stale = await self._ask(lambda queue: queue.find_stale())
        if stale:
            raise Broken("stale", f"{stale}")
        totals = stats.totals
        came, went = totals["put"], totals["ack"] + totals["cancel"]
        if came != went:
            raise Broken("books", f"{came} were put, and {went} have gone: {totals}")

        async def read(queue: Queue) -> tuple[list[Any], int]:
            page = await queue.events(0, 1)
            return facts_of(await events_from(queue.store, 0)), page.first_position

        facts, first = await self._ask(read)
        if wrong := world.history.compared_events(world.history.model, facts, first):
            raise Broken("events", wrong)
        self._check_doubles(facts)

    def _check_doubles(self, facts: list[Any]) -> None:
        """Check that whatever was taken twice had come back in between, by a rule."""
        is_taken: dict[tuple[str, str], bool] = {}
        for _, kind, topic, id_, _, _ in facts:
            name = (topic, id_)
            if kind is Kind.TAKE:
                if is_taken.get(name):
                    raise Broken("doubled", f"{name} was taken twice, and nothing explains it")
                is_taken[name] = True
            else:
                is_taken[name] = False

    async def _check_reopened(self) -> None:
        process = self._world.process
        process.restart()
        await self._calm()
        stats: Stats = await self._ask(lambda queue: queue.stats())
        if any(_count(counts) for counts in stats.topics.values()):
            raise Broken("undone", f"what was done came back: {stats.topics}")


def _count(counts: Any) -> int:
    return int(counts.delayed + counts.ready + counts.leased + counts.dead)
