"""Selecting, over Redis with several shards."""

import pytest

import dwell
from dwell.clock import RealClock
from tests.redis.servers import redis_server
from tests.redis.test_redis_suite import new_store
from tests.selections import CHANGES, check, check_change, run

PAIRS = pytest.mark.parametrize(
    ("make_store", "face"), [(1, "http"), (3, "python")], indirect=["make_store"]
)


@pytest.fixture
def make_store(request, redis_url):
    """Return what makes a store of so many shards."""
    return lambda: new_store(redis_url, RealClock(), shards=request.param)


@PAIRS
def test_a_selection_gives_what_a_plain_filter_gives(make_store, face, monkeypatch):
    run(make_store, face, monkeypatch, check)


@PAIRS
def test_what_is_changed_is_what_a_plain_filter_gives(make_store, face, monkeypatch):
    run(make_store, face, monkeypatch, check_change, CHANGES)


async def test_messages_of_one_id_in_several_shards_are_leased_once_each_time_it_is_named():
    """Messages with other keys are other messages, and may have the same id."""
    keys = ["ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal"]
    with redis_server() as server:
        async with dwell.open(server.url, shards=4) as queue:
            await queue.configure("t", max_attempts=1)
            for key in keys:
                await queue.put("t", key, id="order-1", key=key)
            count = (await queue.stats()).topics["t"].ready
            assert count > 1, "all keys are in one shard"
            assert len(await queue.take_ids("t", ["order-1"])) == 1
            assert (await queue.stats()).topics["t"].leased == 1
            taken = await queue.take_where("t", dwell.select(), limit=100)
            assert len(taken) == count - 1 == len(set(taken.bodies))
