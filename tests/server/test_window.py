"""The window of large answers: in order, within its bound, and whole after each wait that fails."""

import asyncio
import contextlib
import random

import pytest

from dwell.errors import ServerBusy
from dwell.message import MAX_BATCH_BYTES
from dwell.server import window
from dwell.server.window import Window


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_answers_wait_for_others_in_order():
    one, order = Window(100), []

    async def answer(name, size):
        await one.enter(size)
        order.append(name)

    await one.enter(60)
    tasks = [asyncio.create_task(answer(*each)) for each in (("a", 50), ("b", 10), ("c", 40))]
    await settled()
    # The second would fit, and the first would wait for ever where others always fit.
    assert order == []
    one.leave(60)
    await settled()
    assert order == ["a", "b", "c"]
    assert one.size_bytes == 100
    await asyncio.gather(*tasks)


async def test_one_that_is_too_large_is_let_in_alone():
    one = Window(100)
    await one.enter(300)
    waiting = asyncio.create_task(one.enter(1))
    await settled()
    assert not waiting.done()
    one.change(300, 50)
    await waiting
    assert one.size_bytes == 51


async def test_who_waits_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(window, "PATIENCE_S", 0.01)
    one = Window(100)
    await one.enter(90)
    with pytest.raises(ServerBusy, match="at most 100 may be"):
        await one.enter(20)
    await one.enter(10)
    assert one.size_bytes == 100


async def test_only_one_waits_with_what_it_holds():
    one = Window(10)
    await one.enter(10)
    waiting = asyncio.create_task(one.enter(2 * MAX_BATCH_BYTES, is_held=True))
    await settled()
    with pytest.raises(ServerBusy):
        await one.enter(1, is_held=True)
    one.leave(10)
    await waiting
    one.leave(2 * MAX_BATCH_BYTES)
    await one.enter(1, is_held=True)


async def test_nothing_is_lost_when_waits_are_cancelled():
    chance, one, held = random.Random(7), Window(100), []
    tasks = set()

    async def answer(size):
        await one.enter(size)
        held.append(size)

    for _ in range(3000):
        step = chance.randrange(3)
        if step == 0:
            tasks.add(asyncio.create_task(answer(chance.randrange(1, 80))))
        elif step == 1 and tasks:
            chance.choice(sorted(tasks, key=id)).cancel()
        elif held:
            one.leave(held.pop(chance.randrange(len(held))))
        if chance.randrange(4) == 0:
            await asyncio.sleep(0)
        assert one.size_bytes <= 100
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert one.size_bytes == sum(held)
    for size in held:
        one.leave(size)
    assert one.size_bytes == 0
    await one.enter(100)
