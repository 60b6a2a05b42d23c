"""Settings of topics on several shards: changed by several instances, and left half done."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

import dwell
from dwell.store.redis.layout import settings_of
from tests.redis.servers import redis_server
from tests.waiting import until_async

SHARDS = 4


def texts(server, topic: str) -> list[dict[str, object] | None]:
    """Return what each shard has of the settings of a topic."""
    with server.client() as client:
        found = [client.hget(f"dwell:{{{shard}}}:topics", topic) for shard in range(SHARDS)]
    return [text and msgspec.msgpack.decode(settings_of(text)) for text in found]


def unsettled(server) -> int:
    """Return how many shards have notes of settings that others may not have."""
    keys = [f"dwell:{{{shard}}}:unsettled" for shard in range(SHARDS)]
    return sum(server.ask("EXISTS", key) for key in keys)


def are_alike(found: Sequence[object]) -> bool:
    return found[0] is not None and all(each == found[0] for each in found)


async def test_changes_at_once_are_merged_and_the_same_on_all_shards() -> None:
    with redis_server() as server:
        async with (
            dwell.open(server.url, shards=SHARDS) as one,
            dwell.open(server.url) as two,
        ):
            for n in range(30):
                topic = f"t{n}"
                told = await asyncio.gather(
                    one.configure(topic, paused=True),
                    two.configure(topic, max_attempts=3),
                    one.configure(topic, rate=n),
                    two.configure(topic, rate=100),
                )
                holds = await one.settings(topic)
                assert (holds.paused, holds.max_attempts) == (True, 3)
                assert holds.rate in (n, 100)
                assert holds in told
                assert are_alike(texts(server, topic))


async def test_a_change_that_was_cut_off_is_ended_by_the_next_tick(monkeypatch) -> None:
    with redis_server() as server:
        async with dwell.open(server.url, shards=SHARDS) as other:
            async with dwell.open(server.url) as killed:
                # Shards that are new are compared first.
                await until_async(lambda: not unsettled(server), "shards were not compared")
                settling, told = killed.store._settling, []
                real = settling._set

                async def only_one(shard: int, *how: object) -> object:
                    if told:
                        raise asyncio.CancelledError
                    told.append(shard)
                    return await real(shard, *how)

                monkeypatch.setattr(settling, "_set", only_one)
                with pytest.raises(asyncio.CancelledError):
                    await killed.configure("t", paused=True)
            assert texts(server, "t")[0]["paused"]
            await until_async(lambda: are_alike(texts(server, "t")), lambda: texts(server, "t"))
            assert (await other.settings("t")).paused


async def test_a_change_is_merged_into_the_newest_settings_of_any_shard() -> None:
    """The first shard came back with older data, and nobody has compared the shards yet."""
    with redis_server() as server:
        async with dwell.open(server.url, shards=SHARDS) as queue:
            await queue.configure("t", max_attempts=7)
            with server.client() as client:
                keys = ["dwell:{0}:topics", "dwell:{0}:versions"]
                old = [client.dump(key) for key in keys]
                await queue.configure("t", max_pending=500)
                for key, data in zip(keys, old, strict=True):
                    client.restore(key, 0, data, replace=True)
            assert texts(server, "t")[0]["max_pending"] == 0
            holds = await queue.configure("t", lease_ms=90_000)
            assert (holds.max_attempts, holds.max_pending, holds.lease_ms) == (7, 500, 90_000)
            assert are_alike(texts(server, "t"))
            assert texts(server, "t")[0]["max_pending"] == 500


async def test_defaults_are_set_though_the_first_shard_has_lost_what_they_replace() -> None:
    with redis_server() as server:
        async with dwell.open(server.url, shards=SHARDS) as queue:
            await queue.configure("t", paused=True)
            with server.client() as client:
                for name in ("topics", "versions"):
                    client.hdel(f"dwell:{{0}}:{name}", "t")
            assert not (await queue.settings("t")).paused
            await queue.configure("t", paused=False)
            assert not any(text and text["paused"] for text in texts(server, "t"))


async def test_the_newest_settings_of_any_shard_hold_after_a_loss() -> None:
    """A shard that comes back with older settings, the first one too, gets the newest."""
    with redis_server() as server:
        async with dwell.open(server.url, shards=SHARDS) as queue:
            for shard in range(SHARDS):
                await queue.configure("t", max_attempts=shard + 2)
                with server.client() as client:
                    old = client.dump(f"dwell:{{{shard}}}:topics")
                    versions = client.dump(f"dwell:{{{shard}}}:versions")
                await queue.configure("t", paused=bool(shard % 2))
                holds = await queue.settings("t")
                with server.client() as client:
                    # As a failover leaves it: older data, and another process of the engine.
                    client.restore(f"dwell:{{{shard}}}:topics", 0, old, replace=True)
                    client.restore(f"dwell:{{{shard}}}:versions", 0, versions, replace=True)
                    client.hset(f"dwell:{{{shard}}}:meta", "engine", "another")
                paused = holds.paused

                def hold(paused: bool = paused) -> bool:
                    found = texts(server, "t")
                    return are_alike(found) and found[0]["paused"] == paused

                await until_async(hold, lambda: texts(server, "t"))
                assert await queue.settings("t") == holds
