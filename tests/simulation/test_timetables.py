"""Schedules in the simulation: each moment is put once, and what breaks that is found."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dwell.queue.queue import Queue
from dwell.queue.schedules.firer import Firer
from dwell.queue.schedules.reckoning import Work
from tools.simulation.run import run_timetable

#: How many seeds a break may need before it is found.
_MOST_SEEDS = 60


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_timetables_hold(first: int) -> None:
    for seed in range(first, first + 10):
        outcome = run_timetable(seed)
        assert not outcome.failure, f"seed {seed}: {outcome.words}"
        assert outcome.tally["moments"] >= 0


def test_a_timetable_is_the_same_twice() -> None:
    first, second = (run_timetable(3) for _ in range(2))
    assert first == second
    assert first.tally["moments"] > 0


# --- what is broken on purpose --------------------------------------------------------------------


def _is_given_back_first(patch: pytest.MonkeyPatch) -> None:
    real = Firer._fire_into

    async def fire_into(self: Firer, topic: str, work: Sequence[Work], now_ms: int) -> None:
        await asyncio.gather(*(self._give_back(one) for one in work))
        await real(self, topic, work, now_ms)

    patch.setattr(Firer, "_fire_into", fire_into)


def _forgets_what_was_acked(patch: pytest.MonkeyPatch) -> None:
    real = Queue.put_rows

    async def put_rows(self: Queue, topic: str, rows: Any, *args: Any, **words: Any) -> Any:
        await self.configure("fired", remember_ms=0)
        return await real(self, topic, rows, *args, **words)

    patch.setattr(Queue, "put_rows", put_rows)


@pytest.mark.campaign
@pytest.mark.parametrize("broken", [_is_given_back_first, _forgets_what_was_acked])
def test_what_is_broken_is_found(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None]
) -> None:
    broken(monkeypatch)
    failures = (run_timetable(seed).failure for seed in range(_MOST_SEEDS))
    assert any(failure in ("lost", "doubled") for failure in failures), "nothing was found"
