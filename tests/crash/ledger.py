"""What victims were answered, held against what a store has and against its log of events."""

import os
import select
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import dwell
from dwell import Kind, Result, State
from tests.crash.victim import TOPICS


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
                assert self._is_said(name, message.due_ms), f"{name} is due when nobody said"
        # What a dead victim had asked for has happened by now, or never will.
        self.ended |= self.maybe_ended - found.keys()
        self.maybe_ended = set()

    def _is_said(self, name: str, due_ms: int) -> bool:
        return due_ms in self.dues[name]


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


async def everything(place: Path | str, **options: Any) -> dict[str, dwell.Message]:
    """Return all messages of a store by topic and id."""
    found: dict[str, dwell.Message] = {}
    async with dwell.open(place, **options) as queue:
        for topic in TOPICS:
            # In the order in which time moves messages, so that none slips past between two scans.
            for state in (State.LEASED, State.DELAYED, State.READY, State.DEAD):
                async for batch in queue.pages(topic, state):
                    found.update({f"{topic}/{message.id}": message for message in batch})
    return found


async def cleared(place: Path | str, found: dict[str, dwell.Message], **options: Any) -> set[str]:
    """Cancel what a store holds, so that long campaigns stay fast; return what was cancelled."""
    gone: set[str] = set()
    async with dwell.open(place, **options) as queue:
        for topic in TOPICS:
            ids = [message.id for message in found.values() if message.topic == topic]
            for start in range(0, len(ids), 5000):
                part = ids[start : start + 5000]
                results = await queue.cancel(topic, part)
                pairs = zip(part, results, strict=True)
                gone |= {f"{topic}/{id_}" for id_, result in pairs if result == Result.CANCELLED}
    return gone


async def books_balance(place: Path | str, ledger: Ledger, **options: Any) -> None:
    """Follow every message through the event log to the end."""
    ends: dict[str, Kind] = {}
    position = 0
    async with dwell.open(place, **options) as queue:
        while (page := await queue.events(position, limit=10_000)).events:
            for event in page.events:
                assert event.position == position, "positions have a gap"
                position += 1
                if event.kind == Kind.TAKE:
                    assert event.due_ms <= event.time_ms
                name = f"{event.topic}/{event.id}"
                # Ids are used once, so that nothing comes after an end.
                assert ends.get(name) not in (Kind.ACK, Kind.CANCEL), f"{name} came back"
                ends[name] = event.kind
        assert page.first_position == 0
    assert ledger.put <= ends.keys()
    gone = {name for name, kind in ends.items() if kind in (Kind.ACK, Kind.CANCEL)}
    assert ledger.ended <= gone
    assert gone.isdisjoint((await everything(place, **options)).keys())
