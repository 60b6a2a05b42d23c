"""Numbered requests: a repeat answers what was done the first time, and does it once."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dwell import Result, State
from dwell.batch.calls import (
    _MIX,
    AGAIN,
    CALLER_SHIFT,
    MOST_FIRST,
    first_of_caller,
    numbers_of,
)
from dwell.clock import SimulatedClock
from dwell.errors import StoreError
from dwell.message import MAX_BATCH_MESSAGES
from dwell.queue import Queue
from dwell.queue.calling import Calling, begin
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.donecalls import Late
from dwell.store.embedded.limits import Limits
from dwell.testing.faults import FaultyDisk
from dwell.testing.views import view_of_store
from tests import RUNS
from tests.waiting import until_async

FOLDER = Path("/stores/store")
TOPICS = ("t", "full")

#: A request: what it asks a queue, of what was taken and buried before.
Request = Callable[[Queue], Awaitable[Any]]


class Stored:
    """A queue over a store whose process may be killed, or which may make a snapshot."""

    def __init__(self, call_block: int) -> None:
        self.disk = FaultyDisk()
        self.clock = SimulatedClock()
        self._limits = Limits(call_block=call_block)

    async def open(self) -> None:
        store = EmbeddedStore(
            FOLDER,
            clock=self.clock,
            disk=self.disk,
            segment_bytes=64 * 1024,
            limits=self._limits,
        )
        self.queue = Queue(store)
        await self.queue.open()

    async def happen(self, what: str) -> None:
        if what == "kill":
            self.disk.kill()
            with contextlib.suppress(StoreError, OSError):
                await self.queue.close()
            self.disk = self.disk.restarted()
            await self.open()
        elif what == "stop":
            await self.queue.close()
            await self.open()
        elif what == "snapshot":
            await self.store.compact()

    @property
    def store(self) -> EmbeddedStore:
        assert isinstance(self.queue.store, EmbeddedStore)
        return self.queue.store


async def asked(queue: Queue, request: Request, first: int, *, is_again: bool) -> Any:
    """Do a request as a server does: in a task of its own, with its number."""

    async def answer() -> Any:
        begin(Calling(first, is_again=is_again))
        return list(await request(queue))

    return await asyncio.create_task(answer())


async def requests_on(queue: Queue, verb: str, size: int) -> Request:
    """Return a request for a verb of some messages, which are made ready for it here."""
    ids = [f"{verb}-{n}" for n in range(size)]
    if verb in ("put", "fill"):
        topic = "t" if verb == "put" else "full"
        return lambda q: q.put_many(topic, ["x"] * size)
    await queue.put_many("t", ["x"] * (size // 2), ids=ids[: size // 2])
    if verb in ("keep", "replace"):
        return lambda q: q.put_many("t", ["y"] * size, ids=ids, on_conflict=verb)
    if verb == "cancel":
        return lambda q: q.cancel("t", [*ids, ids[0]])
    if verb == "reschedule":
        return lambda q: q.reschedule("t", ids, delay="1h")
    taken = await queue.take("t", 100, lease="1h")
    if verb == "kick":
        await queue.bury(taken)
        return lambda q: q.kick("t", [*ids, ids[0]])
    if verb == "release":
        # The first is buried, as its attempts are used up.
        await queue.configure("t", max_attempts=1)
        return lambda q: q.release(taken, ["1s"] * len(taken), error=["no"] * len(taken))
    return lambda q: getattr(q, verb)(taken)


VERBS = (
    *("put", "fill", "keep", "replace", "ack", "release", "bury", "kick", "cancel", "reschedule"),
)


@given(
    verbs=st.lists(
        st.tuples(
            st.sampled_from(VERBS),
            st.integers(2, 5),
            st.lists(st.sampled_from(("kill", "stop", "snapshot", "")), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
    call_block=st.sampled_from((1, 3, 100)),
    comes_late=st.booleans(),
)
@settings(max_examples=40 * RUNS, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_repeat_answers_what_was_done_the_first_time(
    verbs: list[tuple[str, int, list[str]]], call_block: int, comes_late: bool
) -> None:
    asyncio.run(_repeated(verbs, call_block, comes_late))


async def _repeated(
    verbs: list[tuple[str, int, list[str]]], call_block: int, comes_late: bool
) -> None:
    stored = Stored(call_block)
    await stored.open()
    try:
        await stored.queue.configure("full", max_pending=3, on_full="drop")
        for number, (verb, size, between) in enumerate(verbs, 1):
            request = await requests_on(stored.queue, verb, size)
            first = number << 20
            # What was sent first may come to the server last.
            answer = await asked(stored.queue, request, first, is_again=comes_late)
            if comes_late:
                assert await asked(stored.queue, request, first, is_again=False) == answer
            view = await view_of_store(stored.store, TOPICS)
            for what in between:
                await stored.happen(what)
                assert await asked(stored.queue, request, first, is_again=True) == answer
            assert await view_of_store(stored.store, TOPICS) == view
    finally:
        await stored.queue.close()


async def test_a_repeat_does_what_was_not_done_the_first_time(tmp_path: Path) -> None:
    async with Queue(EmbeddedStore(tmp_path / "store")) as queue:
        await queue.configure("t", max_pending=2, on_full="drop")
        request: Request = lambda q: q.put_many("t", ["x"] * 3)  # noqa: E731
        first = await asked(queue, request, 100, is_again=False)
        assert [put.result for put in first] == [Result.CREATED, Result.CREATED, Result.DROPPED]
        await queue.configure("t", max_pending=3)
        second = await asked(queue, request, 100, is_again=True)
        assert second[:2] == first[:2]
        assert second[2].result is Result.CREATED
        assert (await queue.stats()).topics["t"].ready == 3


async def test_requests_with_and_without_numbers_are_one_batch(tmp_path: Path) -> None:
    async with Queue(EmbeddedStore(tmp_path / "store")) as queue:
        request: Request = lambda q: q.put_many("t", ["a", "b"])  # noqa: E731
        many = [asked(queue, request, 100, is_again=False), queue.put_many("t", ["c", "d"])]
        first, _ = await asyncio.gather(*many)
        assert await asked(queue, request, 100, is_again=True) == first
        assert (await queue.stats()).topics["t"].ready == 4


async def test_a_repeat_is_not_in_one_batch_with_its_request(tmp_path: Path) -> None:
    async with Queue(EmbeddedStore(tmp_path / "store")) as queue:
        request: Request = lambda q: q.put_many("t", ["x"])  # noqa: E731
        both = (asked(queue, request, 100, is_again=is_again) for is_again in (False, True))
        first, again = await asyncio.gather(*both)
        assert again == first
        assert (await queue.stats()).topics["t"].ready == 1


async def test_a_repeated_cancel_leaves_what_was_put_again(tmp_path: Path) -> None:
    async with Queue(EmbeddedStore(tmp_path / "store")) as queue:
        await queue.put("t", "x", id="one")
        request: Request = lambda q: q.cancel("t", ["one"])  # noqa: E731
        assert await asked(queue, request, 100, is_again=False) == [Result.CANCELLED]
        await queue.put("t", "y", id="one")
        assert await asked(queue, request, 100, is_again=True) == [Result.CANCELLED]
        assert (await queue.stats()).topics["t"].ready == 1


async def test_only_so_many_outcomes_are_kept(tmp_path: Path) -> None:
    clock = SimulatedClock()
    limits = Limits(calls=8, call_block=4, calls_ms=60_000)
    async with Queue(EmbeddedStore(tmp_path / "store", clock=clock, limits=limits)) as queue:
        request: Request = lambda q: q.put_many("t", ["x"] * 4)  # noqa: E731
        for first in range(100, 1_000, 100):
            await asked(queue, request, first, is_again=False)
        known = await queue.store.outcomes(numbers_of(900, 4) | np.uint64(AGAIN))
        assert set(known.tolist()) == {Result.CREATED}
        assert not (await queue.store.outcomes(numbers_of(100, 4) | np.uint64(AGAIN))).any()
        clock.advance(60_001)
        await asked(queue, request, 1_000, is_again=False)
        assert not (await queue.store.outcomes(numbers_of(900, 4) | np.uint64(AGAIN))).any()


async def test_who_has_most_outcomes_loses_the_oldest(tmp_path: Path) -> None:
    limits = Limits(calls=12, call_block=4)
    few, many = (caller << CALLER_SHIFT for caller in (3, 7))
    one: Request = lambda q: q.put_many("t", ["x"])  # noqa: E731
    three: Request = lambda q: q.put_many("t", ["x"] * 3)  # noqa: E731

    async def known(queue: Queue, first: int, count: int) -> int:
        found = await queue.store.outcomes(numbers_of(first, count) | np.uint64(AGAIN))
        return int((found > 0).sum())

    for _ in range(2):
        async with Queue(EmbeddedStore(tmp_path / "store", limits=limits)) as queue:
            for first in range(1_000, 1_300, 3):
                await asked(queue, three, many + first, is_again=False)
                if first == 1_150:
                    await asked(queue, one, few + 1, is_again=False)
            assert await known(queue, few + 1, 1) == 1
            assert await known(queue, many + 1_150, 3) == 0
            assert await known(queue, many + 1_000, 300) >= 8
            assert queue.store._machine.calls.size <= 12 + 4  # type: ignore[attr-defined]
    async with Queue(EmbeddedStore(tmp_path / "store", limits=limits)) as queue:
        four: Request = lambda q: q.put_many("t", ["x"] * 4)  # noqa: E731
        await asked(queue, four, few + 100, is_again=False)
        assert await known(queue, few + 1, 1) + await known(queue, few + 100, 4) == 5


def test_numbers_of_callers_lie_apart_and_stay_numbers() -> None:
    drawn = (*range(1, 1_000), MOST_FIRST - 1)
    firsts = {first_of_caller(n, who) for who in "ab" for n in drawn}
    assert len(firsts) == 2_000
    assert all(0 <= first < MOST_FIRST for first in firsts)
    assert len({first >> CALLER_SHIFT for first in firsts}) == 2


@given(number=st.integers(1, MOST_FIRST - 1), caller=st.text(max_size=5))
@example(number=pow(_MIX, -1, MOST_FIRST) * (MOST_FIRST - 1) % MOST_FIRST, caller="a")
def test_all_numbers_of_a_request_have_the_place_of_its_caller(number: int, caller: str) -> None:
    numbers = numbers_of(first_of_caller(number, caller), MAX_BATCH_MESSAGES)
    (place,) = set((numbers >> np.uint64(CALLER_SHIFT)).tolist())
    assert place == first_of_caller(1, caller) >> CALLER_SHIFT


def test_a_part_of_a_batch_has_the_numbers_of_its_places() -> None:
    calling = Calling(100, is_again=False)
    calling.skip(np.array([True, False, True]))
    assert np.asarray(calling.numbers(2)).tolist() == [100, 102]
    assert calling.numbers(1) == 103


@given(
    runs=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), max_size=12),
    block=st.integers(1, 20),
)
def test_late_numbers_are_known_as_runs(runs: list[tuple[int, int]], block: int) -> None:
    late = Late(Limits(call_block=block, calls_ms=10))
    for first, count in runs:
        late.add(numbers_of(first, count), 0)
    kept = {n for first, count in runs[-block:] for n in range(first, first + count)}
    assert np.flatnonzero(late.has(numbers_of(0, 60), 10)).tolist() == sorted(kept)
    assert not late.has(numbers_of(0, 60), 11).any()


async def test_results_of_a_snapshot_are_dropped_block_by_block(tmp_path: Path) -> None:
    limits = Limits(calls=8, call_block=4)
    request: Request = lambda q: q.put_many("t", ["x"] * 4)  # noqa: E731
    async with Queue(EmbeddedStore(tmp_path / "store", limits=limits)) as queue:
        for first in (100, 200):
            await asked(queue, request, first, is_again=False)
    async with Queue(EmbeddedStore(tmp_path / "store", limits=limits)) as queue:
        await asked(queue, request, 300, is_again=False)
        known = await queue.store.outcomes(numbers_of(200, 4) | np.uint64(AGAIN))
        assert set(known.tolist()) == {Result.CREATED}


async def test_an_id_that_stands_twice_in_a_request_is_put_once_by_its_repeat() -> None:
    """The first is done and forgotten by then; the second was kept by the first."""
    stored = Stored(call_block=16)
    await stored.open()
    queue = stored.queue
    await queue.configure("t", remember_ms=0)

    def request(q: Queue) -> Awaitable[Any]:
        return q.put_many("t", ["x", "x", "x"], ids=["a", "a", "b"])

    before = await asked(queue, request, 1, is_again=False)
    await queue.ack(await queue.take("t", 10))
    assert await asked(queue, request, 1, is_again=True) == before
    assert [put.result for put in before] == [Result.CREATED, Result.KEPT, Result.CREATED]
    assert not len(await queue.take("t", 10))
    await queue.close()


@pytest.mark.parametrize("verb", ["cancel", "kick"])
async def test_an_id_that_stands_twice_in_a_request_names_no_later_message(verb: str) -> None:
    stored = Stored(call_block=16)
    await stored.open()
    queue = stored.queue

    async def make() -> None:
        await queue.put("t", "x", id="a")
        if verb == "kick":
            await queue.bury(await queue.take("t"))

    def request(q: Queue) -> Awaitable[Any]:
        return getattr(q, verb)("t", ["a", "a"])

    await make()
    before = await asked(queue, request, 1, is_again=False)
    if verb == "kick":
        await queue.cancel("t", "a")
    await make()
    assert await asked(queue, request, 1, is_again=True) == before
    assert (await queue.get("t", "a")).state is (State.DEAD if verb == "kick" else State.READY)
    await queue.close()


async def taken_as(queue: Queue, number: int, limit: int = 10, **how: Any) -> Any:
    """Take as a server does for a request with a number."""

    async def answer() -> Any:
        begin(Calling(number, is_again=False))
        return await queue.take("t", limit, lease="1h", **how)

    return await asyncio.create_task(answer())


def calls_of(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


@pytest.mark.parametrize("call_block", [1, 2, 1_000])
@pytest.mark.parametrize("happens", ["nothing", "kill", "stop", "snapshot", "snapshot, kill"])
async def test_takes_are_undone_by_their_numbers(call_block: int, happens: str) -> None:
    stored = Stored(call_block)
    await stored.open()
    await stored.queue.put_many("t", ["x"] * 8, ids=list("abcdefgh"))
    first, second, third = [
        await taken_as(stored.queue, number, 2) for number in (1_000, 2_000, 3_000)
    ]
    assert [list(batch.ids) for batch in (first, second, third)] == [
        ["a", "b"],
        ["c", "d"],
        ["e", "f"],
    ]
    plain = await stored.queue.take("t", 2, lease="1h")
    assert await stored.queue.ack(first[0]) is Result.ACKED
    await stored.queue.release(first[1], counted=False)
    again = await stored.queue.take("t", 1, lease="1h")
    assert list(again.ids) == ["b"]
    for what in happens.split(", "):
        await stored.happen(what)
    store, queue = stored.store, stored.queue
    # One was acked, and one is leased by a later take.
    assert await store.undo_takes(calls_of(1_000)) == 0
    assert await store.undo_takes(calls_of(7, 2_000, 9_000)) == 2
    assert await store.undo_takes(calls_of(2_000)) == 0
    counts = (await queue.stats()).topics["t"]
    assert (counts.ready, counts.leased) == (2, 5)
    batch = await queue.take("t", 10, lease="1h")
    assert (list(batch.ids), batch.attempt.tolist()) == (["c", "d"], [1, 1])
    for held in (third, plain, again, batch):
        assert set(await queue.ack(held)) == {Result.ACKED}
    await queue.close()


async def test_joined_takes_have_numbers_of_their_own() -> None:
    stored = Stored(1_000)
    await stored.open()
    await stored.queue.put_many("t", ["x"] * 6)
    batches = await asyncio.gather(*[taken_as(stored.queue, n, 2) for n in (10, 20, 30)])
    assert await stored.store.undo_takes(calls_of(20)) == 2
    acked = [await stored.queue.ack(batch) for batch in batches]
    assert acked == [[Result.ACKED] * 2, [Result.STALE] * 2, [Result.ACKED] * 2]
    await stored.queue.close()


async def test_a_taker_that_leaves_a_joined_take_shifts_no_numbers(monkeypatch: Any) -> None:
    stored = Stored(1_000)
    await stored.open()
    await stored.queue.put_many("t", ["x"] * 4)
    take, tasks = stored.store.take, []

    async def taken(*args: Any, **how: Any) -> Any:
        batch = await take(*args, **how)
        tasks[0].cancel()
        return batch

    monkeypatch.setattr(stored.store, "take", taken)
    tasks += [asyncio.create_task(taken_as(stored.queue, n, 2)) for n in (10, 20)]
    await asyncio.wait(tasks)
    await until_async(lambda: stored.store.ready("t") == 2)
    assert await stored.store.undo_takes(calls_of(10)) == 0
    assert await stored.queue.ack(tasks[1].result()) == [Result.ACKED] * 2
    await stored.queue.close()
