"""Several instances over one store: nobody is given what another has, and all are woken in time."""

import asyncio
import contextlib
import random
from collections import Counter, defaultdict

import msgspec
import numpy as np
import pytest

import dwell
from dwell import Result
from dwell.store.redis import store
from tests.http.between import between
from tests.redis.servers import Server, redis_cluster, redis_server
from tests.waiting import until_async

pytestmark = pytest.mark.campaign

MESSAGES = 100_000
#: When ticks are so far apart, only the channel can wake a taker in time, however busy the machine.
SELDOM_MS = 60_000


@contextlib.asynccontextmanager
async def opened(url: str, count: int, **options):
    """Open so many instances of one store, each at home in another shard."""
    async with contextlib.AsyncExitStack() as stack:
        shards = options.get("shards", 1)
        yield [
            await stack.enter_async_context(dwell.open(url, home=at % shards, **options))
            for at in range(count)
        ]


# --- nobody takes what another has ----------------------------------------------------------------


async def take_all(queue: dwell.Queue, limit: int, seen: Counter[str], expected: int) -> None:
    """Take and ack until all were seen, by whomever."""
    while seen.total() < expected:
        taken = await queue.take("t", limit, lease="10m", wait=0.2)
        seen.update(taken.ids)
        assert set(await queue.ack(taken)) <= {Result.ACKED}


