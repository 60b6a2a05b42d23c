"""Sealed receipts: nobody can foretell one, and each is good wherever the store's secret is."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dwell
from dwell import Result
from dwell.errors import ForeignReceipt
from dwell.queue import Queue
from dwell.server.seal import Seal
from dwell.server.sealed import sealed
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.store.redis import RedisStore
from tests.redis.servers import redis_server

words = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(words, words), max_size=50), st.binary(min_size=1, max_size=32))
def test_what_is_closed_can_be_opened_and_says_whose_it_is(pairs, secret):
    receipts = np.array(pairs, np.uint64).reshape(-1, 2)
    closed = Seal(secret).closed(receipts)
    assert np.array_equal(Seal(secret).opened(closed), receipts)
    assert np.array_equal(closed[:, 0] >> np.uint64(32), receipts[:, 0] >> np.uint64(32))


def test_each_bit_depends_on_each_bit_of_what_was_there():
    """Of 96 bits half change, whichever one of them was another; the store's number never does."""
    seal = Seal(b"some secret")
    base = np.array([[7 << 32 | 12345, 987654321]], np.uint64)
    before = seal.closed(base)
    for place in range(96):
        other = base.copy()
        other[0, 1 if place < 64 else 0] ^= np.uint64(1 << place % 64)
        differing = [int(word).bit_count() for word in (seal.closed(other) ^ before)[0]]
        assert 20 <= sum(differing) <= 76
        assert (int(seal.closed(other)[0, 0]) >> 32) == 7


def test_another_secret_makes_other_receipts():
    receipts = np.arange(2000, dtype=np.uint64).reshape(-1, 2)
    one, other = (Seal(secret).closed(receipts) for secret in (b"one", b"other"))
    assert not np.any(one == other)


@contextlib.asynccontextmanager
async def opened(store):
    async with Queue(sealed(store)) as queue:
        yield queue


def nearby(receipt: str) -> list[str]:
    """Return what receipts of other takes would be, if they were only counted up."""
    number = int(receipt, 16)
    steps = (1, 1 << 24, 1 << 64, (1 << 64) + (1 << 24), 1 << 32, 1 << 8, 1 << 14)
    return [f"{number + sign * step:032x}" for step in steps for sign in (1, -1)]


@pytest.fixture(scope="module")
def redis_url():
    with redis_server() as server:
        yield server.url


@pytest.fixture(params=["memory", "folder", "redis"])
def store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore(dwell.RealClock())
    if request.param == "folder":
        return EmbeddedStore(tmp_path)
    return RedisStore(request.getfixturevalue("redis_url"), prefix=tmp_path.name)


async def test_of_two_takers_neither_can_end_the_others_work(store):
    async with opened(store) as queue:
        await queue.put_many("t", [b"x"] * 20)
        first, second = await queue.take("t", 10), await queue.take("t", 10)
        for message in first:
            for guess in nearby(message.receipt):
                assert await queue.ack(guess) is Result.STALE
        assert set(await queue.ack(second)) == {Result.ACKED}
        assert set(await queue.ack(first)) == {Result.ACKED}


async def test_every_verb_knows_its_receipts(store):
    async with opened(store) as queue:
        await queue.put_many("t", [b"x"] * 5, ids=list("abcde"))
        one, two, three = [await queue.take("t", 1, owner="me") for _ in range(3)]
        assert await queue.touch(one[0], "1h") is Result.TOUCHED
        assert await queue.release(two[0]) is Result.RELEASED
        assert await queue.bury(three[0], "no") is Result.BURIED
        assert await queue.taken_from([one[0].receipt, two[0].receipt]) == ["t", None]
        assert [m.receipt for m in await queue.held("me")] == [one[0].receipt]
        by_id = await queue.take_ids("t", ["e"])
        assert await queue.ack(by_id[0]) is Result.ACKED
        with pytest.raises(ForeignReceipt):
            await queue.ack("00000001" + one[0].receipt[8:])


async def test_a_receipt_outlives_the_server(tmp_path):
    async with opened(EmbeddedStore(tmp_path)) as queue:
        await queue.put("t", b"x")
        (message,) = await queue.take("t", lease="1h")
    async with opened(EmbeddedStore(tmp_path)) as queue:
        assert await queue.ack(message.receipt) is Result.ACKED


async def test_servers_on_one_redis_know_each_others_receipts(redis_url):
    async with opened(RedisStore(redis_url)) as one, opened(RedisStore(redis_url)) as other:
        await one.put("t", b"x")
        (message,) = await one.take("t", lease="1h")
        assert await other.ack(message.receipt) is Result.ACKED
