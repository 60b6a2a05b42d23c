"""The simulation holds for some hundred seeds, is the same twice, and finds what is broken."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dwell.message import Result
from dwell.queue.takers import Takers
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.journal.groupcommit import GroupCommitter
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.receipts import leased_rows
from dwell.store.embedded.store import EmbeddedStore
from dwell.store.embedded.table import Table
from tools.simulation.plan import plan_of
from tools.simulation.run import run_plan, run_seed, shorten

_ROOT = Path(__file__).parents[2]
#: How many seeds a break may need before it is found.
_MOST_SEEDS = 300


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_seeds_hold(first: int) -> None:
    for seed in range(first, first + 20):
        outcome = run_seed(seed)
        assert not outcome.failure, f"make simulate SEEDS=1 FIRST={seed}: {outcome.words}"


def test_a_seed_is_the_same_twice() -> None:
    code = (
        "import sys; from tools.simulation.run import run_seed;"
        "print(*(run_seed(seed).trace_hash for seed in range(12)))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=_ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for number in (1, 2)
    ]
    assert told[0] == told[1]
    assert len(set(told[0])) == 12


def test_the_command_tells_what_happened() -> None:
    command = [sys.executable, "-m", "tools.simulation", "--seeds", "3", "--json"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)
    assert summary["seeds"] == 3
    assert summary["answered puts"] > 0
    assert summary["lost"] == summary["early"] == summary["hangs"] == 0
    assert not summary["failed"]


# --- what is broken on purpose ----------------------------------------------------------------


def _never_syncs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "sync", lambda self, fd: None)


def _never_syncs_folders(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "sync_folder", lambda self, folder: None)


def _answers_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def steps(self: GroupCommitter, items: Any, now_s: Any, last: bool) -> Iterator[None]:
        frames = sum(not isinstance(item, int) for item in items)
        done = self._done
        if frames:
            done(frames)
        self._done = lambda count: None
        yield from real(self, items, now_s, last)
        self._done = done

    real = GroupCommitter.steps
    patch.setattr(GroupCommitter, "steps", steps)


def _cancels_nothing(patch: pytest.MonkeyPatch) -> None:
    async def cancel(self: EmbeddedStore, topic: str, ids: Any) -> Any:
        self._time.begin()
        return np.full(len(ids), Result.CANCELLED, dtype=np.uint8)

    patch.setattr(EmbeddedStore, "cancel", cancel)


def _wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Takers, "_wake_parked", lambda self, topic, count: None)


def _is_early(patch: pytest.MonkeyPatch) -> None:
    real = Machine._wait

    def wait(self: Machine, rows: Any, now_ms: int) -> None:
        real(self, rows, now_ms + 5)

    patch.setattr(Machine, "_wait", wait)


def _receipts_are_good_twice(patch: pytest.MonkeyPatch) -> None:
    def with_ended(table: Table, receipts: Any, store_number: int) -> Any:
        rows, good = leased_rows(table, receipts, store_number)
        inside = (receipts[:, 0] & np.uint64(0xFFFFFFFF)) < table.top
        return rows, good | (inside & (table.state[rows] == 3))

    patch.setattr("dwell.store.embedded.store.leased_rows", with_ended)


@pytest.mark.parametrize(
    "broken",
    [
        _never_syncs,
        _never_syncs_folders,
        _answers_before_the_sync,
        _cancels_nothing,
        _wakes_nobody,
        _is_early,
        _receipts_are_good_twice,
    ],
)
def test_what_is_broken_is_found(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None]
) -> None:
    broken(monkeypatch)
    assert any(run_seed(seed).failure for seed in range(_MOST_SEEDS)), "nothing was found"


def test_a_plan_that_fails_is_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    _cancels_nothing(monkeypatch)
    outcome = next(found for seed in range(_MOST_SEEDS) if (found := run_seed(seed)).failure)
    plan = plan_of(outcome.seed)
    short = shorten(plan, outcome.failure, most_s=30)
    assert len(short.plan.steps) <= 4
    assert short.outcome.failure == outcome.failure
    assert any("cancel" in line for line in short.trace)
    monkeypatch.undo()
    assert not run_plan(short.plan).failure
