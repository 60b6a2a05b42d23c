"""Releases of a folder: each message's delay and error are there after a restart."""

import dwell


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
