"""A master dies under load and a replica takes its place; a slot of a cluster moves."""

import asyncio
import contextlib
import time
from collections import defaultdict

import numpy as np
import pytest

import dwell
from dwell import Result, State
from tests.redis.servers import redis_cluster, redis_sentinel
from tests.waiting import until_async

pytestmark = pytest.mark.campaign

ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
DELAYS_MS = (0, 0, 50, 300, 600_000)


class Load:
    """Works on several instances, and keeps what was asked for and what was answered."""

    def __init__(self, queues: list[dwell.Queue]) -> None:
        self._queues = queues
        self._stopping = False
        self.asked: dict[str, int] = {}
        self.put: set[str] = set()
        self.takes: defaultdict[str, int] = defaultdict(int)
        self.acked: set[str] = set()
        self.cancelled: set[str] = set()
        self._far: list[str] = []

    @contextlib.asynccontextmanager
    async def working(self):
        """Work meanwhile."""
        tasks = [
            asyncio.create_task(part)
            for at, queue in enumerate(self._queues)
            for part in (self._puts(queue, at), self._takes(queue), self._cancels(queue))
        ]
        yield
        self._stopping = True
        await asyncio.gather(*tasks)

    async def under_way(self, puts: int = 100) -> None:
        """Wait until some of each verb was done, however long that takes on this machine."""
        while len(self.put) <= puts or not self.acked or not self.cancelled:
            await asyncio.sleep(0.01)

    async def _puts(self, queue: dwell.Queue, of: int) -> None:
        size, number = (1, 30)[of % 2], 0
        while not self._stopping:
            kind = number % len(DELAYS_MS)
            ids = [f"{of}-{number}-{at}" for at in range(size)]
            number += 1
            delays = np.array([DELAYS_MS[kind]] * size)
            due = queue.clock.now_ms() + delays
            self.asked |= zip(ids, due.tolist(), strict=True)
            answer = await queue.put_many("t", ["x"] * size, ids=ids, due=due)
            # One that was done before the master died may be kept by now.
            assert {put.result for put in answer} <= {Result.CREATED, Result.KEPT}
            self.put |= set(ids)
            if kind == len(DELAYS_MS) - 1:
                self._far.append(ids[0])
            await asyncio.sleep(0.002)

    async def _takes(self, queue: dwell.Queue) -> None:
        while not self._stopping:
            taken = await queue.take("t", 20, lease=60, wait=0.05)
            now_ms = queue.clock.now_ms()
            for message in taken:
                assert message.due_ms <= now_ms, f"{message.id} was taken early"
                assert message.id not in self.acked, f"{message.id} came back after its ack"
                assert message.id not in self.cancelled, f"{message.id} came back after its cancel"
                self.takes[message.id] += 1
            results = await queue.ack(taken)
            pairs = zip(taken.ids, results, strict=True)
            self.acked |= {id_ for id_, result in pairs if result is Result.ACKED}

    async def _cancels(self, queue: dwell.Queue) -> None:
        while not self._stopping:
            ids = self._far[-2:]
            self._far = self._far[:-2]
            pairs = zip(ids, await queue.cancel("t", ids), strict=True)
            self.cancelled |= {id_ for id_, result in pairs if result is Result.CANCELLED}
            await asyncio.sleep(0.03)

    async def found(self) -> dict[str, dwell.Message]:
        """Return all messages that are there."""
        found: dict[str, dwell.Message] = {}
        for state in (State.LEASED, State.DELAYED, State.READY, State.DEAD):
            async for batch in self._queues[0].pages("t", state):
                found |= {message.id: message for message in batch}
        return found

    async def check(self) -> None:
        """See that nothing that was answered is lost or undone."""
        found = await self.found()
        ended = self.acked | self.cancelled
        lost = self.put - found.keys() - ended
        assert not lost, f"{len(lost)} answered puts are lost: {sorted(lost)[:5]}"
        back = ended & found.keys()
        assert not back, f"{len(back)} came back: {sorted(back)[:5]}"
        for id_, message in found.items():
            # What is due now is due by the earliest time that the engine can have had.
            assert 0 <= self.asked[id_] - message.due_ms < 1000, f"{id_} is due when nobody said"
        assert await self._queues[0].find_stale() == []


@contextlib.asynccontextmanager
async def opened(url: str, count: int, **options):
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(dwell.open(url, timeout=30, **options))
            for _ in range(count)
        ]


