"""SIGKILL at random moments under load: what was answered is there, and nothing else comes back.

DWELL_KILLS sets how often (200; ``make crash``: 2,000), DWELL_SEED repeats a run that failed.
"""

import asyncio
import os
import random
import secrets
import select
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest

import dwell
from dwell import Kind, Result, State
from dwell.store.embedded.check import check
from tests.crash.victim import SEGMENT_BYTES, TOPICS, start

KILLS = int(os.environ.get("DWELL_KILLS", "200"))
MOST_MESSAGES = 20_000
SEED = int(os.environ.get("DWELL_SEED", "0")) or secrets.randbits(32)


class Ledger:
    """What the victims were answered, and what they had asked for when they died."""

    def __init__(self) -> None:
        self.put: set[str] = set()
        self.ended: set[str] = set()
        self.maybe_ended: set[str] = set()
        self.dues: defaultdict[str, set[int]] = defaultdict(set)
        self.takes = 0

    def enter(self, line: str) -> None:
        """Enter one line of a victim."""
        letter, *words = line.split()
        match letter:
            case "P":
                self.put.add(words[0])
            case "p" | "m":
                self.dues[words[0]].add(int(words[1]))
            case "A" | "C":
                self.ended.add(words[0])
            case "a" | "c":
                self.maybe_ended.add(words[0])
            case "T":
                self._enter_take(*words)

    def _enter_take(self, name: str, due_ms: str, now_ms: str, _: str) -> None:
        self.takes += 1
        assert int(due_ms) <= int(now_ms), f"{name} was taken early"
        assert name not in self.ended, f"{name} came back after it was answered as done"

    def compare(self, found: dict[str, dwell.Message]) -> None:
        """Hold everything that a store holds against what was answered."""
        lost = self.put - self.ended - self.maybe_ended - found.keys()
        assert not lost, f"{len(lost)} answered puts are lost: {sorted(lost)[:5]}"
        back = self.ended & found.keys()
        assert not back, f"{len(back)} came back: {sorted(back)[:5]}"
        for name, message in found.items():
            topic, id_ = name.split("/")
            assert message.body == f"{topic} {id_}".encode() * 10
            if message.attempt == 0:
                assert message.due_ms in self.dues[name], f"{name} is due when nobody said"
        # What a dead victim had asked for has happened by now, or never will.
        self.ended |= self.maybe_ended - found.keys()
        self.maybe_ended = set()


def listen(pipe: int, ledger: Ledger, seconds: float, pid: int) -> None:
    """Enter what a victim says for a time, kill it, and enter what it still had said."""
    data, end, killed = b"", None, False
    while True:
        wait = 10 if end is None else max(end - time.monotonic(), 0)
        ready, _, _ = select.select([pipe], [], [], wait)
        if not ready and not killed:
            os.kill(pid, signal.SIGKILL)
            killed = True
            continue
        part = os.read(pipe, 1 << 20)
        if not part:
            break
        end = end or time.monotonic() + seconds
        *lines, data = (data + part).split(b"\n")
        for line in lines:
            ledger.enter(line.decode())
    os.close(pipe)
    assert killed, "the victim died of something else"
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


async def everything(folder: Path) -> dict[str, dwell.Message]:
    """Return all messages of a store by topic and id."""
    found: dict[str, dwell.Message] = {}
    async with dwell.open(folder, segment_bytes=SEGMENT_BYTES) as queue:
        for topic in TOPICS:
            # In the order in which time moves messages, so that none slips past between two scans.
            for state in (State.LEASED, State.DELAYED, State.READY, State.DEAD):
                async for batch in queue.pages(topic, state):
                    found.update({f"{topic}/{message.id}": message for message in batch})
    return found


async def cleared(folder: Path, found: dict[str, dwell.Message]) -> set[str]:
    """Cancel what a store holds, so that long campaigns stay fast; return what was cancelled."""
    gone: set[str] = set()
    async with dwell.open(folder, segment_bytes=SEGMENT_BYTES) as queue:
        for topic in TOPICS:
            ids = [message.id for message in found.values() if message.topic == topic]
            for start in range(0, len(ids), 5000):
                part = ids[start : start + 5000]
                results = await queue.cancel(topic, part)
                pairs = zip(part, results, strict=True)
                gone |= {f"{topic}/{id_}" for id_, result in pairs if result == Result.CANCELLED}
    return gone


async def taken_in_order(folder: Path) -> int:
    """Take what is ready of each topic at one moment; it must come by priority, then due."""
    count = 0
    async with dwell.open(folder, segment_bytes=SEGMENT_BYTES) as queue:
        for topic in TOPICS:
            keys = [(m.priority, m.due_ms) for m in await queue.take(topic, 10_000)]
            assert keys == sorted(keys)
            count += len(keys)
    return count


async def books_balance(folder: Path, ledger: Ledger) -> None:
    """Follow every message through the event log to the end."""
    ends: dict[str, Kind] = {}
    position = 0
    async with dwell.open(folder, segment_bytes=SEGMENT_BYTES) as queue:
        while (page := await queue.events(position, limit=10_000)).events:
            for event in page.events:
                assert event.position == position, "positions have a gap"
                position += 1
                if event.kind == Kind.TAKE:
                    assert event.due_ms <= event.time_ms
                ends[f"{event.topic}/{event.id}"] = event.kind
        assert page.first_position == 0
    assert ledger.put <= ends.keys()
    gone = {name for name, kind in ends.items() if kind in (Kind.ACK, Kind.CANCEL)}
    assert ledger.ended <= gone
    assert gone.isdisjoint((await everything(folder)).keys())


@pytest.mark.timeout(2 * 3600)
def test_kill(tmp_path: Path) -> None:
    print(f"DWELL_SEED={SEED}")
    chance, ledger, folder = random.Random(SEED), Ledger(), tmp_path / "store"
    for number in range(KILLS):
        pid, pipe = start(folder, number, chance.getrandbits(32))
        listen(pipe, ledger, chance.random() * 0.15, pid)
        if number % 10 == 9:
            found = asyncio.run(everything(folder))
            ledger.compare(found)
            # The last round leaves something, so that its order can be looked at below.
            if len(found) > MOST_MESSAGES and number < KILLS - 1:
                ledger.ended |= asyncio.run(cleared(folder, found))
    ledger.compare(asyncio.run(everything(folder)))
    report = check(folder)
    assert report.ok, report.findings
    asyncio.run(books_balance(folder, ledger))
    # By now every lease of the last victim has ended, so that there is something to take.
    time.sleep(0.4)
    assert asyncio.run(taken_in_order(folder)) > 0
    assert len(ledger.put) > KILLS
    assert ledger.takes > KILLS
