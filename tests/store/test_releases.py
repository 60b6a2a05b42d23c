"""Releases of a folder: each message's delay and error are there after a restart."""

import asyncio
import os

import numpy as np
import pytest

import dwell
from dwell.store.embedded.check import check
from tests.forking import in_child

LOST, KEPT = [f"lost {n}" for n in range(3)], [f"kept {n}" for n in range(3)]


async def released(folder, errors) -> None:
    """Put in two frames, and release all in one; the errors are one for all or of each."""
    async with dwell.open(folder) as queue:
        for ids in (LOST, KEPT):
            await queue.put_many("t", [id_ * 20 for id_ in ids], ids=ids)
        batch = await queue.take("t", 6, lease="1h")
        await queue.release(batch, delay=np.arange(3_600, 3_606), error=errors)
        os._exit(0)


@pytest.mark.parametrize("errors", [None, "same", ["a", None, "b", "c", None, "d"]])
async def test_releases_of_messages_that_are_lost_are_repaired(tmp_path, errors):
    in_child(released(tmp_path / "s", errors))
    path = tmp_path / "s" / "journal-00000000.dwl"
    data = path.read_bytes()
    assert data.count(b"lost 0" * 20) == 1
    path.write_bytes(data.replace(b"lost 0" * 20, b"LOST 0" * 20))
    await asyncio.to_thread(check, tmp_path / "s", repair=True)
    async with dwell.open(tmp_path / "s") as queue:
        found = await queue.get("t", [*LOST, *KEPT])
        assert found[:3] == [None] * 3
        kept = errors[3:] if isinstance(errors, list) else [errors] * 3
        assert [message.last_error for message in found[3:]] == kept
        dues_ms = [message.due_ms for message in found[3:]]
        assert [ms - dues_ms[0] for ms in dues_ms] == [0, 1_000, 2_000]


async def test_as_many_errors_as_a_batch_has_are_taken_whatever_their_texts(tmp_path):
    """What is no text is written as escapes, which are more letters, but no more than 1000."""
    async with dwell.open(tmp_path / "store") as queue:
        await queue.put_many("t", ["x"] * 10_000)
        batch = await queue.take("t", 10_000)
        texts = ["\ud800" * 1_000, chr(0x1F600) * 1_000]
        results = await queue.release(batch, error=texts * 5_000)
        assert results.count(dwell.Result.RELEASED) == 10_000
        errors = [message.last_error for message in await queue.take("t", 10_000)]
        assert {*map(len, errors)} == {1_000}


async def test_the_longest_errors_of_many_survive_a_restart(tmp_path):
    ids = [f"m{number}" for number in range(60)]
    errors = [chr(0x1F600 + number) * 1_000 for number in range(60)]
    errors[7] = None
    async with dwell.open(tmp_path / "store") as queue:
        await queue.put_many("t", ["x"] * 60, ids=ids)
        batch = await queue.take("t", 60)
        delays = [3600 + number for number in range(60)]
        before_ms = queue.clock.now_ms()
        assert set(await queue.release(batch, delay=delays, error=errors)) == {
            dwell.Result.RELEASED
        }
    # What the snapshot says is one thing, and what the journal says another.
    for name in (tmp_path / "store").glob("snapshot-*"):
        name.unlink()
    async with dwell.open(tmp_path / "store") as queue:
        found = await queue.get("t", ids)
        assert [message.last_error for message in found] == errors
        dues_ms = [message.due_ms for message in found]
        assert [ms - dues_ms[0] for ms in dues_ms] == [1_000 * number for number in range(60)]
        assert dues_ms[0] >= before_ms + 3_600_000
