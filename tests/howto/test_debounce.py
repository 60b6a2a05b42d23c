"""The page on debounce: the last change is seen, whenever it comes and whatever is lost."""

import asyncio
import random
import runpy
from pathlib import Path

import pytest

import dwell
from dwell.worker import Worker
from tests.pages import blocks_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def edited():
    return runpy.run_path(str(ROOT / "examples" / "debounce.py"))["edited"]


async def test_an_edit_while_the_handler_runs_is_seen(edited):
    clock = dwell.SimulatedClock()
    async with dwell.open("memory:", clock=clock) as queue:
        for number in range(3):
            assert await edited(queue, "p") == f"created as p.{number}"
            clock.advance(5_000)
            # Each is still being handled when the next edit comes.
            assert len(await queue.take("index", lease="1h")) == 1


async def test_a_lost_answer_is_said_again(edited):
    clock = dwell.SimulatedClock()
    async with dwell.open("memory:", clock=clock) as queue:
        await edited(queue, "p")
        await edited(queue, "p")
        clock.advance(5_000)
        assert len(await queue.take("index", 10)) == 1


@pytest.mark.parametrize("seed", range(5))
async def test_the_last_edit_is_seen_in_the_end(edited, seed):
    """Editors, and workers whose handlers read at the start and fail now and then."""
    draw = random.Random(seed)
    stored, indexed = {"p": 0, "q": 0}, {"p": 0, "q": 0}
    clock = dwell.SimulatedClock()
    async with dwell.open("memory:", clock=clock) as queue:
        worker = Worker(queue)

        @worker.on("index", concurrency=4, by_key=True, retry="1s")
        async def index(message):
            page = message.body.decode()
            seen = stored[page]
            for _ in range(draw.randrange(5)):
                await asyncio.sleep(0)
            if draw.random() < 0.2:
                raise RuntimeError("it failed")
            indexed[page] = seen

        task = asyncio.create_task(worker.serve())
        for _ in range(300):
            page = draw.choice("pq")
            stored[page] += 1
            await edited(queue, page)
            if draw.random() < 0.3:
                clock.advance(draw.choice([100, 5_000]))
            for _ in range(draw.randrange(8)):
                await asyncio.sleep(0)
        while (left := (await queue.stats()).topics["index"]).delayed + left.ready + left.leased:
            clock.advance(5_000)
            await asyncio.sleep(0.001)
        worker.stop()
        await task
    assert indexed == stored


def test_a_throttle_acts_once_in_each_span(monkeypatch):
    """Each edit is followed by a run, whether the one before waits, runs or is remembered."""
    page = (ROOT / "docs" / "howto" / "debounce.md").read_text()
    code = next(b.text for b in blocks_of(page) if "span_s" in b.text).split("\nwith")[0]
    names = {}
    exec(code, names)
    clock = dwell.SimulatedClock(1_000_000_000_000)
    monkeypatch.setattr(names["time"], "time_ns", lambda: clock.now_ms() * 1_000_000)
    edits = seen = runs = 0
    with dwell.open("memory:", clock=clock) as queue:
        for step in range(40):
            edits += 1
            names["edited"](queue, "p")
            batch = queue.take("index", 10)
            if batch:
                seen, runs = edits, runs + 1
            names["edited"](queue, "p")
            edits += 1
            queue.ack(batch)
            clock.advance(700 + step)
        clock.advance(5_000)
        if queue.take("index", 10):
            seen, runs = edits, runs + 1
    assert seen == edits
    assert runs <= 9
