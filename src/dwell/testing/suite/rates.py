"""A topic's rate, under any changes to its messages and settings, drawn from a seed."""

import random
from typing import NamedTuple

import pytest

from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.shards import within_a_shard

_RATES = (1, 2, 7, 20, 150)
_STEPS = 120
#: The longest wait of a topic that is retried: at a message a second.
_LONGEST_MS = 1_001


class _Took(NamedTuple):
    """How many were taken, when, and the highest rate since the take before."""

    at_ms: int
    number: int
    rate: int


class _Course:
    """Puts, takes, releases, acks and changes of the rate; only the takes are recorded."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._chance = random.Random(seed)
        self._rate = self._highest = 20
        self._made = 0
        self.took: list[_Took] = []

    async def begin(self) -> None:
        """Start with a topic that has a rate."""
        await self._rig.configure(rate=self._rate)

    async def step(self) -> None:
        """Do one step."""
        verbs = (self._put, self._take, self._take, self._take_by_id, self._change, self._wait)
        await self._chance.choice(verbs)()

    async def _put(self) -> None:
        count = self._chance.randrange(1, 30)
        await self._rig.put(*(f"{self._made + at:05d}" for at in range(count)))
        self._made += count

    async def _take(self) -> None:
        batch = await self._rig.take(self._chance.choice((1, 3, 1_000)))
        self._note(len(batch))
        verb = self._chance.choice((self._rig.ack, self._rig.release, None))
        if len(batch) and verb is not None:
            await verb(receipts_of(batch))

    async def _take_by_id(self) -> None:
        ids = await self._rig.peek_ids(3)
        self._note(len(await self._rig.take_by_ids(*ids[-1:])))

    def _note(self, count: int) -> None:
        self.took.append(_Took(self._rig.now_ms, count, self._highest))
        self._highest = self._rate

    async def _change(self) -> None:
        self._rate = self._chance.choice(_RATES)
        self._highest = max(self._highest, self._rate)
        lease_ms = self._chance.choice((1_000, 60_000))
        await self._rig.configure(rate=self._rate, lease_ms=lease_ms)

    async def _wait(self) -> None:
        self._rig.advance(self._chance.choice((1, 7, 50, 333, 2_000)))
        if self._chance.random() < 0.5:
            await self._rig.tick()


class Rates(Suite):
    """The setting ``rate``: no more than it allows, and no less for waiting takers."""

    @pytest.mark.parametrize("seed", range(10))
    @within_a_shard
    @scenario
    async def test_a_rate_holds_in_every_span(self, rig: Rig, seed: int) -> None:
        """In any span the limit is the highest rate in it, and a tenth of a second's worth."""
        course = _Course(rig, seed)
        await course.begin()
        for _ in range(_STEPS):
            await course.step()
        for first, begin in enumerate(course.took):
            count = highest = 0
            for took in course.took[first:]:
                count, highest = count + took.number, max(highest, took.rate)
                most = highest * (took.at_ms - begin.at_ms) / 1_000 + max(highest / 10, 1)
                assert count <= most, (begin, took)
        assert sum(took.number for took in course.took) > 0

    @pytest.mark.parametrize("seed", range(4))
    @within_a_shard
    @scenario
    async def test_who_waits_for_a_rate_is_woken(self, rig: Rig, seed: int) -> None:
        """Ready messages that may not be taken now may be taken before long."""
        course = _Course(rig, seed)
        await course.begin()
        for _ in range(_STEPS):
            await course.step()
            if await rig.take_ids(1) or not await rig.peek_ids(1):
                continue
            end_ms, is_given = rig.now_ms + _LONGEST_MS, False
            while not is_given:
                rig.hush()
                wait_ms = await rig.tick()
                if not rig.woken["t"]:
                    assert wait_ms is not None
                    assert rig.now_ms < end_ms
                    rig.advance(max(wait_ms, 1))
                is_given = rig.woken["t"] > 0 and len(await rig.take_ids(1)) > 0
