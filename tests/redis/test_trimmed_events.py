"""Events that a shard dropped before anybody gathered them are missed, and never passed over."""

import asyncio
import contextlib
import zlib

import pytest

import dwell
from tests.redis.servers import redis_server

KEPT = 1_000


@contextlib.asynccontextmanager
async def opened(shards: int = 2):
    """Give a queue whose shards keep about a thousand events."""
    with redis_server() as server:
        async with (
            asyncio.timeout(60),
            dwell.open(server.url, shards=shards, max_events=KEPT) as queue,
        ):
            yield queue


def ids_of(shard: int, count: int, first: int = 0) -> list[str]:
    """Return ids that belong to one of two shards."""
    ids = (f"id-{at}" for at in range(first, first + 4 * count + 100))
    return [id_ for id_ in ids if zlib.crc32(id_.encode()) % 2 == shard][:count]


async def put_in_calls(queue: dwell.Queue, ids: list[str]) -> None:
    """Put in calls of three: the stream is cut off by the hundred of those."""
    for at in range(0, len(ids), 3):
        await queue.put_many("t", ["x"] * len(ids[at : at + 3]), ids=ids[at : at + 3])


class Reader:
    """Reads events as Spark does, and counts what it was told is lost."""

    def __init__(self, queue: dwell.Queue) -> None:
        self._queue = queue
        self.place = 0
        self.lost = 0
        self.positions: list[int] = []
        self.ids: list[str] = []

    async def read(self) -> None:
        while True:
            page = await self._queue.events(self.place, 10_000)
            if self.place < page.first_position:
                self.lost += page.first_position - self.place
            assert page.events or page.next_position >= page.end_position
            expected = range(page.next_position - len(page.events), page.next_position)
            assert page.events.positions.tolist() == list(expected)
            self.positions += page.events.positions.tolist()
            self.ids += page.events.ids
            self.place = page.next_position
            if not page.events:
                return


@pytest.mark.parametrize(("shard", "gathered"), [(0, 0), (1, 10)])
async def test_what_one_shard_dropped_is_a_gap(shard, gathered):
    async with opened() as queue:
        reader = Reader(queue)
        both = [id_ for of in (0, 1) for id_ in ids_of(of, gathered)]
        for id_ in both:
            await queue.put("t", "x", id=id_)
        await reader.read()
        assert (reader.lost, sorted(reader.ids)) == (0, sorted(both))
        # All of them in one shard; of the other there is one, which is not lost.
        await put_in_calls(queue, ids_of(shard, 3_000, 100_000))
        await queue.put("t", "x", id=ids_of(1 - shard, 1, 200_000)[0])
        await reader.read()
        assert reader.lost > 0
        totals = (await queue.stats()).totals
        assert totals["put"] == len(reader.ids) + reader.lost
        assert len(set(reader.positions)) == len(reader.positions)
        assert set(both) <= set(reader.ids)
        # A new reader is told the same, and so is one that asks from within the gap.
        again = Reader(queue)
        await again.read()
        assert again.lost + len(again.ids) == totals["put"]


async def test_a_reader_within_a_gap_is_told_where_it_ends():
    async with opened() as queue:
        for id_ in ids_of(1, 5):
            await queue.put("t", "x", id=id_)
        reader = Reader(queue)
        await reader.read()
        await put_in_calls(queue, ids_of(1, 1_500, 100_000))
        page = await queue.events(0, 10_000)
        begins = page.next_position
        assert (begins, page.first_position) == (5, 0)
        ends = (await queue.events(begins, 1)).first_position
        assert ends > begins
        for place in (begins, begins + 1, ends - 1):
            page = await queue.events(place, 10)
            assert page.first_position == ends
            assert page.events.positions[0] == ends
        assert (await queue.events(ends, 10)).first_position < ends
        page = await queue.events(2**62, 1)
        assert (page.first_position, page.end_position) == (0, 1_505)
        assert (await queue.store.events(begins, 0)).next_position == begins


class Held:
    """A queue that reads events, and waits before it moves them, each time that it does."""

    def __init__(self, queue: dwell.Queue) -> None:
        self.has_read, self._turns = asyncio.Event(), asyncio.Semaphore(0)
        self._run = queue.store.shards.run
        queue.store.shards.run = self._held

    async def _held(self, shard, verb, *told, **how):
        if verb == "gather":
            self.has_read.set()
            await self._turns.acquire()
        return await self._run(shard, verb, *told, **how)

    def go_on(self, turns: int) -> None:
        self.has_read.clear()
        for _ in range(turns):
            self._turns.release()


async def test_what_another_instance_has_not_moved_is_kept():
    """Two instances read at once, and the one that has read more comes second."""
    with redis_server() as server:
        url = f"{server.url}?shards=2"
        async with asyncio.timeout(60), dwell.open(url) as first, dwell.open(url) as second:
            ids = ids_of(1, 40)
            holds, reads = [], []
            for queue, some in ((first, ids[:10]), (second, ids[10:])):
                await put_in_calls(first, some)
                holds.append(Held(queue))
                reads.append(asyncio.create_task(queue.events(0, 10_000)))
                await holds[-1].has_read.wait()
            holds[0].go_on(1)
            await holds[0].has_read.wait()
            for hold, read in zip(reversed(holds), reversed(reads), strict=True):
                hold.go_on(100)
                await read
            reader = Reader(second)
            await reader.read()
            assert (reader.lost, sorted(reader.ids)) == (0, sorted(ids))


@pytest.mark.timeout(60)
async def test_a_stream_that_is_gone_is_a_gap_too():
    with redis_server() as server:
        async with dwell.open(server.url, shards=2) as queue:
            await put_in_calls(queue, ids_of(1, 20))
            assert server.ask("DEL", "dwell:{1}:events") == 1
            page = await queue.events(0, 10)
            assert (page.first_position, page.end_position, len(page.events)) == (20, 20, 0)
            await put_in_calls(queue, ids_of(1, 3, 1_000))
            page = await queue.events(20, 10)
            assert (page.first_position, page.end_position, len(page.events)) == (20, 23, 3)
