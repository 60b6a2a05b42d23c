"""Single messages of many putters, for several takers: messages a second, beside one taker."""

import asyncio
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat

import uvloop

import dwell
from bench.http import PUT, Driver, connected, request
from bench.lifecycle import BODY
from bench.result import Result
from bench.servers import dwell_server

#: How many messages a taker asks for.
_LIMIT = 1000
_RECEIPT = re.compile(rb'"receipt":"([0-9a-f]{32})"')
_TAKE = request(b"/v1/take", b'{"topics":"single","wait_ms":1000,"limit":%d}' % _LIMIT)


def run(*, over: str, putters: int, takers: int, messages: int, rounds: int) -> Result:
    """Measure ``takers`` takers and one in turn, in this process or over HTTP."""
    params = {"over": over, "putters": putters, "takers": takers, "messages": messages}
    result = Result("takers", params, "messages/s")
    measure = _over_http if over == "http" else _in_process
    share = messages // putters
    systems: dict[str, Callable[[], float]] = {
        "dwell": partial(measure, putters, takers, share),
        "one_taker": partial(measure, putters, 1, share),
    }
    result.in_turn(rounds, systems)
    return result


# --- in this process ------------------------------------------------------------------------------


def _in_process(putters: int, takers: int, share: int) -> float:
    return asyncio.run(_in_process_async(putters, takers, share))


async def _in_process_async(putters: int, takers: int, share: int) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with dwell.open(folder + "/store") as queue:
            left = putters * share

            async def put() -> None:
                for _ in range(share):
                    await queue.put("single", BODY)

            async def take() -> None:
                nonlocal left
                while left > 0:
                    batch = await queue.take("single", _LIMIT, wait=1)
                    await queue.ack(batch)
                    left -= len(batch)

            start = time.perf_counter()
            jobs = [put() for _ in range(putters)] + [take() for _ in range(takers)]
            await asyncio.gather(*jobs)
            return putters * share / (time.perf_counter() - start)


# --- over HTTP ------------------------------------------------------------------------------------


def _over_http(putters: int, takers: int, share: int) -> float:
    return uvloop.run(_over_http_async(putters, takers, share))


async def _over_http_async(putters: int, takers: int, share: int) -> float:
    with dwell_server() as (_, port):
        left = [putters * share]
        makers = [partial(_Putter, share)] * putters + [partial(_Taker, left)] * takers
        drivers = await connected(port, makers)
        start = time.perf_counter()
        for driver in drivers:
            driver.start()
        await asyncio.gather(*[driver.done for driver in drivers])
        return putters * share / (time.perf_counter() - start)


class _Putter(Driver):
    """A connection that puts one message after another."""

    def __init__(self, messages: int) -> None:
        super().__init__()
        self._messages = messages

    def requests(self) -> Iterator[bytes]:
        yield from repeat(PUT, self._messages)


class _Taker(Driver):
    """A connection that takes and acks until all messages are acked; ``left`` is their count."""

    def __init__(self, left: list[int]) -> None:
        super().__init__()
        self._left = left

    def requests(self) -> Iterator[bytes]:
        while self._left[0] > 0:
            yield _TAKE
            if receipts := _RECEIPT.findall(self.answer):
                self._left[0] -= len(receipts)
                yield request(b"/v1/ack", b'{"receipts":["%s"]}' % b'","'.join(receipts))
