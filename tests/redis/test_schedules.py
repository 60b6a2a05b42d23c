"""Schedules over Redis: records of declared schedules, and versions of what was looked at."""

import asyncio

import dwell
from dwell.worker import Worker
from tests.redis.servers import redis_server
from tests.waiting import until_async
from tests.worker.serving import serving

DAY_MS = 86_400_000


async def test_workers_of_an_app_keep_the_schedules_of_each_other():
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            workers = []
            for name in ("mail", "report"):
                worker = Worker(queue, app="shop", keep_schedules="500ms")
                worker.every("1h", name=name)(lambda message: None)
                workers.append(worker)
            async with serving(workers[1]):
                async with serving(workers[0]):
                    await until_async(lambda: queue.schedules.get("mail"))
                    await asyncio.sleep(1)
                    assert await queue.schedules.get("mail")
                await until_async(lambda: is_gone(queue, "mail"))
                assert await queue.schedules.get("report")


async def test_a_schedule_that_is_far_away_is_reckoned_anew_when_somebody_begins_to_fire(caplog):
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            await queue.schedules.put("s", "t", b"", every="90d")
            await queue.schedules.put("paused", "t", b"", every="90d")
            await queue.schedules.pause("paused")
            found = await queue.schedules.get("s")
            await queue.reschedule("dwell:schedules", "s", due=found.next_ms + 400 * DAY_MS)
            firing = asyncio.create_task(queue.schedules.fire())

            async def is_back():
                # A release counts its delay by the engine's clock, some milliseconds later.
                return abs((await queue.schedules.get("s")).next_ms - found.next_ms) < 200

            await until_async(is_back)
            assert (await queue.schedules.get("paused")).next_ms is None
            firing.cancel()
    assert "1 schedules were ahead of the clock and are due again: s" in caplog.text


async def is_gone(queue, name):
    return await queue.schedules.get(name) is None
