"""Handlers that do anything Python allows, drawn from a seed, held against what must come of it."""

import asyncio
import logging
import os
import random
from typing import NamedTuple

import pytest

import dwell
from dwell import State
from dwell.store.memory import MemoryStore
from dwell.worker import Bury, Retry, Worker

#: How many handlers are drawn in all, twenty a run.
DRAWN = int(os.environ.get("DWELL_HANDLERS", "300"))
EACH = 20
MOST_ATTEMPTS = 3


class Odd(BaseException):
    """An exception that is no Exception."""


class Act(NamedTuple):
    """What a handler does, and what is to become of its message then."""

    name: str
    ends: str


ACTS = [
    *(Act(name, "acked") for name in ("none", "value", "itself", "exception", "type", "slow")),
    *(Act(name, "acked") for name in ("awaitable", "forks", "thread", "context", "task")),
    *(Act(name, "counted") for name in ("StopIteration", "StopAsyncIteration", "GeneratorExit")),
    *(Act(name, "counted") for name in ("Odd", "ValueError", "CancelledError", "group", "memory")),
    *(Act(name, "counted") for name in ("generator", "recursion", "surrogate", "retry", "timeout")),
    Act("bury", "dead"),
    *(Act(name, "exit") for name in ("SystemExit", "KeyboardInterrupt")),
    Act("cancels itself", "counted"),
]

RAISED = {
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "GeneratorExit": GeneratorExit,
    "Odd": Odd,
    "ValueError": ValueError,
    "CancelledError": asyncio.CancelledError,
    "group": lambda: BaseExceptionGroup("g", [Odd(), ValueError()]),
    "memory": MemoryError,
    "surrogate": lambda: ValueError("\udce9\0" * 5_000),
    "retry": lambda: Retry("1s", "again"),
    "timeout": TimeoutError,
    "bury": lambda: Bury("enough"),
    "SystemExit": lambda: SystemExit("bad"),
    "KeyboardInterrupt": KeyboardInterrupt,
}


async def nothing():
    await asyncio.sleep(0)


def endless():
    return endless()


def do(name, message):
    """Do what a plain function can."""
    if name in RAISED:
        raise RAISED[name]()
    if name == "recursion":
        endless()
    if name == "forks" and (pid := os.fork()):
        os.waitpid(pid, 0)
    answers = {
        "value": object(),
        "itself": message,
        "exception": ValueError("returned, not raised"),
        "type": StopIteration,
        "awaitable": nothing() if name == "awaitable" else None,
        "generator": (n for n in range(3)),
    }
    return answers.get(name)


async def do_async(name, message):
    """Do what a coroutine function can."""
    task = asyncio.current_task()
    if name == "cancels itself":
        task.cancel()
        await asyncio.sleep(0)
    if name == "slow":
        await asyncio.sleep(0.01)
    if name == "task":
        await asyncio.gather(nothing(), nothing())
    if name == "timeout":
        async with asyncio.timeout(0):
            await asyncio.sleep(600)
    if name == "context":
        async with asyncio.timeout(600):
            await nothing()
    if name == "thread":
        await asyncio.to_thread(str, message)
    answer = do(name, message)
    if name == "awaitable":
        await answer
    return answer


class Run:
    """One drawn set of messages, and the workers that handle them until all have an end."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.is_async, self.cancels = self.chance.random() < 0.5, self.chance.random() < 0.5
        self.plan = {f"m{n}": self._acts() for n in range(EACH)}
        self.seen = {id_: [] for id_ in self.plan}
        self.running = set()
        self.clock = dwell.SimulatedClock()

    def _acts(self):
        """Return what the attempts at one message do."""
        known = [act for act in ACTS if self._can(act.name)]
        return [self.chance.choice(known) for _ in range(MOST_ATTEMPTS)]

    def _can(self, name):
        if not self.is_async:
            return name != "cancels itself"
        # Who cancels himself while all are told to end can't be told from those who are told. And
        # a generator that a coroutine returns is a value like any other.
        ends = ("SystemExit", "KeyboardInterrupt") if self.cancels else ("cancels itself",)
        return name not in ("forks", "generator", *ends)

    def act(self, message):
        assert message.id not in self.running
        act = self.plan[message.id][len(self.seen[message.id])]
        self.seen[message.id].append(message.attempt)
        return act.name

    def worker(self, queue):
        worker = Worker(queue, grace="60s")
        by_key = self.chance.random() < 0.5

        def plain(message):
            return do(self.act(message), message)

        async def coroutine(message):
            return await do_async(self.act(message), message)

        worker.on(
            "t",
            concurrency=self.chance.choice((1, 2, 5)),
            by_key=by_key,
            retry="1s",
        )(coroutine if self.is_async else plain)
        return worker

    async def go(self):
        async with dwell.Queue(MemoryStore(self.clock)) as queue:
            keys = [self.chance.choice(("a", "b", None)) for _ in self.plan]
            await queue.put_many(
                "t", ["x"] * EACH, ids=list(self.plan), key=keys, max_attempts=MOST_ATTEMPTS
            )
            while await self._left(queue):
                worker = self.worker(queue)
                serving = asyncio.create_task(self._serve(worker))
                while not serving.done() and await self._left(queue):
                    await asyncio.sleep(0.002)
                    counts = (await queue.stats()).topics["t"]
                    if not counts.ready and not counts.leased:
                        self.clock.advance(1_000)
                worker.stop()
                await serving
                assert (await queue.stats()).topics["t"].leased == 0
            await self._judge(queue)

    async def _serve(self, worker):
        """Serve; a task of asyncio would let what ends a program out of the loop."""
        try:
            await worker.serve()
        except (SystemExit, KeyboardInterrupt):
            return

    async def _left(self, queue):
        counts = (await queue.stats()).topics.get("t")
        return counts is not None and counts.ready + counts.delayed + counts.leased > 0

    async def _judge(self, queue):
        for id_, acts in self.plan.items():
            ends = [act.ends for act in acts]
            last = next(
                (n for n, end in enumerate(ends) if end in ("acked", "dead")), len(ends) - 1
            )
            # Each attempt was made once, whatever its neighbours did.
            assert self.seen[id_] == list(range(1, last + 2)), (id_, acts, self.seen[id_])
            message = await queue.get("t", id_)
            if ends[last] == "acked":
                assert message is None, (id_, acts)
            else:
                assert (message.state, message.attempt) == (State.DEAD, last + 1), (id_, acts)
                assert message.last_error


@pytest.mark.parametrize("start", range(0, DRAWN // EACH, 5))
def test_drawn_handlers_have_the_end_that_they_chose(start, caplog):
    with caplog.at_level(logging.CRITICAL + 1, "dwell"):
        for seed in range(start, start + 5):
            asyncio.run(asyncio.wait_for(Run(seed).go(), 120))
