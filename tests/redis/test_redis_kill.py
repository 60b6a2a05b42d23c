"""SIGKILL of instances at random moments, several at once, and of the engine under them.

DWELL_REDIS_KILLS sets how often (100), DWELL_SEED repeats the choices of a run that failed.
"""

import asyncio
import os
import random
import secrets
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import dwell
from dwell import State
from tests.crash.ledger import Ledger, books_balance, cleared, everything, listen
from tests.crash.victim import start
from tests.redis.servers import Server, redis_server, until

pytestmark = pytest.mark.campaign

KILLS = int(os.environ.get("DWELL_REDIS_KILLS", "40"))
SEED = int(os.environ.get("DWELL_SEED", "0")) or secrets.randbits(32)
AT_ONCE = 8
MOST_MESSAGES = 10_000
#: What is due now is due by the earliest time that the engine can have had.
EARLIER_MS = 1000


class SharedLedger(Ledger):
    """The same for instances whose lines do not come in the order of what happened.

    Whether something came back is then told by the log of events alone.
    """

    def _enter_take(self, name: str, due_ms: str, now_ms: str, _: str) -> None:
        self.takes += 1
        assert int(due_ms) <= int(now_ms), f"{name} was taken early"

    def _is_said(self, name: str, due_ms: int) -> bool:
        return any(0 <= said_ms - due_ms < EARLIER_MS for said_ms in self.dues[name])


class Campaign:
    """Rounds of instances that are killed, and what they were answered."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        # All events are kept, so that the books can be read from the beginning.
        self._url = f"{server.url}?max_events={10**9}"
        self._chance = random.Random(seed)
        self._number = 0
        self.ledger = SharedLedger()

    def round(self, *, with_engine: bool) -> None:
        """Start some instances, and kill each at some moment; perhaps the engine as well."""
        victims = []
        for _ in range(AT_ONCE):
            self._number += 1
            seed, seconds = self._chance.getrandbits(32), self._chance.random() * 0.25
            pid, pipe = start(self._url, self._number, seed)
            victims.append((pipe, self.ledger, seconds, pid))
        pause_s = self._chance.random() * 0.3
        with ThreadPoolExecutor(AT_ONCE) as pool:
            ends = [pool.submit(listen, *victim) for victim in victims]
            if with_engine:
                time.sleep(pause_s)
                self._server.kill()
                self._server.start()
        for end in ends:
            end.result()
        # What the dead had sent is done once their connections have been read to the end.
        until(lambda: len(self._server.ask("CLIENT", "LIST").split("\n")) <= 2, "they are not gone")

    def compare(self, *, is_last: bool) -> None:
        """Hold what is there against what was answered; clear it away when it is much."""
        found = asyncio.run(everything(self._url))
        self.ledger.compare(found)
        if len(found) > MOST_MESSAGES and not is_last:
            self.ledger.ended |= asyncio.run(cleared(self._url, found))

    def balance(self) -> None:
        """See that the books are right, and that all parts of the store know the same."""
        asyncio.run(books_balance(self._url, self.ledger))
        asyncio.run(self._whole())
        assert len(self.ledger.put) > self._number
        assert self.ledger.takes > self._number

    async def _whole(self) -> None:
        async with dwell.open(self._url) as queue:
            assert await queue.find_stale() == []
            stats = await queue.stats()
            gone = stats.totals.get("ack", 0) + stats.totals.get("cancel", 0)
            there = sum(of.delayed + of.ready + of.leased + of.dead for of in stats.topics.values())
            assert stats.totals["put"] == gone + there


def run(server: Server, kills: int, *, with_engine: bool) -> None:
    print(f"DWELL_SEED={SEED}")
    campaign = Campaign(server, SEED)
    rounds = max(kills // AT_ONCE, 1)
    for number in range(1, rounds + 1):
        campaign.round(with_engine=with_engine)
        if number % 6 == 0 or number == rounds:
            campaign.compare(is_last=number == rounds)
    campaign.balance()


@pytest.mark.timeout(2 * 3600)
def test_instances_are_killed():
    with redis_server() as server:
        run(server, KILLS, with_engine=False)


@pytest.mark.timeout(2 * 3600)
def test_instances_and_the_engine_are_killed():
    with redis_server(appendonly="yes", appendfsync="always") as server:
        run(server, KILLS // 4, with_engine=True)


@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.99])
def test_a_script_that_a_crash_cut_in_two_was_never_there(part):
    async def put(*ids: str) -> None:
        async with dwell.open(server.url) as queue:
            await queue.put_many("t", ids, ids=list(ids), priority=[1, 2])

    with redis_server(appendonly="yes", appendfsync="always") as server:
        asyncio.run(put("a", "b"))
        (file,) = server.folder.glob("appendonlydir/*.incr.aof")
        asyncio.run(put("c", "d"))
        server.kill()
        data = file.read_bytes()
        start, end = data.rindex(b"MULTI"), data.rindex(b"EXEC")
        file.write_bytes(data[: start + int((end - start) * part)])
        server.start()
        asyncio.run(put("e", "f"))
        server.kill()
        server.start()
        assert asyncio.run(whole(server.url, "t")) == {"a", "b", "e", "f"}


async def whole(url: str, topic: str) -> set[str]:
    """Return the ids of all messages of a topic, of a store whose parts know the same."""
    async with dwell.open(url) as queue:
        assert await queue.find_stale() == []
        return {m.id async for page in queue.pages(topic, State.READY) for m in page}
