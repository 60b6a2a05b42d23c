"""Relays in the simulation: each record leaves, and what breaks that is found."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dwell.relay.dead import DeadLetters
from dwell.relay.intake import Intake
from dwell.relay.outbox.source import OutboxSource
from dwell.relay.outlet import OnceOutlet, Outlet
from dwell.relay.record import Record
from tools.simulation.run import run_relays

#: How many seeds a break may need before it is found.
_MOST_SEEDS = 400


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, 1000, 200))
def test_relays_hold(first: int) -> None:
    for seed in range(first, first + 200):
        outcome = run_relays(seed)
        assert not outcome.failure, f"seed {seed}: {outcome.words}"


def test_relays_of_a_seed_are_the_same_twice() -> None:
    first, second = (run_relays(4) for _ in range(2))
    assert first == second
    assert first.tally["answered puts"] > 0


# --- what is broken on purpose --------------------------------------------------------------------


def _forgets_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    async def living(self: OnceOutlet, names: Any) -> set[bytes]:
        return set()

    patch.setattr(OnceOutlet, "_living", living)


def _sends_what_may_come_again(patch: pytest.MonkeyPatch) -> None:
    async def committed(self: OnceOutlet, batch: Any, records: Any) -> Any:
        return batch, records

    async def forgets(self: Any, topic: str) -> bool:
        await self._queue.configure(topic, remember_ms=0, max_attempts=65_535)
        return True

    patch.setattr(OnceOutlet, "_committed", committed)
    patch.setattr("dwell.relay.relay.Relay._prepare", forgets)


def _acks_before_it_sends(patch: pytest.MonkeyPatch) -> None:
    real = Outlet._kept

    async def kept(self: Outlet, batch: Any, work: Any) -> Any:
        await self._ack(batch)
        return await real(self, batch, work)

    patch.setattr(Outlet, "_kept", kept)


def _commits_what_has_no_room(patch: pytest.MonkeyPatch) -> None:
    async def defer(self: Intake, records: Sequence[Record], left: Any) -> list[Record]:
        return list(records)

    patch.setattr(Intake, "_defer", defer)


def _drops_letters_that_wait(patch: pytest.MonkeyPatch) -> None:
    real = DeadLetters.send

    async def send(self: DeadLetters, dead: Any) -> Any:
        await real(self, dead)
        return [], []

    patch.setattr(DeadLetters, "send", send)


def _deletes_what_is_not_held(patch: pytest.MonkeyPatch) -> None:
    real = OutboxSource.read

    async def read(self: OutboxSource, limit: int) -> Any:
        records = await real(self, limit)
        if records:
            self._owed = [record.place for record in records]
            await self._delete()
        return records

    patch.setattr(OutboxSource, "read", read)


def _sends_beside_the_one_before(patch: pytest.MonkeyPatch) -> None:
    async def alone(self: Outlet) -> None:
        await asyncio.sleep(0)

    patch.setattr(Outlet, "_wait_for_others", alone)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("broken", "failures"),
    [
        (_forgets_what_was_sent, {"doubled"}),
        (_sends_what_may_come_again, {"doubled"}),
        (_acks_before_it_sends, {"lost"}),
        (_commits_what_has_no_room, {"lost"}),
        (_drops_letters_that_wait, {"lost"}),
        (_deletes_what_is_not_held, {"lost"}),
        (_sends_beside_the_one_before, {"order"}),
    ],
)
def test_what_is_broken_is_found(
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[pytest.MonkeyPatch], None],
    failures: set[str],
) -> None:
    broken(monkeypatch)
    found = (run_relays(seed).failure for seed in range(_MOST_SEEDS))
    assert any(failure in failures for failure in found), "nothing was found"
