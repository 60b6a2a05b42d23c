"""Retry delays that grow by a formula, and that differ a little from message to message."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell.errors import InvalidInput, InvalidTime
from dwell.given.values import delay_ms
from dwell.message import MAX_DELAY_MS
from dwell.store.memory import MemoryStore
from dwell.worker import Worker


@given(st.integers(1, 100_000), st.floats(1.1, 10), st.integers(1, 10_000_000), st.integers(0, 40))
def test_delays_grow_by_the_factor_up_to_the_cap(base_ms, factor, more_ms, at):
    cap_ms = base_ms + more_ms
    found = [*map(delay_ms, dwell.exponential(f"{base_ms}ms", factor, f"{cap_ms}ms"))]
    assert found == sorted(found)
    assert found[-1] == cap_ms
    at = min(at, len(found) - 2)
    assert abs(found[at] - base_ms * factor**at) <= 1 + found[at] * 1e-9


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((0,), "base: got int 0, expected a span above 0"),
        (("1m", 2, "1s"), "cap: got str '1s', expected a span not below the base"),
        (("1s", 1.0, "1h"), "factor: got float 1.0, expected one that reaches the cap"),
        (("1s", 0.5, "1h"), "factor: got float 0.5"),
        (("1s", float("nan"), "1h"), "factor: got float nan"),
        (("1s", -2), "factor: got int -2, expected a number above 1"),
        (("1s", 0), "factor: got int 0, expected a number above 1"),
        (("1s", "2"), "factor: got str '2', expected a number above 1"),
        (("1s", None), "factor: got NoneType None, expected a number above 1"),
        (("1s", True), "factor: got bool True, expected a number above 1"),
        (("1s", 2j), "factor: got complex 2j, expected a number above 1"),
    ],
)
def test_what_does_not_grow_is_refused(words, told):
    with pytest.raises(InvalidTime, match=told):
        dwell.exponential(*words)


@pytest.mark.parametrize("factor", [10**400, float("inf"), 1e300, np.float32(1e30)])
def test_a_factor_beyond_the_cap_reaches_it_at_once(factor):
    assert dwell.exponential("1s", factor, "1h") == ("1000ms", "3600000ms")


@given(st.integers(MAX_DELAY_MS * 9 // 10, MAX_DELAY_MS), st.floats(0, 1))
@settings(deadline=None, max_examples=20)
def test_no_delay_with_jitter_is_longer_than_a_queue_allows(longest_ms, jitter):
    async def failed():
        clock = dwell.SimulatedClock()
        async with dwell.Queue(MemoryStore(clock)) as queue:
            worker = Worker(queue)

            @worker.on("t", retry=[f"{longest_ms}ms"], jitter=jitter)
            async def fail(message):
                raise ValueError

            await queue.put_many("t", [b""] * 20)
            await worker.serve(burst=True)
            delayed = (await queue.scan("t", "delayed")).messages
            assert len(delayed) == 20
            assert all(m.due_ms - clock.now_ms() <= MAX_DELAY_MS for m in delayed)

    asyncio.run(failed())


@pytest.mark.parametrize(
    ("how", "least", "most"),
    [
        ({"retry": ["100s", "1h"]}, 90_000, 110_000),
        ({"retry": dwell.exponential("100s", cap="1h"), "jitter": 0.5}, 50_000, 150_000),
        ({"retry": ["100s", "1h"], "jitter": 0}, 100_000, 100_000),
        ({"retry": "100s"}, 100_000, 100_000),
        ({"retry": ["100s", "100s"]}, 100_000, 100_000),
        ({"retry": ["100s", "10s"]}, 100_000, 100_000),
    ],
)
async def test_growing_delays_differ_a_little(how, least, most):
    clock = dwell.SimulatedClock()
    async with dwell.Queue(MemoryStore(clock)) as queue:
        worker = Worker(queue)

        @worker.on("t", **how)
        async def fail(message):
            raise ValueError

        await queue.put_many("t", [b""] * 200)
        await worker.serve(burst=True)
        dues = {m.due_ms - clock.now_ms() for m in (await queue.scan("t", "delayed")).messages}
        assert least <= min(dues) <= max(dues) <= most
        assert (len(dues) > 20) is (least < most)


def test_what_is_no_part_is_refused():
    with pytest.raises(InvalidInput, match=r"jitter: got float 1\.5, expected a part from 0 to 1"):
        Worker("memory:").on("t", jitter=1.5)


async def test_a_topic_takes_them_too():
    async with dwell.Queue(MemoryStore(dwell.SimulatedClock())) as queue:
        await queue.configure("t", retry_delays_ms=dwell.exponential("1s", 4, "1m"))
        assert (await queue.settings("t")).retry_delays_ms == (1_000, 4_000, 16_000, 60_000)
