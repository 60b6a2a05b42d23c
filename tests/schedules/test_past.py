"""Past runs: what a schedule has put, and what became of it, by the event log."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell.errors import InvalidSchedule
from dwell.message import Kind, State
from dwell.queue import lookback
from dwell.queue.lookback import pages_before
from dwell.queue.schedules import past
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.testing.faults import FaultyDisk
from tests.http.test_http_api import calling

START_MS = 1_800_000_000_007
STATES = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
VERBS = ("run", "take", "ack", "bury", "release", "cancel", "kick", "lapse", "other")


def store_of(kind, clock):
    if kind == "memory":
        return MemoryStore(clock)
    return EmbeddedStore("/store", clock=clock, disk=FaultyDisk())


async def _do(queue, clock, verb, taken):
    """Do a verb of the queue on the messages of the schedule, and of others."""
    if verb == "run":
        await queue.schedules.run("tick")
    elif verb == "other":
        # None of them is a message of this schedule.
        await queue.put_many("t", [b"x"] * 3, ids=["tick@20300101", "tick", "ticks@2030-01-01"])
        await queue.put("u", b"x", id="tick@2030-01-01T00:00:00Z", on_conflict="replace")
    elif verb == "take":
        taken += [m for m in await queue.take("t", 1, lease="1m") if m.id.startswith("tick@")]
    elif verb == "lapse":
        clock.advance(60_000)
        await queue.stats()
        taken.clear()
    elif verb in ("cancel", "kick"):
        for batch in [b for state in STATES async for b in queue.pages("t", state)]:
            await getattr(queue, verb)("t", [message.id for message in batch])
    elif taken:
        words = ("because",) if verb == "bury" else ()
        await getattr(queue, verb)(taken.pop(), *words)


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(("memory", "folder")),
    verbs=st.lists(st.sampled_from((*VERBS, "run", "take")), max_size=30),
    page=st.sampled_from((1, 3, 10_000)),
    asked=st.integers(1, 12),
)
async def test_runs_are_what_all_events_say(kind, verbs, page, asked):
    clock = dwell.SimulatedClock(START_MS)
    async with dwell.Queue(store_of(kind, clock)) as queue:
        await queue.schedules.put("tick", "t", b"x", every="1h")
        taken = []
        for verb in verbs:
            await _do(queue, clock, verb, taken)
            clock.advance(1)
        events = (await queue.events(0, 10_000)).events
        own = [e for e in events if e.topic == "t" and e.id.startswith("tick@2027-")]
        puts = [event for event in own if event.kind is Kind.PUT][::-1][:asked]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookback, "PAGE", page)
            runs, is_whole = await queue.schedules.runs("tick", asked)
        assert is_whole
        assert [(run.id, run.put_ms, run.moment_ms) for run in runs] == [
            (put.id, put.time_ms, put.time_ms) for put in puts
        ]
        for run in runs:
            last = [event for event in own if event.id == run.id][-1]
            assert (run.last, run.last_ms, run.attempt) == (
                str(last.kind),
                last.time_ms,
                last.attempt,
            )
            message = await queue.get("t", run.id)
            gone = {Kind.ACK: "done", Kind.CANCEL: "cancelled"}
            state = gone[last.kind] if message is None else str(message.state)
            assert run.state == {"ready": "waiting", "delayed": "waiting"}.get(state, state)


async def test_a_search_that_takes_too_long_says_so(monkeypatch):
    monkeypatch.setattr(lookback, "PAGE", 10)
    async with dwell.open("memory:") as queue:
        await queue.schedules.put("tick", "t", b"x", every="1h")
        await queue.schedules.run("tick")
        await queue.put_many("t", [b"x"] * 100)
        assert await queue.schedules.runs("tick", within=0) == past.PastRuns([], False)
        (run,), is_whole = await queue.schedules.runs("tick", 1)
        assert (run.state, is_whole) == ("waiting", True)
        with pytest.raises(InvalidSchedule, match="none that is called 'tock'"):
            await queue.schedules.runs("tock")


async def test_runs_over_http():
    async with calling() as caller, dwell.open(caller.server.url) as client:
        path = "/v1/schedules/tick/runs"
        await caller.get(path)
        assert caller.status == 404
        queue = caller.server.queue
        await queue.schedules.put("tick", "t", b"x", every="1h")
        assert await caller.get(path) == {"runs": [], "is_whole": True}
        ids = [(await queue.schedules.run("tick")).id for _ in range(3)]
        await queue.ack(await queue.take("t"))
        found = await caller.get(f"{path}?count=5")
        assert [run["id"] for run in found["runs"]] == ids[::-1]
        assert [run["state"] for run in found["runs"]] == ["waiting", "waiting", "done"]
        assert len((await caller.get(f"{path}?count=2"))["runs"]) == 2
        by_client = await client.schedules.runs("tick")
        assert [run.id for run in by_client.runs] == ids[::-1]
        await caller.get(f"{path}?count=0")
        assert caller.status == 400


async def test_a_log_that_is_trimmed_meanwhile_gives_no_event_twice(monkeypatch):
    monkeypatch.setattr(lookback, "PAGE", 10)
    async with dwell.open("memory:") as queue:
        await queue.put_many("t", [b"x"] * 100)
        first = 0

        async def read(position, limit):
            nonlocal first
            page = await queue.events(max(position, first), limit)
            page.first_position = first
            # The oldest events go while others are looked for.
            first += 12
            return page

        found = [event.position async for _, events, _ in pages_before(read) for event in events]
        pages = [found[at : at + 10] for at in range(0, len(found), 10)]
        assert len({*found}) == len(found)
        assert [page[0] for page in pages][:3] == [90, 80, 70]