@pytest.mark.parametrize("config", [{}, ALWAYS], ids=["memory", "always"])
async def test_what_was_answered_is_there_after_sentinels_moved_the_master(config):
    with redis_sentinel(**config) as watched:
        async with opened(watched.url, 3, min_replicas=1) as queues:
            load = Load(queues)
            async with load.working():
                await load.under_way()
                old = await asyncio.to_thread(watched.kill_master)
                await asyncio.to_thread(watched.wait_moved, old)
                # With a replica again, answers are given again.
                before = len(load.put)
                await asyncio.to_thread(old.start)
                await until_async(
                    lambda: len(load.put) >= before + 100, "no put was answered after the failover"
                )
            assert set(load.takes.values()) == {1}, "a message was taken twice within a lease"
            await load.check()


async def test_a_master_that_hangs_and_comes_back_does_not_undo_what_was_answered():
    with redis_sentinel() as watched:
        async with opened(watched.url, 2, min_replicas=1) as queues:
            load = Load(queues)
            async with load.working():
                await load.under_way()
                old = watched.master()
                old.stop()
                await asyncio.to_thread(watched.wait_moved, old)
                old.cont()
                before = len(load.put)
                await until_async(
                    lambda: len(load.put) >= before + 100, "no put was answered after the failover"
                )
            await load.check()


async def test_instances_go_on_after_a_master_of_a_cluster_died():
    with redis_cluster(3, replicas=1) as cluster:
        async with opened(cluster.url, 2, shards=4) as queues:
            load = Load(queues)
            async with load.working():
                await load.under_way()
                old = cluster.owner("dwell:{1}:meta")
                # The cluster answers before its replica has all: it is given the time here.
                old.kill()
                await until_async(
                    lambda: cluster.owner("dwell:{1}:meta") is not old,
                    "no replica took over",
                    pause_s=0.1,
                )
                before = len(load.put)
                await until_async(
                    lambda: len(load.put) >= before + 200, "no put was answered after the failover"
                )
            assert before > 100
            for size in await queues[0].sizes("t"):
                assert size.delayed > 0
            assert await queues[0].find_stale() == []
            # A taker that waits is still woken by another instance.
            while len(left := await queues[0].take("t", 1000)):
                await queues[0].ack(left)
            await asyncio.sleep(1)
            for key in ("a", "b", "c", "d", "e"):
                waiting = asyncio.create_task(queues[1].take("t", wait=20))
                await asyncio.sleep(0.1)
                start = time.monotonic()
                await queues[0].put("t", "x", key=key)
                assert len(await waiting) == 1
                assert time.monotonic() - start < 15


async def test_verbs_wait_for_a_node_of_a_cluster_that_comes_back():
    with redis_cluster(2, **ALWAYS) as cluster:
        async with opened(cluster.url, 2, shards=4) as queues:
            load = Load(queues)
            async with load.working():
                await load.under_way()
                owner = cluster.owner("dwell:{1}:meta")
                owner.kill()
                await asyncio.sleep(0.5)
                await asyncio.to_thread(owner.start)
                before = len(load.put)
                await until_async(
                    lambda: len(load.put) >= before + 100, "no put was answered after the restart"
                )
            assert before > 50
            assert set(load.takes.values()) == {1}, "a message was taken twice within a lease"
            await load.check()


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_slot_that_moves_takes_its_shard_along(shards):
    with redis_cluster(2) as cluster:
        async with opened(cluster.url, 2, shards=shards) as queues:
            load = Load(queues)
            async with load.working():
                await load.under_way()
                for at in range(6):
                    key = f"dwell:{{{at % shards}}}:meta"
                    owner = cluster.owner(key)
                    other = next(node for node in cluster.masters if node is not owner)
                    await asyncio.to_thread(cluster.move, key, other)
                    assert cluster.owner(key) is other
                    before = len(load.put)
                    await load.under_way(before)
            assert set(load.takes.values()) == {1}, "a message was taken twice within a lease"
            await load.check()


async def test_a_slot_that_moves_slowly_stops_its_shard_and_no_other():
    """Each key is moved by itself, with time between: nobody may see a part of them."""

    with redis_cluster(2) as cluster:
        async with opened(cluster.url, 2, shards=2) as queues:
            load = Load(queues)
            async with load.working():
                await load.under_way()
                await asyncio.to_thread(move_slowly, cluster, "dwell:{0}:meta")
                await load.under_way(len(load.put) + 100)
            await load.check()


def move_slowly(cluster, key: str) -> None:
    source = cluster.owner(key)
    to = next(node for node in cluster.masters if node is not source)
    slot = source.ask("CLUSTER", "KEYSLOT", key)
    names = {node: node.ask("CLUSTER", "MYID") for node in (source, to)}
    to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[to])
    with source.client() as client:
        while keys := client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            client.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
            time.sleep(0.03)
    for node in (to, source):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[to])
