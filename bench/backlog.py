"""Messages that go all the way on Redis while many or few others wait: the ratio of the speeds.

The backlog is due in more than an hour. The figure is the lower one of two ratios, of medians:
that of batches of 1,000, and that of single messages of 64 callers at once.
"""

import asyncio
import statistics
import sys

import dwell
from bench.filled import put_pending
from bench.lifecycle import dwell_on_redis
from bench.redis_servers import Server, redis_server
from bench.result import Result

_CALLERS = 64
_FAR_MS = 3_600_000
#: For each kind: how many messages one put carries.
_KINDS = {"batch": 1000, "single": 1}


def run(*, few: int, many: int, messages: int, rounds: int) -> Result:
    """Fill two servers, and measure both in turn, for each kind."""
    params = {"few": few, "many": many, "messages": messages}
    result = Result("backlog", params, "ratio")
    speeds: dict[str, list[float]] = {}
    with redis_server() as less, redis_server() as full:
        asyncio.run(_fill(less, few))
        asyncio.run(_fill(full, many))
        for number in range(rounds):
            for kind, batch in _KINDS.items():
                count = messages if batch > 1 else messages // 10
                for size, server in (("few", less), ("many", full)):
                    life = dwell_on_redis(server.url, [server.pid], count, batch, "queue", _CALLERS)
                    name = f"{kind}_{size}"
                    speeds.setdefault(name, []).append(life.speed)
                    told = f"  round {number + 1}: {name} {life.speed:,.0f} messages/s"
                    print(told, file=sys.stderr)
        asyncio.run(_check(full, many))
    medians = {name: statistics.median(some) for name, some in speeds.items()}
    ratios = {kind: medians[f"{kind}_many"] / medians[f"{kind}_few"] for kind in _KINDS}
    result.add("dwell", min(ratios.values()))
    result.more |= {f"{kind}_ratio": round(ratio, 3) for kind, ratio in ratios.items()}
    result.more |= {f"{name}_speed": round(speed) for name, speed in medians.items()}
    return result


async def _fill(server: Server, pending: int) -> None:
    async with dwell.open(server.url) as queue:
        await put_pending(queue, pending, "queue", after_ms=_FAR_MS)


async def _check(server: Server, pending: int) -> None:
    """Make sure that the backlog was there all the time."""
    async with dwell.open(server.url) as queue:
        found = (await queue.stats()).topics["bench"]
        assert (found.delayed, found.ready, found.leased) == (pending, 0, 0), found
