"""The ticker under a stream of deadlines."""

import asyncio
import time

import pytest

import dwell
from dwell.clock import RealClock
from dwell.errors import ServerUnreachable, StoreFailed
from dwell.queue import ticker
from dwell.store.memory import MemoryStore
from tests.waiting import until_async

SPACING_S = 0.05


class Counting(MemoryStore):
    """Counts how often it is told to look at the time."""

    ticks = 0

    async def tick(self, now_ms: int) -> int | None:
        self.ticks += 1
        return await super().tick(now_ms)


async def test_spaced_ticks_deliver_everything_and_are_few() -> None:
    store = Counting(dwell.RealClock())
    async with dwell.Queue(store) as queue:
        queue.space_takes(SPACING_S * 1000)
        now_ms = store.clock.now_ms()
        await queue.put_many("t", ["x"] * 100, due=[now_ms + 4 * place for place in range(100)])
        start, before, taken = time.monotonic(), store.ticks, 0
        while taken < 100:
            batch = await queue.take("t", 100, wait=5)
            assert (batch.due_ms <= store.clock.now_ms()).all()
            taken += len(batch)
        elapsed_s = time.monotonic() - start
    # Four may follow each other at once, and each of the last may be on its way.
    assert store.ticks - before <= elapsed_s / SPACING_S + 6


class SteppingClock(RealClock):
    """A wall clock that can be set; sleep is monotonic, as always."""

    step_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.step_ms


@pytest.mark.parametrize("steps_ms", [[3_600_000], [-3_600_000, 2 * 3_600_000]])
@pytest.mark.parametrize("waits_before", [True, False])
async def test_a_step_of_the_clock_is_noticed_by_who_waits(
    steps_ms: list[int], waits_before: bool
) -> None:
    clock = SteppingClock()
    async with dwell.Queue(MemoryStore(clock)) as queue:
        await queue.put("due", b"x", delay="50m")
        await queue.put("leased", b"y")
        await queue.take("leased", lease="50m")
        start = time.monotonic()
        takes = []
        for step_ms in ([0] if waits_before else []) + steps_ms:
            if step_ms == 0 or not waits_before:
                takes = [asyncio.create_task(queue.take(t, wait="50s")) for t in TOPICS]
                await asyncio.sleep(0.05)
            clock.step_ms += step_ms
            await asyncio.sleep(0.05)
        if not waits_before:
            takes += [asyncio.create_task(queue.take(t, wait="50s")) for t in TOPICS]
        async with asyncio.timeout(40):
            await until_async(lambda: sum(take.done() for take in takes) >= 2)
        # The longest sleep is half a second; a minute is what it must not be.
        assert time.monotonic() - start < 30
        for take in takes:
            take.cancel()


TOPICS = ("due", "leased")


async def test_a_clock_that_went_back_far_does_not_stop_the_ticks() -> None:
    """What a store does now and then, deadline or not, does not wait until the time is back."""

    clock = SteppingClock()
    store = Counting(clock)
    async with dwell.Queue(store):
        await until_async(lambda: store.ticks)
        before = store.ticks
        clock.step_ms = -3_600_000
        async with asyncio.timeout(20):
            await until_async(lambda: store.ticks != before)


class Failing(MemoryStore):
    """Fails as often as it is told to."""

    error: Exception = ServerUnreachable("it is away")
    count = 0

    async def tick(self, now_ms: int) -> int | None:
        self.count += 1
        if self.count < 3:
            raise self.error
        return await super().tick(now_ms)


@pytest.mark.parametrize(
    ("error", "level", "is_traced"),
    [
        (ServerUnreachable("it is away"), "WARNING", False),
        (StoreFailed("no"), "ERROR", False),
        (LookupError("of ours"), "ERROR", True),
    ],
)
async def test_a_store_that_cannot_tick_is_told_once(
    error: Exception,
    level: str,
    is_traced: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticker, "_BACKOFF_MS", 1)
    store = Failing(RealClock())
    store.error = error
    async with dwell.Queue(store):
        await until_async(lambda: store.count >= 3)
    (record,) = [one for one in caplog.records if "could not tick" in one.message]
    assert (record.levelname, bool(record.exc_info)) == (level, is_traced)
