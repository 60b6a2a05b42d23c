"""Nothing twice, and nothing lost: messages that the store still has under ids that it made."""

import numpy as np
import pyarrow as pa
import pytest

import dwell
from dwell.batch.blobs import moved_mark
from dwell.errors import Forbidden, InvalidInput, TopicFull
from dwell.queue.exports import doubles
from dwell.queue.exports.manifest import read
from dwell.store.redis.resharding import reshard
from tests.exports.conftest import everything

FAR_MS = 4_102_444_800_000


def bodies(queue, topic="t"):
    return sorted(message.body for message in everything(queue, [topic]).values())


@pytest.mark.parametrize("shards", [(1, 4), (2, 6)])
async def test_a_reshard_hides_no_messages(stores, tmp_path, shards):
    before, after = shards
    url = stores.new("redis")
    async with dwell.open(f"{url}?shards={before}") as queue:
        made = await queue.put_many("t", [b"%d" % n for n in range(300)], due=FAR_MS)
        await queue.put_many("t", [b"own"] * 50, ids=[f"i{n}" for n in range(50)], key="k")
        await queue.export(tmp_path / "export")
        number = queue.store.number
    await reshard(url, after)
    async with dwell.open(url) as queue:
        assert queue.store.number != number
        await queue.cancel("t", [*made.ids[:5], "i1"])
        for created in (6, 0):
            done = await queue.put_export(tmp_path / "export")
            assert (done.total.created, done.total.kept) == (created, 350 - created)


async def test_a_restored_backup_takes_its_messages_for_the_same(tmp_path):
    async with dwell.open(tmp_path / "a") as queue:
        await queue.put_many("t", [b"x"] * 10)
        await queue.export(tmp_path / "export")
        await queue.store.backup(tmp_path / "backup")
        number = queue.store.number
    async with dwell.open(tmp_path / "backup") as queue:
        assert queue.store.number != number
        done = await queue.put_export(tmp_path / "export")
        assert (done.total.created, done.total.kept) == (0, 10)


@pytest.mark.parametrize(
    ("kind", "other"), [("folder", "folder"), ("folder", "redis"), ("redis", "folder")]
)
def test_messages_that_come_back_are_there_already(stores, tmp_path, kind, other):
    """From a store to another and back, while some are still there and some are gone."""
    first, second = stores.new(kind), stores.new(other)
    with dwell.open(first) as queue:
        made = queue.put_many("t", [b"%d" % n for n in range(5)])
        queue.export(tmp_path / "there")
    with dwell.open(second) as queue:
        queue.put_export(tmp_path / "there")
        queue.put("t", b"new")
        queue.export(tmp_path / "back")
    with dwell.open(first) as queue:
        queue.cancel("t", made.ids[0])
        for created in (2, 0):
            done = queue.put_export(tmp_path / "back")
            assert (done.total.created, done.total.kept) == (created, 6 - created)
        assert bodies(queue) == [b"0", b"1", b"2", b"3", b"4", b"new"]


def test_messages_come_back_to_a_store_in_memory(tmp_path):
    with dwell.open("memory:") as queue:
        queue.put_many("t", [b"x"] * 5)
        queue.export(tmp_path / "there")
        with dwell.open(tmp_path / "other") as other:
            other.put_export(tmp_path / "there")
            other.export(tmp_path / "back")
        assert queue.put_export(tmp_path / "back").total.kept == 5


def test_an_id_that_another_message_becomes_is_rejected(tmp_path):
    with dwell.open(tmp_path / "a") as queue:
        made = queue.put_many("t", [b"made"] * 3)
        queue.export(tmp_path / "first")
        mark = moved_mark(int(read(tmp_path / "first").store, 16))
        alike = [f"{mark}{id_[1:]}" for id_ in made.ids]
        queue.put_many("t", [b"alike"] * 3, ids=alike)
        # Nothing becomes these.
        queue.put_many("t", [b"other"] * 2, ids=[f"{mark}ff-1", f"{mark}x"])
        queue.put("u", b"other", id=alike[0])
        queue.export(tmp_path / "export")
        done = queue.put_export(tmp_path / "export")
        assert (done.total.created, done.total.kept) == (0, 9)
    bad = {}
    with dwell.open(tmp_path / "b") as queue:
        with pytest.raises(InvalidInput, match=r"^row 3: id: got 'moved-.*', expected none that"):
            queue.put_export(tmp_path / "export")
        done = queue.put_export(tmp_path / "export", on_bad=bad.__setitem__)
        assert (done.total.rejected, done.balances, len(bad)) == (3, True, 3)
        assert bodies(queue) == [b"made"] * 3 + [b"other"] * 2
        assert bodies(queue, "u") == [b"other"]


