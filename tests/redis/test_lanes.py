"""Topics with limits on Redis, where its own ways of keeping them show: lanes, fronts and turns."""

from collections.abc import Awaitable, Callable

import pytest

from dwell.testing.rig import Rig, Suite, scenario
from tests.redis.test_redis_suite import new_store

#: How long it takes until what is put with a delay here falls due.
SOON_MS = 60

Ask = Callable[[Rig], Awaitable[list[str]]]


async def _by_take(rig: Rig) -> list[str]:
    return await rig.take_ids(1)


async def _by_id(rig: Rig) -> list[str]:
    return list((await rig.take_by_ids("2")).ids)


async def _fill(rig: Rig) -> None:
    """Let more messages of another topic fall due at once than one call makes ready."""
    await rig.configure("u", ordered=True)
    for start in range(0, 3000, 200):
        ids = (f"u{number}" for number in range(start, start + 200))
        await rig.put(*ids, topic="u", delay_ms=SOON_MS - 10)


class TestLanes(Suite):
    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url

    async def make_store(self, clock):
        return new_store(self.url, clock)

    # --- ordered ------------------------------------------------------------------------------

    @pytest.mark.parametrize("ask", [_by_take, _by_id])
    @scenario
    async def test_what_is_due_comes_first_before_it_is_made_ready(
        self, rig: Rig, ask: Ask
    ) -> None:
        """What was put later and is ready already does not come before it."""
        await rig.configure(ordered=True)
        await _fill(rig)
        await rig.put("1", key="k", delay_ms=SOON_MS)
        rig.advance(2 * SOON_MS)
        await rig.put("2", key="k")
        assert await ask(rig) == (["1"] if ask is _by_take else [])

    @scenario
    async def test_a_begun_message_of_a_block_is_cancelled(self, rig: Rig) -> None:
        """The others of its key go on, when it lies in a block that waits again."""
        ids = [f"{number}" for number in range(8)]
        await rig.put(*ids, key="k", delay_ms=100)
        rig.advance(100)
        assert len(await rig.take(8, lease_ms=50)) == 8
        rig.advance(60)
        await rig.tick()
        rig.advance(-100)
        await rig.tick()
        await rig.configure(ordered=True)
        await rig.put("later", key="k")
        assert await rig.take_ids() == []
        assert await rig.cancel(*ids) == ["cancelled"] * 8
        assert await rig.take_ids() == ["later"]

    # --- rate ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("by_id", [False, True])
    @scenario
    async def test_a_take_within_the_rate_wakes_the_next(self, rig: Rig, by_id: bool) -> None:
        """Who waits for what was left by a take that got all it asked for is woken in time."""
        await rig.configure(rate=10)
        await rig.put(*"abcdef")
        got = list((await rig.take_by_ids("a")).ids) if by_id else await rig.take_ids(1)
        for _ in range(5):
            assert len(got) == 1
            rig.hush()
            rig.advance(100)
            await rig.tick()
            assert rig.woken["t"]
            got = await rig.take_ids(1)

    @scenario
    async def test_a_change_of_settings_does_not_fill_the_bucket(self, rig: Rig) -> None:
        """However often settings are set, no more are taken; also when the rate is set anew."""
        await rig.configure(rate=10)
        await rig.put(*(f"{number:03d}" for number in range(100)))
        assert len(await rig.take_ids()) == 1
        for number in range(20):
            await rig.configure(rate=10, lease_ms=60_000 + number)
            assert await rig.take_ids() == []
        await rig.configure(rate=100)
        assert await rig.take_ids() == []
        rig.advance(100)
        assert len(await rig.take_ids()) == 10
