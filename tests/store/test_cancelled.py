"""A take of the embedded store whose caller is cancelled while the disk is waited for."""

import asyncio

import pytest

import dwell
from dwell import State


@pytest.mark.parametrize("verb", ["take", "take_ids"])
@pytest.mark.timeout(60)
async def test_what_a_cancelled_take_leased_is_given_back(tmp_path, verb):
    async with dwell.open(tmp_path / "queue") as queue:
        await queue.put_many("t", ["x"] * 2, ids=["a", "b"], max_attempts=1)
        before = await queue.get("t", ["a", "b"])
        store = queue.store
        call = {
            "take": lambda: store.take(["t"], 2, 60_000, ""),
            "take_ids": lambda: store.take_ids("t", [b"a", b"b"], 60_000, ""),
        }
        taking = asyncio.create_task(call[verb]())
        await asyncio.sleep(0)
        assert not taking.done()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert await queue.get("t", ["a", "b"]) == before
        assert before[0].state is State.READY
        # The old receipts are good for nothing, and others may have them.
        assert list((await queue.take("t", 2)).attempt) == [1, 1]