def test_an_id_that_messages_have_under_several_keys_is_rejected_where_one_is_hidden(
    stores, tmp_path
):
    keys = "abcdefgh"
    with dwell.open(f"{stores.new('redis')}?shards=4") as queue:
        for key in keys:
            queue.put("t", key, id="x", key=key, due=FAR_MS)
        queue.put_many("t", [b"own"] * 5, ids=list("12345"), key=list("aabbc"), due=FAR_MS)
        queue.put_many("u", [b"plain"] * 3, due=FAR_MS)
        queue.export(tmp_path / "export")
        count = queue.stats().topics["t"].delayed
        # All are there in it.
        assert count > 7
        done = queue.put_export(tmp_path / "export").total
        assert (done.created, done.rejected, done.kept) == (0, 0, count + 3)
    with dwell.open(f"{stores.new('redis')}?shards=4") as queue:
        # A store like it has them all, and again when they are there or done.
        assert queue.put_export(tmp_path / "export").total.created == count + 3
        for _ in range(2):
            done = queue.put_export(tmp_path / "export").total
            assert (done.created, done.rejected, done.kept) == (0, 0, count + 3)
            queue.reschedule("t", "1", due=0)
            queue.ack(queue.take("t"))
        assert queue.stats().topics["t"].delayed == count - 1
    with dwell.open(tmp_path / "b") as queue:
        with pytest.raises(InvalidInput, match=r"^row \d+: id: got 'x', expected one that no earl"):
            queue.put_export(tmp_path / "export")
        assert len(bodies(queue)) == 6
    with dwell.open("memory:") as queue:
        for created in (9, 0):
            bad = {}
            done = queue.put_export(tmp_path / "export", on_bad=bad.__setitem__)
            assert (done.total.created, done.total.kept) == (created, 9 - created)
            assert (done.total.rejected, done.balances, len(bad)) == (count - 6, True, count - 6)
        assert len(bodies(queue)) == 6


def test_the_ids_of_several_keys_are_found_in_parts(monkeypatch):
    monkeypatch.setattr(doubles, "_PART_ROWS", 100)
    columns = {
        "topic": ["t"] * 1_000,
        "id": [str(n % 990) for n in range(1_000)],
        "key": [None if n < 5 else "a" if n < 995 else "b" for n in range(1_000)],
    }
    rows = pa.table(columns)
    found = doubles.doubles_in((rows.slice(0, 300), rows.slice(300)), 1_000)
    # Those from 990 on come again: 0 to 4 had no key, and 5 to 9 another one.
    assert np.flatnonzero(found.later(rows)).tolist() == list(range(990, 1_000))
    same = pa.table({**columns, "key": ["a"] * 1_000})
    assert not doubles.doubles_in((same,), 1_000).later(same).any()


def test_a_full_shard_hides_no_count_of_the_others(stores, tmp_path):
    with dwell.open("memory:") as queue:
        queue.put_many("t", [b"x"] * 2_000)
        queue.export(tmp_path / "export")
    told = []
    with dwell.open(f"{stores.new('redis')}?shards=4") as queue:
        queue.configure("t", max_pending=2_000)
        with pytest.raises(TopicFull):
            queue.put_export(tmp_path / "export", tell=told.append)
        there = queue.stats().topics["t"].ready
        assert told[-1].total.created == told[-1].topics["t"].created == there > 0
        assert told[-1].total.read == there


async def test_a_token_to_put_is_enough_for_a_strangers_export(tmp_path):
    """What it may not ask is not asked again, and ends nothing."""
    with dwell.open("memory:") as queue:
        queue.put_many("t", [b"x"] * 3)
        queue.put_many("u", [b"x"] * 3)
        queue.export(tmp_path / "export")
    async with dwell.open("memory:") as queue:
        asked = []

        async def named(numbers):
            asked.append(len(numbers))
            raise Forbidden("named: got a token for topics")

        queue.named = named
        assert (await queue.put_export(tmp_path / "export")).total.created == 6
        assert len(asked) <= 2


def test_the_total_is_the_sum_of_the_topics(tmp_path):
    with dwell.open("memory:") as queue:
        for n in range(40):
            queue.put_many(f"t{n}", [b"x"] * (n + 1))
        queue.export(tmp_path / "export")
    sums = []

    def tell(done):
        sums.append((done.total.read, sum(one.read for one in done.topics.values())))

    with dwell.open("memory:") as queue:
        done = queue.put_export(tmp_path / "export", tell=tell)
    assert [one for one, _ in sums] == [each for _, each in sums]
    assert done.total.created == sums[-1][0] == 820
