"""Metrics: what a scrape costs when a tenant has made thousands of topics."""

import asyncio

from tools.attack.attack import Attack, must
from tools.attack.sockets import ask, connected, hammer
from tools.attack.target import SCRAPER, TENANT, Target, asked

_COUNT, _AT_ONCE = 5_000, 20
_MOST_BYTES = 2_000_000


async def fill(target: Target) -> None:
    """Put a message into each of thousands of topics, by names as long as they may be."""

    async def some(first: int) -> None:
        async with connected(target) as wire:
            for at in range(first, _COUNT, _AT_ONCE):
                topic = f"{TENANT}.{at:05}".ljust(190, "x")
                put = asked(TENANT, "POST", f"/v1/topics/{topic}/messages", {"body": "x"})
                answer = await wire.ask(put)
                must(answer.status == 200, f"the store could not be filled: {answer.data[:200]!r}")

    await asyncio.gather(*map(some, range(_AT_ONCE)))


async def scraped(target: Target) -> str:
    """Scrape as monitoring does, and look at the topics beside it."""
    looks = asked(TENANT, "GET", "/v1/topics")
    answers, _ = await asyncio.gather(
        hammer(target, asked(SCRAPER, "GET", "/metrics"), at_once=1),
        hammer(target, looks, at_once=1),
    )
    longest = max(len(answer.data) for answer in answers)
    must(answers[0].status == 200, f"a scrape: {answers[0].data[:200]!r}")
    must(longest < _MOST_BYTES, f"a scrape of {longest / 1e6:.1f} MB")
    must((await ask(target, looks)).status == 200, "the topics could not be listed")
    return f"{len(answers)} scrapes of {longest / 1e6:.1f} MB with {_COUNT} topics"


ATTACKS = (Attack("scrapes with thousands of topics", scraped, prepare=fill),)
