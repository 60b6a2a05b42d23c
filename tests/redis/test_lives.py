"""Lives of a store: engines come back empty, or with older data, under instances that go on."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell import Result
from dwell.server.sealed import sealed
from dwell.store.redis import RedisStore
from dwell.store.redis.agreement import FORMAT, Config, drawn
from dwell.store.redis.engine import Engine
from dwell.store.redis.resharding import reshard
from dwell.testing.model import Entry
from dwell.testing.views import puts_of
from tests import RUNS
from tests.redis.servers import redis_cluster, redis_server, until
from tests.waiting import PATIENCE_S, until_async

RDB = {"dbfilename": "lives.rdb"}


def restarted(server) -> None:
    """Let an engine come back as it was when it was saved last, or empty."""
    server.kill()
    server.start()


async def all_events(queue: dwell.Queue, position: int = 0):
    """Return all events from a position on, the last page, and whether a gap was told."""
    found, has_gap = [], False
    while True:
        page = await queue.events(position, 1_000)
        has_gap |= page.first_position > position
        found += page.events
        position = page.next_position
        if not len(page.events):
            return found, page, has_gap


# --- an engine that comes back empty --------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 4])
async def test_an_engine_that_comes_back_empty_is_one_store(shards: int) -> None:
    with redis_server() as server:
        async with dwell.open(server.url, shards=shards) as old:
            await old.put_many("t", ["x"] * 40, ids=[f"a{n}" for n in range(40)])
            (lost,) = await old.take("t", lease="10m")
            restarted(server)
            put = await old.put_many("t", ["x"] * 40, ids=[f"b{n}" for n in range(40)])
            assert {each.result for each in put} == {Result.CREATED}
            async with dwell.open(server.url) as new:
                taken = await new.take("t", 100, lease="10m")
                assert sorted(taken.ids) == sorted(f"b{n}" for n in range(40))
                assert set(await old.ack(taken)) == {Result.ACKED}
                again = [await queue.put("v", "x", id="one") for queue in (old, new)]
                assert [each.result for each in again] == [Result.CREATED, Result.KEPT]
            with pytest.raises(dwell.ForeignReceipt):
                await old.ack(lost)


async def test_a_claim_that_was_under_way_when_all_was_lost_brings_no_number_back() -> None:
    with redis_server() as server:
        async with dwell.open(server.url, shards=4) as queue:
            store = queue.store
            assert isinstance(store, RedisStore)
            gone = store.shards._config
            assert gone is not None
            server.ask("FLUSHALL")
            await store.shards._claim(2, gone)
            await queue.put_many("t", ["x"] * 40)
            assert store.number != gone.number


async def test_two_instances_agree_on_who_was_first_after_a_flush() -> None:
    with redis_server() as server:
        async with dwell.open(server.url, shards=2) as one, dwell.open(server.url) as two:
            server.ask("FLUSHALL")
            ids = [f"i{n}" for n in range(20)]
            put = await asyncio.gather(*(q.put_many("t", ["x"] * 20, ids=ids) for q in (one, two)))
            assert Counter(each.result for answers in put for each in answers) == {
                Result.CREATED: 20,
                Result.KEPT: 20,
            }
            assert one.store.number == two.store.number
            # Both hear of what the other puts by the channels of the new store.
            waiting = asyncio.ensure_future(two.take("u", wait="60s"))
            await until_async(lambda: two.store.waiting(), "nobody waits")
            await one.put("u", "x")
            assert len(await waiting) == 1


async def test_another_number_of_shards_is_told_once() -> None:
    """A store that was made anew with other shards is followed, and what was under way fails."""
    with redis_server() as server:
        async with dwell.open(server.url, shards=2), dwell.open(server.url) as follower:
            made = server.client().pipeline()
            made.flushall()
            made.set("dwell:{0}:store", msgspec.msgpack.encode(Config(FORMAT, drawn(), 3)))
            made.execute()
            with pytest.raises(dwell.ServerUnreachable, match="3 shards by now"):
                await follower.put("t", "x", id="one")
            async with dwell.open(f"{server.url}?shards=3") as new:
                assert (await new.put("t", "x", id="one")).result is Result.CREATED
                assert (await follower.put("t", "x", id="one")).result is Result.KEPT


async def test_servers_on_a_store_that_was_made_anew_know_each_others_receipts() -> None:
    with redis_server() as server:
        one, two = (sealed(RedisStore(server.url)) for _ in range(2))
        await one.open()
        await one.put(puts_of("t", [Entry("x", b"x", 0)]), "keep")
        lost = await one.take(["t"], 1, 60_000, "")
        assert (await one.ack(lost.receipts)).tolist() == [Result.ACKED]
        made = server.client().pipeline()
        made.flushall()
        made.set("dwell:{0}:secret", bytes(16))
        made.execute()
        await two.open()
        await one.put(puts_of("t", [Entry("x", b"x", 0)]), "keep")
        taken = await one.take(["t"], 1, 60_000, "")
        assert (await two.ack(taken.receipts)).tolist() == [Result.ACKED]
        for store in (one, two):
            await store.close()


async def test_shards_of_a_cluster_that_come_back_empty_follow_the_others() -> None:
    with redis_cluster(3) as cluster:
        async with dwell.open(cluster.url, shards=3, timeout=30) as queue:
            await queue.configure("t", paused=True)
            number = queue.store.number
            ids = [f"i{n}" for n in range(60)]
            await queue.put_many("t", ["x"] * 60, ids=ids)
            for shard in range(3):
                cluster.owner(f"dwell:{{{shard}}}:meta").ask("FLUSHALL")
                await queue.put_many("t", ["x"] * 60, ids=ids)
                assert queue.store.number == number
                for of in range(3):
                    key, node = f"dwell:{{{of}}}:topics", cluster.owner(f"dwell:{{{of}}}:meta")
                    await until_async(lambda n=node, k=key: n.ask("HEXISTS", k, "t"), "no settings")
            assert (await queue.settings("t")).paused
            assert not len(await queue.take("t", 100))
            assert (await queue.stats()).topics["t"].ready == 60
            async with dwell.open(cluster.url, timeout=30) as other:
                assert (other.store.number, other.store.shards.count) == (number, 3)


# --- an engine that comes back with older data ----------------------------------------------------


class Lives:
    """What an instance was told while an engine was saved, restarted and flushed under it."""

    def __init__(self, server, queue: dwell.Queue) -> None:
        self._server = server
        self._queue = queue
        self.made: set[str] = set()
        self.held: list[bytes] = []
        #: Receipts, and how many of them stand in the last copy.
        self.lost: list[bytes] = []
        self.saved = 0
        self.known: dict[tuple[int, str], list[tuple[str, str]]] = {}

    async def put(self) -> None:
        for answer in await self._queue.put_many("t", ["x"] * 3):
            assert answer.id not in self.made
            self.made.add(answer.id)

    async def take(self) -> None:
        self.held += [message.receipt for message in await self._queue.take("t", 2, lease="1h")]

    async def save(self) -> None:
        self._server.ask("SAVE")
        self.saved = len(self.held)

    async def restart(self) -> None:
        restarted(self._server)
        self.lost += self.held[self.saved :]
        del self.held[self.saved :]

    async def flush(self) -> None:
        self._server.ask("FLUSHALL")
        self._server.ask("SAVE")
        self.lost += self.held
        self.held, self.saved = [], 0

    async def check(self) -> None:
        """Ack what was lost, and compare the events before each position by its name."""
        for receipt in self.lost:
            with contextlib.suppress(dwell.ForeignReceipt):
                assert await self._queue.ack(receipt) is Result.STALE
        events, page, has_gap = await all_events(self._queue)
        assert not has_gap
        seen = [(str(event.kind), event.id) for event in events]
        name = (page.end_position, page.history)
        assert self.known.setdefault(name, seen) == seen
        for position, history in self.known:
            found = await self._queue.events(position, 1)
            if found.since == history:
                assert seen[:position] == self.known[position, history]


@given(st.lists(st.sampled_from(("put", "take", "save", "restart", "flush")), max_size=12))
@settings(max_examples=10 * RUNS, deadline=None)
def test_nothing_is_named_twice(steps: list[str]) -> None:
    async def run() -> None:
        with redis_server(**RDB) as server:
            async with dwell.open(server.url) as queue:
                lives = Lives(server, queue)
                for step in ["put", "save", *steps, "put", "take"]:
                    await getattr(lives, step)()
                    await lives.check()

    asyncio.run(run())


async def test_ids_of_a_lost_end_are_not_made_again() -> None:
    with redis_server(**RDB) as server:
        async with dwell.open(server.url) as queue:
            server.ask("SAVE")
            lost = await queue.put("t", "x", delay="1h")
            restarted(server)
            put = await queue.put("t", "x", delay="1h")
            assert await queue.cancel("t", lost.id) is Result.UNKNOWN
            assert await queue.get("t", put.id) is not None


async def test_a_receipt_of_a_lost_take_fits_no_later_take() -> None:
    with redis_server(**RDB) as server:
        async with dwell.open(server.url) as queue:
            await queue.put_many("t", ["x"] * 100)
            server.ask("SAVE")
            lost = await queue.take("t", 100, lease="10m")
            restarted(server)
            taken = await queue.take("t", 100, lease="10m")
            assert sorted(taken.ids) == sorted(lost.ids)
            assert set(await queue.ack(lost)) == {Result.STALE}
            assert set(await queue.ack(taken)) == {Result.ACKED}


async def test_places_have_no_gap_where_a_life_begins() -> None:
    """Parts of a sweep are cut by place: what was skipped among the numbers is in none of them."""
    with redis_server(**RDB) as server:
        async with dwell.open(server.url) as queue:
            ids = []
            for _ in range(3):
                ids += [put.id for put in await queue.put_many("t", ["x"] * 200)]
                server.ask("SAVE")
                restarted(server)
            places = (await queue.sweep()).places
            assert places <= 64 * (2 + 3 * 4)
            found = []
            for start in range(0, places, 64):
                found += (await queue.sweep(start=start, stop=start + 64)).messages.ids
            assert sorted(found) == sorted(ids)


async def test_a_follower_of_lost_events_is_told() -> None:
    with redis_server(**RDB) as server:
        async with dwell.open(server.url) as queue:
            await queue.put_many("t", ["x"] * 10)
            server.ask("SAVE")
            kept = await queue.events(0, 1_000)
            await queue.put_many("t", ["x"] * 200)
            lost = await queue.events(0, 1_000)
            restarted(server)
            for _ in range(2):
                at_kept = await queue.events(kept.next_position, 1)
                assert at_kept.since == kept.history
                at_lost = await queue.events(lost.next_position, 1)
                assert at_lost.since not in ("", lost.history)
                await queue.put_many("t", ["x"] * 300)


async def test_a_restart_that_loses_nothing_is_no_other_history() -> None:
    with redis_server(appendonly="yes", appendfsync="always") as server:
        async with dwell.open(server.url) as queue:
            await queue.put_many("t", ["x"] * 10)
            before = await queue.events(0, 1_000)
            restarted(server)
            await queue.put("t", "x")
            after = await queue.events(before.next_position, 1_000)
            assert (after.since, len(after.events)) == (before.history, 1)


async def test_events_of_a_shard_that_lost_its_end_are_not_passed_over() -> None:
    with redis_cluster(3) as cluster:
        async with dwell.open(cluster.url, shards=2, timeout=30) as queue:
            node = cluster.owner("dwell:{1}:meta")
            assert node is not cluster.owner("dwell:{0}:meta")

            async def put(word: str, count: int) -> list[str]:
                ids = [f"{word}-{n}" for n in range(count)]
                await queue.put_many("t", ["x"] * count, ids=ids)
                return ids

            await put("kept", 50)
            node.ask("SAVE")
            await put("lost", 400)
            _, page, _ = await all_events(queue)
            restarted(node)
            ids = await put("new", 100)
            events, _, has_gap = await all_events(queue, page.next_position)
            assert {event.id for event in events if str(event.kind) == "put"} == set(ids)
            assert has_gap


# --- resharding -----------------------------------------------------------------------------------


async def test_a_cluster_with_open_instances_is_not_resharded() -> None:
    with redis_cluster(3) as cluster:
        for shards in range(2, 5):
            async with dwell.open(cluster.url, timeout=30) as queue:
                await queue.put("t", "x")
                # An instance listens a moment after it was opened.
                await until_async(lambda q=queue: q.store.shards.listeners(), "nobody listens")
                with pytest.raises(dwell.StoreLocked):
                    await reshard(cluster.url, shards)


async def test_stores_of_two_databases_do_not_hold_up_each_other() -> None:
    with redis_server() as server:
        other = server.url.replace("/0", "/1")
        assert other != server.url
        async with dwell.open(server.url) as queue:
            async with dwell.open(other) as second:
                await second.put("t", "x", id="one")
            await until_async(lambda: queue.store.shards.listeners(), "nobody listens")
            await reshard(other, 2)
            assert (await queue.put("t", "x", id="one")).result is Result.CREATED


async def test_an_instance_that_nobody_saw_is_refused_when_the_store_is_resharded(
    monkeypatch,
) -> None:
    with redis_server() as server:
        async with dwell.open(server.url) as old:
            ids = [f"i{n}" for n in range(60)]
            await old.put_many("t", ["x"] * 60, ids=ids)

            async def nobody(_, channel: str) -> int:
                return 0

            monkeypatch.setattr("dwell.store.redis.engine.Engine.listeners", nobody)
            await reshard(server.url, 4)
            with contextlib.suppress(dwell.ServerUnreachable):
                await old.put("t", "x", id="i0")
            async with dwell.open(server.url) as new:
                for queue in (old, new):
                    assert {a.result for a in await queue.put_many("t", ["x"] * 60, ids=ids)} == {
                        Result.KEPT
                    }


@pytest.mark.parametrize(("shard", "is_raced"), [(0, False), (0, True), (1, False)])
async def test_a_shard_from_before_a_reshard_follows_the_others(
    shard: int, is_raced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer state wins: no instance goes back to the number of shards that there was."""
    with redis_server() as server, server.client() as client:
        async with dwell.open(server.url, shards=2) as queue:
            await queue.put_many("t", ["x"] * 60, ids=[f"i{n}" for n in range(60)])
        keys = [key for key in client.keys(f"dwell:{{{shard}}}:*") if "calls" not in str(key)]
        old = {key: client.dump(key) for key in keys}
        await reshard(server.url, 3)
        async with dwell.open(server.url) as queue:
            number = queue.store.number
            run, seen, assigned = Engine.run, asyncio.Event(), asyncio.Event()

            async def in_turn(engine: Engine, at: int, verb: str, *own: Any, **how: Any) -> Any:
                """Let the other one see the shard before this one assigns it."""
                is_own = engine is queue.store.shards.engine
                if verb == "claim" and is_own:
                    await seen.wait()
                answer = await run(engine, at, verb, *own, **how)
                if verb == "claim" and not is_own:
                    seen.set()
                    await asyncio.wait_for(assigned.wait(), PATIENCE_S)
                elif verb == "claim" and own[-2]:
                    assigned.set()
                return answer

            if is_raced:
                monkeypatch.setattr(Engine, "run", in_turn)
            for key, value in old.items():
                client.restore(key, 0, value, replace=True)
            async with dwell.open(server.url) as other:
                for each in (queue, other):
                    assert (await each.put("t", "x", id=str(id(each)))).result is Result.CREATED
                    assert (each.store.number, each.store.shards.count) == (number, 3)
            assert (await queue.stats()).topics["t"].ready >= 62


