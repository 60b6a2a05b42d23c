"""Puts of many callers that are joined, of which some shards refuse their part."""

import asyncio
import contextlib
from collections import Counter

import pyarrow as pa
import pytest

import dwell
from dwell import IdExists, Result, TopicFull
from dwell.errors import ServerUnreachable, StoreFull
from dwell.store.partly import partly_done
from dwell.store.redis.putting import shard_for
from dwell.testing.rig import words
from tests.redis.servers import redis_server

SHARDS = 4


@contextlib.asynccontextmanager
async def opened():
    """Give a queue over four shards of a real Redis."""
    with redis_server() as server:
        async with asyncio.timeout(60), dwell.open(server.url, shards=SHARDS) as queue:
            yield queue


async def taken(queue, count):
    """Return the bodies of so many messages; a shard that is slow gives its own to a later take."""
    bodies = []
    while len(bodies) < count:
        bodies += (await queue.take("t", 100, wait=10)).bodies
    return bodies


async def test_who_has_a_new_id_does_not_suffer_for_one_that_exists():
    async with opened() as queue:
        await queue.put("t", "old", id="exists")
        ids = [*(f"new-{number}" for number in range(12)), "exists"]
        puts = (queue.put("t", id_, id=id_, on_conflict="error") for id_ in ids)
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert [answer.result for answer in answers[:-1]] == [Result.CREATED] * 12
        assert isinstance(answers[-1], IdExists)
        assert len(await taken(queue, 13)) == 13


async def test_in_a_topic_that_is_nearly_full_what_was_answered_is_there_once():
    async with opened() as queue:
        await queue.configure("t", max_pending=10 * SHARDS)
        for number in range(10):
            await queue.put("t", f"fill-{number}", key="k0")
        puts = (queue.put("t", f"job-{number}", key=f"k{number}") for number in range(16))
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert {type(answer) for answer in answers} == {dwell.Put, TopicFull}
        count = 10 + sum(isinstance(answer, dwell.Put) for answer in answers)
        bodies = Counter(await taken(queue, count))
        for number, answer in enumerate(answers):
            assert bodies[b"job-%d" % number] == isinstance(answer, dwell.Put)


async def test_batches_that_are_joined_are_told_each_its_own():
    async with opened() as queue:
        await queue.put("t", "old", id="exists")
        many = [[f"{batch}-{number}" for number in range(20)] for batch in range(3)]
        many[1][7] = "exists"
        puts = (queue.put_many("t", ids, ids=ids, on_conflict="error") for ids in many)
        first, second, third = await asyncio.gather(*puts, return_exceptions=True)
        for answer, ids in ((first, many[0]), (third, many[2])):
            assert list(answer.ids) == ids
            assert words(answer.results) == ["created"] * 20
            assert all(answer.numbers)
        assert isinstance(second, IdExists)
        count = (await queue.stats()).topics["t"].ready
        bodies = Counter(await taken(queue, count))
        assert set(bodies.values()) == {1}
        assert {id_.encode() for id_ in (*many[0], *many[2])} <= set(bodies)
        # What one caller's shards put before another refused is said in the error.
        put = sum(id_.encode() in bodies for id_ in many[1] if id_ != "exists")
        assert f"{put} of the batch were put all the same" in str(second)


async def test_the_counts_of_a_joined_batch_are_of_both_tries():
    """What one caller's shards refuse because of another caller is put at the second try."""
    async with opened() as queue:
        shards = {shard_for(b"e%d" % n, None, SHARDS): f"e{n}" for n in range(40)}
        first, second = shards[0], shards[1]
        await queue.put_many("t", ["old"] * 2, ids=[first, second])
        many = [[first], [second, *(f"i{number}" for number in range(40))]]
        puts = (queue.put_many("t", ids, ids=ids, on_conflict="error") for ids in many)
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(answer) for answer in answers] == [IdExists] * 2
        there = (await queue.stats()).topics["t"].ready - 2
        assert answers[1].put_before == {Result.CREATED: there}
        assert (answers[0].put_before, there > 0) == ({}, True)


async def test_the_counts_of_a_table_have_what_was_put_before_a_refusal():
    async with opened() as queue:
        await queue.configure("t", max_pending=10 * SHARDS)
        ids, told = [f"i{n}" for n in range(10 * SHARDS)], []
        table = pa.table({"id": ids, "body": ids})
        with pytest.raises(TopicFull):
            await queue.put_table("t", table, on_put=told.append)
        (counts,) = told
        assert counts == {Result.CREATED: (await queue.stats()).topics["t"].ready}


async def test_nothing_stays_of_a_put_that_is_refused():
    """Large texts come before the call that is to put them."""
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            await queue.put("ids", "old", id="exists")
            await queue.configure("full", max_pending=10)
            for topic, ids in (("full", None), ("ids", ["exists", *map(str, range(199))])):
                with contextlib.suppress(TopicFull, IdExists):
                    await queue.put_many(topic, ["x" * 1000] * 200, ids=ids, on_conflict="error")
                    pytest.fail("it was not refused")
        with server.client() as engine:
            assert list(engine.scan_iter("*:new:*")) == []


def test_an_unknown_outcome_matters_more_than_a_refusal():
    each = [StoreFull("full"), ServerUnreachable("away"), int(Result.ACKED)]
    error = partly_done(each)
    assert (type(error), str(error)) == (
        ServerUnreachable,
        "away; 1 of the batch were done all the same",
    )
    assert (error.is_partly, error.each) == (True, each)
    nothing = partly_done(each[:2])
    assert (str(nothing), nothing.is_partly, nothing.each) == ("away", False, each[:2])
    assert partly_done(each[:1] * 2) is each[0]
