"""Rounds: who goes first."""

import asyncio

from dwell.queue.gather import Rounds
from dwell.server.beanstalk.steps import Steps


async def test_large_rounds_that_come_again_and_again_keep_no_small_one_back():
    done: list[str] = []

    async def do(key, parts):
        await asyncio.sleep(0)
        done.append(key)
        if len(done) < 200 and key != "small":
            rounds.add(key, None, 100)

    rounds: Rounds[str, None] = Rounds(do, lambda parts: None, Steps())
    for at in range(10):
        rounds.add(f"large {at}", None, 100)
    while len(done) < 20:
        await asyncio.sleep(0)
    before = len(done)
    rounds.add("small", None)
    await rounds.settled()
    # Each of the others goes before it once, and some of them until it was passed often.
    assert done.index("small") - before <= 15