async def test_a_store_is_not_resharded_into_another_one() -> None:
    with redis_server() as server, server.client() as client:
        async with dwell.open(server.url, shards=3) as queue:
            await queue.put_many("t", ["x"] * 60, ids=[f"i{n}" for n in range(60)])
        for key in client.keys("dwell:{0}:*"):
            client.delete(key)
        client.hdel("dwell:{1}:meta", "config", "store")
        async with dwell.open(server.url, shards=1) as queue:
            await queue.put("t", "x", id="i1")
        with pytest.raises(dwell.StoreError, match="belongs to another store"):
            await reshard(server.url, 3)
        async with dwell.open(server.url) as queue:
            assert (await queue.put("t", "x", id="i1")).result is Result.KEPT


async def test_a_master_that_follows_and_is_promoted_again_begins_a_life() -> None:
    """It has lost its last writes to the data of a replica, and is the same process."""
    with redis_server() as first, redis_server() as second:
        async with dwell.open(first.url) as queue:
            await queue.put("t", "kept")
            _follow(second, first)
            second.ask("REPLICAOF", "NO", "ONE")
            lost = await queue.put("t", "lost")
            seen = await queue.events(0, 1_000)
            _follow(first, second)
            first.ask("REPLICAOF", "NO", "ONE")
            new = await queue.put("t", "new")
            assert new.id != lost.id
            assert await queue.cancel("t", lost.id) is Result.UNKNOWN
            after = await queue.events(seen.next_position, 1)
            assert after.since not in ("", seen.history)


def _follow(replica, master) -> None:
    """Let a server become a replica of another, until it has its data."""
    replica.ask("REPLICAOF", "127.0.0.1", str(master.port))
    until(lambda: replica.ask("INFO", "replication").get("master_link_status") == "up", "follows")
