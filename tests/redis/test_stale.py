"""What somebody tore apart in the engine is found, named, and put right."""

import asyncio
import contextlib

import pytest
import redis

import dwell
from dwell import State
from dwell.batch.stats import Stale
from dwell.clock import SimulatedClock
from tests.redis.test_redis_suite import new_store

pytestmark = pytest.mark.campaign

IDS = [f"{at:03}" for at in range(200)]
TOPICS = {
    "late": State.DELAYED,
    "now": State.READY,
    "held": State.LEASED,
    "dead": State.DEAD,
}


class Torn:
    """A queue with 200 messages in each state, in blocks or loose, and the keys it consists of."""

    def __init__(self, url: str, packed: int) -> None:
        self.store = new_store(url, SimulatedClock(), packed=packed)
        self.queue = dwell.Queue(self.store)
        self.engine = redis.Redis.from_url(url)

    def key(self, *parts: str) -> str:
        return ":".join((self.store.shards.engine.keys(0).base, *parts))

    async def fill(self) -> None:
        for topic, state in TOPICS.items():
            await self.queue.put_many(
                topic, IDS, ids=IDS, delay="1h" if state is State.DELAYED else 0
            )
        await self.queue.take("held", 200)
        await self.queue.bury(await self.queue.take("dead", 200))

    async def ids(self, topic: str, state: State) -> list[str]:
        return [m.id async for batch in self.queue.pages(topic, state) for m in batch]

    async def mend(self, some: int) -> list[Stale]:
        """Find things, put right ``some`` of them, then all, and return what was found."""
        found = await self.queue.find_stale()
        assert found
        assert found == await self.queue.find_stale()
        first = await self.queue.find_stale(repair=True, limit=some)
        assert len(first) == min(some, len(found))
        assert all(stale.repaired for stale in first)
        await self.queue.find_stale(repair=True)
        assert await self.queue.find_stale() == []
        sizes = (await self.queue.stats()).topics
        for topic in TOPICS:
            listed = [len(await self.ids(topic, state)) for state in TOPICS.values()]
            counted = sizes[topic]
            assert listed == [counted.delayed, counted.ready, counted.leased, counted.dead]
        return found


@pytest.fixture(params=[1, 1000], ids=["blocks", "loose"])
def torn(redis_url: str, request: pytest.FixtureRequest):
    """Return what gives a queue that is full and whole."""

    @contextlib.asynccontextmanager
    async def torn():
        case = Torn(redis_url, request.param)
        async with asyncio.timeout(60), case.queue:
            await case.fill()
            assert await case.queue.find_stale() == []
            yield case

    return torn


