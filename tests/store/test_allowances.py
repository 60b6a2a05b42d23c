"""Buckets of tokens, and when takers are to come again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwell.clock import SimulatedClock
from dwell.message import TopicSettings
from dwell.queue import Queue
from dwell.store.allowances import Allowances
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.testing.faults import FaultyDisk

TOPICS = 300

steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 9), st.sampled_from((0, 1, 50, 400))), max_size=60
)


def left(allowances: Allowances[int], rate: int, now_ms: int) -> int:
    found = allowances.left(0, TopicSettings(rate=rate), 0, now_ms)
    assert found is not None
    return found


def test_each_comes_at_its_time() -> None:
    allowances: Allowances[int] = Allowances()
    for name in range(TOPICS):
        allowances.spend(name, 1, 1 + name % 7, 0)
        allowances.come_again(name, 1, 0)
    assert allowances.next_ms() == 1_000
    for turn in range(7):
        assert allowances.come(1_000 * turn + 999) == []
        assert sorted(allowances.come(1_000 * turn + 1_000)) == list(range(turn, TOPICS, 7))
    assert allowances.next_ms() is None


@given(steps)
def test_what_is_noted_last_counts(steps: list[tuple[int, int, int]]) -> None:
    """Each comes once, and not too late, also after changes of settings and of the clock."""
    allowances: Allowances[int] = Allowances()
    waiting: set[int] = set()
    # So late that no step back leads to before the epoch.
    now_ms = 1_000_000
    for name, verb, wait_ms in steps:
        now_ms += wait_ms
        came = allowances.come(now_ms)
        assert waiting.issuperset(came)
        waiting.difference_update(came)
        if verb == 0:
            allowances.look_again(name)
            assert name not in waiting or allowances.next_ms() == 0
        elif verb == 1:
            now_ms -= 5_000
            allowances.turn_back(now_ms)
        else:
            allowances.spend(name, 2, 1, now_ms)
            allowances.come_again(name, 2, now_ms)
            waiting.add(name)
        assert (allowances.next_ms() is None) == (not waiting)
    assert set(allowances.come(now_ms + 3_600_000)) == waiting


def test_a_change_of_the_rate_adds_nothing() -> None:
    allowances: Allowances[int] = Allowances()
    assert left(allowances, 1_000, 0) == 100
    allowances.spend(0, 1_000, 100, 0)
    allowances.look_again(0)
    assert left(allowances, 10, 50) == 0
    assert left(allowances, 1_000, 50) == 0
    assert left(allowances, 1_000, 60) == 10
    assert left(allowances, 10, 60) == 0


def test_what_lay_idle_at_a_low_rate_is_no_high_one() -> None:
    allowances: Allowances[int] = Allowances()
    allowances.spend(0, 1, 1, 0)
    assert left(allowances, 1_000, 10_000) == 10
    assert left(allowances, 1_000, 10_100) == 100


@pytest.mark.parametrize("kind", ["memory", "folder"])
async def test_a_take_spends_as_much_as_it_takes(kind: str) -> None:
    clock = SimulatedClock()
    folder = EmbeddedStore("/store", clock=clock, disk=FaultyDisk())
    async with Queue(MemoryStore(clock) if kind == "memory" else folder) as queue:
        await queue.configure("t", rate=100)
        await queue.put_many("t", [b"x"] * 100)
        for span_ms, most in ((0, 10), (50, 5), (2_000, 10)):
            clock.advance(span_ms)
            took = [len(await queue.take("t", some)) for some in (4, 100, 100)]
            assert took == [4, most - 4, 0]


async def test_a_topic_may_be_deleted_while_its_rate_holds_it_back() -> None:
    clock = SimulatedClock()
    async with Queue(MemoryStore(clock)) as queue:
        await queue.configure("t", rate=1, remember_ms=0)
        await queue.put_many("t", [b"x"] * 3)
        (message,) = await queue.take("t")
        assert len(await queue.take("t", 3)) == 0
        await queue.ack(message)
        await queue.delete_topic("t")
        clock.advance(10_000)
        await queue.store.tick(clock.now_ms())