@pytest.mark.parametrize(
    ("shards", "own", "messages"), [(1, False, MESSAGES), (4, False, 16_000), (4, True, 10_000)]
)
async def test_four_takers_on_four_instances_take_each_message_once(shards, own, messages):
    with redis_server() as server:
        async with opened(server.url, 4, shards=shards) as queues:
            seen: Counter[str] = Counter()
            limits = (1000, 333, 50, 7)
            takers = [
                asyncio.create_task(take_all(queue, limit, seen, messages))
                for queue, limit in zip(queues, limits, strict=True)
            ]
            put: set[str] = set()
            for start in range(0, messages, 2000):
                ids = [f"id-{start + at}" for at in range(2000)] if own else None
                delays = np.random.default_rng(start).integers(0, 300, 2000)
                due = queues[0].clock.now_ms() + delays
                queue = queues[start // 2000 % 4]
                answer = await queue.put_many("t", ["x"] * 2000, ids=ids, due=due)
                put.update(answer.ids)
            await asyncio.gather(*takers)
            assert set(seen) == put
            assert set(seen.values()) == {1}
            totals = Counter((await queues[0].stats()).totals)
            # A shard that was slow to answer got back, with its attempt, what it had leased.
            back = totals["release"]
            assert totals == Counter(put=messages, take=messages + back, ack=messages, release=back)
            assert await queues[0].find_stale() == []


async def test_one_message_wakes_many_and_is_given_to_one():
    with redis_server() as server:
        async with opened(server.url, 4) as queues:
            waits = [queue.take("t", 5, wait=1.5) for queue in queues for _ in range(5)]
            takers = asyncio.gather(*waits)
            await asyncio.sleep(0.2)
            await queues[0].put("t", "x")
            answers = await takers
            assert sorted(map(len, answers)) == [0] * 19 + [1]


# --- waking ---------------------------------------------------------------------------------------


async def comes(waiting: asyncio.Task, due_ms: int, queue: dwell.Queue) -> None:
    """See that a message comes after its due, and sooner than a tick that is seldom."""
    taken = await waiting
    late_ms = queue.clock.now_ms() - due_ms
    assert len(taken) == 1
    assert 0 <= late_ms < SELDOM_MS / 3


@pytest.fixture
def seldom(monkeypatch):
    """Let no tick make up for a wake that the channel lost."""
    monkeypatch.setattr(store, "_FALLBACK_MS", SELDOM_MS)


async def listening(count: int, *servers: Server) -> None:
    """Wait until so many connections listen to the channel of the first shard of a store."""

    def number(server: Server) -> int:
        channels = server.ask("PUBSUB", "CHANNELS", "dwell:{0}:wake:*")
        return sum(server.ask("PUBSUB", "NUMSUB", channel)[1] for channel in channels)

    await until_async(
        lambda: sum(map(number, servers)) >= count,
        "nobody asked for a new connection",
        pause_s=0.02,
    )


def waiting_on(queue: dwell.Queue) -> asyncio.Task:
    return asyncio.create_task(queue.take("t", wait=30))


@pytest.mark.usefixtures("seldom")
@pytest.mark.parametrize("shards", [1, 4])
async def test_a_taker_gets_at_once_what_another_instance_put(shards):
    with redis_server() as server:
        async with opened(server.url, 2, shards=shards) as (one, other):
            await listening(2, server)
            for delay in (0, 0, 0.4, 0.05, 0):
                waiting = waiting_on(other)
                await asyncio.sleep(0.2)
                put = await one.put("t", "x", delay=delay)
                due_ms = (await one.get("t", [put.id]))[0].due_ms
                await comes(waiting, due_ms, other)


@pytest.mark.usefixtures("seldom")
async def test_a_taker_gets_what_falls_due_earlier_than_planned():
    with redis_server() as server:
        async with opened(server.url, 2) as (one, other):
            await listening(2, server)
            await one.put("t", "later", delay=600)
            waiting = waiting_on(other)
            await asyncio.sleep(0.2)
            for delay, id_ in ((300, "soon"), (0.5, "sooner")):
                due_ms = one.clock.now_ms() + int(delay * 1000)
                await one.put("t", id_, id=id_, due=due_ms)
            await comes(waiting, due_ms, other)
            # What is moved nearer wakes as well.
            waiting = waiting_on(other)
            await asyncio.sleep(0.2)
            due_ms = one.clock.now_ms() + 400
            assert await one.reschedule("t", "soon", due=due_ms) is Result.MOVED
            await comes(waiting, due_ms, other)


@pytest.mark.usefixtures("seldom")
async def test_a_taker_gets_what_an_instance_that_is_gone_had():
    with redis_server() as server:
        async with dwell.open(server.url) as other:
            await listening(1, server)
            async with dwell.open(server.url) as one:
                await one.put("t", "leased")
                taken = await one.take("t", lease=0.5)
            waiting = waiting_on(other)
            await comes(waiting, int(taken.lease_until_ms[0]), other)
            async with dwell.open(server.url) as one:
                due_ms = one.clock.now_ms() + 500
                waiting = waiting_on(other)
                await one.put("t", "delayed", due=due_ms)
            await comes(waiting, due_ms, other)


@pytest.mark.usefixtures("seldom")
async def test_a_taker_gets_what_was_paused_buried_or_given_back_elsewhere():
    with redis_server() as server:
        async with opened(server.url, 2) as (one, other):
            await listening(2, server)
            await one.configure("t", paused=True)
            put = await one.put("t", "x", id="x")
            waiting = waiting_on(other)
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await one.configure("t", paused=False)
            await comes(waiting, one.clock.now_ms() - 50, other)
            await other.bury(waiting.result())
            waiting = waiting_on(other)
            await asyncio.sleep(0.1)
            assert await one.kick("t", put.id) is Result.KICKED
            await comes(waiting, one.clock.now_ms() - 50, other)
            again = waiting_on(one)
            await asyncio.sleep(0.1)
            await other.release(waiting.result(), delay=0)
            await comes(again, one.clock.now_ms() - 50, one)


@pytest.mark.usefixtures("seldom")
async def test_instances_on_a_cluster_wake_each_other():
    with redis_cluster() as cluster:
        async with opened(cluster.url, 2, shards=4) as (one, other):
            await listening(2, *cluster.nodes)
            for at in range(8):
                waiting = waiting_on(other)
                await asyncio.sleep(0.1)
                due_ms = one.clock.now_ms() + 100 * (at % 2)
                await one.put("t", "x", key=f"key {at}", due=due_ms)
                await comes(waiting, due_ms, other)


# --- a channel that is broken ---------------------------------------------------------------------


async def test_a_lost_wake_is_made_up_for(monkeypatch):
    with redis_server() as server:
        async with opened(server.url, 2) as (one, other):
            for delay in (0, 0.3, 0):
                waiting = waiting_on(other)
                await asyncio.sleep(0.1)
                # Whoever was cut off before may not be back yet.
                await until_async(lambda: server.ask("CLIENT", "KILL", "TYPE", "pubsub"))
                due_ms = one.clock.now_ms() + int(delay * 1000)
                await one.put("t", "x", due=due_ms)
                await comes(waiting, due_ms, other)
            # Both listen again after that; the first tick of these was planned before.
            await listening(2, server)
            monkeypatch.setattr(store, "_FALLBACK_MS", SELDOM_MS)
            for _ in range(3):
                waiting = waiting_on(other)
                await asyncio.sleep(0.1)
                due_ms = one.clock.now_ms()
                await one.put("t", "x", due=due_ms)
                await comes(waiting, due_ms, other)


@pytest.mark.parametrize("shards", [1, 4])
async def test_an_instance_that_hears_nothing_is_given_all(shards):
    with redis_server() as server:
        async with between(server.url) as wire:
            wire.break_("silent", only=b"SUBSCRIBE")
            options = {"shards": shards}
            async with (
                dwell.open(server.url, **options) as one,
                dwell.open(wire.url, **options) as deaf,
            ):
                for delay in (0, 0.7, 0):
                    waiting = waiting_on(deaf)
                    await asyncio.sleep(random.random() * 0.3)
                    due_ms = one.clock.now_ms() + int(delay * 1000)
                    await one.put("t", "x", due=due_ms)
                    await comes(waiting, due_ms, deaf)


async def test_a_channel_that_hangs_is_opened_anew():
    with redis_server() as server:
        async with (
            between(server.url) as wire,
            dwell.open(server.url) as one,
            dwell.open(wire.url) as other,
        ):
            await asyncio.sleep(0.1)
            wire.break_("silent", only=b"PING")
            # The server knows nothing of the end of the connection that hangs.
            await listening(3, server)
            wire.break_("pass")
            waiting = waiting_on(other)
            await asyncio.sleep(0.1)
            due_ms = one.clock.now_ms()
            await one.put("t", "x", due=due_ms)
            await comes(waiting, due_ms, other)


@pytest.mark.usefixtures("seldom")
@pytest.mark.parametrize(
    "said",
    [b"", b"\xc1", "text", ["name", 1], ["name", "x", []], ["name", 0, ["t"]], ["n", 0, [5]]],
)
async def test_what_strangers_say_on_the_channel_is_not_heard(said):
    with redis_server() as server:
        async with opened(server.url, 2) as (one, other):
            await listening(2, server)
            data = said if isinstance(said, bytes) else msgspec.msgpack.encode(said)
            with server.client() as client:
                assert client.publish(f"dwell:{{0}}:wake:{one.store.number}", data) == 2
            waiting = waiting_on(other)
            await asyncio.sleep(0.1)
            due_ms = one.clock.now_ms()
            await one.put("t", "x", due=due_ms)
            await comes(waiting, due_ms, other)


# --- order ----------------------------------------------------------------------------------------


async def put_some(queues, count: int, keys: int) -> list[tuple[str, int, int]]:
    """Put messages of the past through all instances; return key, due and body of each."""
    chance, put = random.Random(count), []
    base_ms = queues[0].clock.now_ms() - 3_600_000
    for start in range(0, count, 100):
        keyed = [f"key-{chance.randrange(keys)}" for _ in range(100)]
        dues = [base_ms + chance.randrange(3_000_000) for _ in range(100)]
        bodies = [str(start + at) for at in range(100)]
        queue = queues[start // 100 % len(queues)]
        await queue.put_many("t", bodies, due=np.array(dues), key=keyed if keys > 1 else None)
        put += zip(keyed, dues, map(int, bodies), strict=True)
    return put


@pytest.mark.parametrize("limit", [1, 37, 1000])
async def test_one_shard_gives_messages_strictly_by_due(limit):
    with redis_server() as server:
        async with opened(server.url, 3) as queues:
            put = await put_some(queues, 1000, 1)
            order = []
            # One after another, whichever instance asks.
            while len(taken := await queues[len(order) % 3].take("t", limit, lease="1h")):
                order += zip(taken.due_ms.tolist(), map(int, taken.bodies), strict=True)
            assert order == sorted((due_ms, body) for _, due_ms, body in put)


@pytest.mark.parametrize("limit", [1, 37, 1000])
async def test_four_shards_give_the_messages_of_each_key_by_due(limit):
    with redis_server() as server:
        async with opened(server.url, 4, shards=4) as queues:
            put = await put_some(queues, min(2000, 300 * limit), 30)
            expected, order, at = defaultdict(list), defaultdict(list), 0
            for key, due_ms, body in put:
                expected[key].append((due_ms, body))
            while len(taken := await queues[at % 4].take("t", limit, lease="1h")):
                at += 1
                for message in taken:
                    order[message.key].append((message.due_ms, int(message.body)))
            assert order == {key: sorted(many) for key, many in expected.items()}
            # They are spread: no instance has to ask one shard for all of them.
            assert all(size.leased > 0 for size in await queues[0].sizes("t"))