@pytest.mark.parametrize("topic", TOPICS)
async def test_bodies_that_are_gone(torn, topic: str) -> None:
    async with torn() as case:
        batch = [m async for b in case.queue.pages(topic, TOPICS[topic]) for m in b]
        lost = [m for m in batch if m.id < "070"]
        blocks = {case.key("block", str((m.number >> 8) // 64)) for m in lost}
        fields = [(m.number >> 8).to_bytes(7, "big") for m in lost]
        gone = case.engine.hdel(case.key("messages"), *fields) + case.engine.delete(*blocks)
        assert gone
        found = await case.mend(3)
        assert {stale.problem for stale in found} <= {"no body", "no message"}
        left = await case.ids(topic, TOPICS[topic])
        assert not set(left) & {m.id for m in lost}
        assert len(left) >= 70
        # The ids are free again.
        answer = await case.queue.put_many(topic, ["x"], ids=["000"], delay="1h")
        assert list(answer.results) == [dwell.Result.CREATED]


@pytest.mark.parametrize("topic", TOPICS)
async def test_states_that_are_gone(torn, topic: str) -> None:
    async with torn() as case:
        state = TOPICS[topic]
        name = "leased" if state is State.LEASED else f"{state.name.lower()}:{topic}"
        assert case.engine.delete(case.key(name))
        found = await case.mend(5)
        assert {stale.problem for stale in found if stale.id} == {"no state"}
        assert sorted(await case.ids(topic, state)) == IDS


async def test_places_that_are_gone(torn) -> None:
    async with torn() as case:
        assert case.engine.delete(*case.engine.keys(case.key("dir", "*").replace("{", "[{]")))
        found = await case.mend(5)
        assert {stale.problem for stale in found} == {"no state"}
        for topic, state in TOPICS.items():
            assert sorted(await case.ids(topic, state)) == IDS


async def test_counts_that_are_wrong(torn) -> None:
    async with torn() as case:
        case.engine.hset(case.key("counts", "now"), "ready", 7)
        case.engine.hset(case.key("counts", "late"), "dead", 7)
        found = await case.mend(1)
        assert [(stale.topic, stale.id, stale.number) for stale in found] == [
            ("late", "", 0),
            ("now", "", 0),
        ]


async def test_ids_of_nothing(torn) -> None:
    async with torn() as case:
        case.engine.hset(case.key("ids", "now"), "ghost", (10**9).to_bytes(6, "big"))
        found = await case.mend(1)
        assert [(stale.topic, stale.id, stale.problem) for stale in found] == [
            ("now", "ghost", "no message")
        ]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("lost", [1, 70, 200])
async def test_ids_that_the_index_lost(torn, topic: str, lost: int) -> None:
    """Nobody finds such a message by its id, and a put of the id makes a second one."""

    async with torn() as case:
        name = case.key("ids", topic)
        assert case.engine.delete(name) if lost == 200 else case.engine.hdel(name, *IDS[:lost])
        assert await case.queue.get(topic, ["000"]) == [None]
        found = await case.mend(3)
        assert sorted(stale.id for stale in found) == IDS[:lost]
        assert {stale.problem for stale in found} == {"no state"}
        assert [message.id for message in await case.queue.get(topic, IDS)] == IDS
        answer = await case.queue.put_many(topic, IDS, ids=IDS, delay="1h")
        assert set(answer.results.tolist()) == {dwell.Result.KEPT}


async def test_an_id_that_came_to_another_message(torn) -> None:
    """The older goes on under an id of the queue's making: neither is lost, and both are found."""

    async with torn() as case:
        case.engine.hdel(case.key("ids", "late"), *IDS[:3])
        answer = await case.queue.put_many("late", ["new"] * 2, ids=IDS[:2], delay="2h")
        assert list(answer.results) == [dwell.Result.CREATED] * 2
        found = await case.mend(1)
        assert sorted(stale.id for stale in found) == IDS[:3]
        ids = sorted(await case.ids("late", State.DELAYED))
        assert len(ids) == 202
        assert ids[:200] == IDS
        made = await case.queue.get("late", ids[200:])
        assert sorted(message.body for message in made) == [b"000", b"001"]
        bodies = [message.body for message in await case.queue.get("late", IDS[:3])]
        assert bodies == [b"new", b"new", b"002"]


async def test_an_id_that_the_index_remembers_as_acked(torn) -> None:
    async with torn() as case:
        ends_ms = case.store.clock.now_ms() + 60_000
        case.engine.hset(case.key("ids", "late"), "007", b"\xff" + ends_ms.to_bytes(6, "big"))
        await case.mend(1)
        assert (await case.queue.get("late", ["007"]))[0].body == b"007"
        # That it was acked before is remembered when it is cancelled.
        await case.queue.cancel("late", "007")
        assert (await case.queue.put("late", "x", id="007")).result is dwell.Result.KEPT


async def test_a_list_of_topics_that_is_gone(torn) -> None:
    async with torn() as case:
        assert case.engine.delete(case.key("known"))
        await case.mend(1)
        assert set((await case.queue.stats()).topics) == set(TOPICS)


async def test_looking_while_the_store_is_used_finds_nothing(torn) -> None:
    async with torn() as case:

        async def work() -> None:
            while True:
                await case.queue.put_many("busy", ["x"] * 100)
                await case.queue.ack(await case.queue.take("busy", 100))

        working = asyncio.create_task(work())
        for _ in range(5):
            assert await case.queue.find_stale(repair=True) == []
        assert not working.done()
        working.cancel()
