"""Flipped bits: a store with one bit changed on its disk refuses, repairs or never reads it.

A store is filled and copied while it is open, as SIGKILL would leave it. Each flip is made in a
copy of that; all that the store then says is held against what it said without the flip.
"""

import asyncio
import contextlib
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dwell
from dwell.clock import SimulatedClock
from dwell.errors import StoreDamaged
from dwell.message import QUEUE_ID_MARK, Message, Result, State
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.check import check
from dwell.store.embedded.journal.segment import segment_path
from dwell.store.embedded.limits import Limits

#: The kinds of files, by how their names begin.
KINDS = {"journal": "journal-", "snapshot": "snapshot-", "events": "events-"}
#: No kind of file, but of damage: to any of them, and more than a bit.
MORE = "more"
OUTCOMES = ("refused", "repaired", "harmless", "served wrong")
SEGMENT_BYTES = 64 * 1024
_LIMITS = Limits(event_file_bytes=16 * 1024, block_events=200, block_parts=50)
_MEMORY = Path("/dev/shm")
_TOPICS = ("orders", "mail")
_ROUNDS = 12
_BATCH = 25
#: This part of the flips goes anywhere in a file, also behind the end of what was written.
_ANYWHERE = 0.1


@dataclass(slots=True)
class Flips:
    """What came of the flips in files of one kind."""

    kind: str
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Told:
    """All that a store says: its messages, its events, and which ids it knows.

    ``damaged`` is how many messages it says that it left out.
    """

    messages: dict[str, Any]
    damaged: int
    events: list[Any]
    known: set[str]


class _Warnings(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _queue(folder: Path, clock: SimulatedClock) -> Queue:
    return Queue(EmbeddedStore(folder, clock=clock, segment_bytes=SEGMENT_BYTES, limits=_LIMITS))


async def _fill(folder: Path, copy: Path, clock: SimulatedClock) -> int:
    """Fill a store, with snapshots on the way, and copy it as it is after its last answer.

    Return where the last frame of the journal begins: that all before it was promised.
    """
    async with _queue(folder, clock) as queue:
        store = queue.store
        assert isinstance(store, EmbeddedStore)
        for number in range(_ROUNDS):
            for topic in _TOPICS:
                ids = [f"{topic}-{number}-{n}" for n in range(_BATCH)]
                bodies = [name.encode() * 9 for name in ids]
                await queue.put_many(topic, bodies, ids=ids, delay=number % 3, headers={"a": topic})
                # Some ids are the queue's own.
                await queue.put_many(topic, bodies[:5], delay=60, ttl="2h", key=topic)
                taken = await queue.take(topic, 20, lease="1h")
                await queue.ack(taken[:12])
                await queue.release(taken[12:14], delay=30, error="later")
                some = taken[14:18]
                await queue.release(some, delay=30, error=["a", None, "", "b"][: len(some)])
                await queue.cancel(topic, ids[-2:])
                await _more(queue, topic, ids)
            clock.advance(700)
            if number in (_ROUNDS // 3, 2 * _ROUNDS // 3):
                await store.compact()
        promised = store.core.journal.position
        await queue.put("last", b"")
        shutil.copytree(folder, copy)
    return promised


async def _more(queue: Queue, topic: str, ids: list[str]) -> None:
    """Do what else there is to messages."""
    await queue.put_many(topic, ids[:2], ids=ids[:2], delay=1, on_conflict="replace")
    await queue.reschedule(topic, ids[-4:-2], delay="2h")
    brief = await queue.take(topic, 6, lease=0.5)
    await queue.touch(brief[:1], "1h")
    await queue.bury(brief[1:3], "no")
    await queue.release(brief[3:4], retry=True, error="again", priority=7)
    await queue.release(brief[4:5], counted=False)
    await queue.kick(topic, [message.id for message in brief[1:2]])


async def _tell(folder: Path, now_ms: int) -> Told:
    """Return all that a store says, and raise StoreDamaged if it refuses."""
    messages: dict[str, Any] = {}
    events: list[Any] = []
    known: set[str] = set()
    async with _queue(folder, SimulatedClock(now_ms)) as queue:
        for topic in _TOPICS:
            for state in (State.DELAYED, State.READY, State.LEASED, State.DEAD):
                async for batch in queue.pages(topic, state):
                    messages.update({f"{topic}/{m.id}": m for m in batch})
        damaged = int((await queue.store.condition())["damaged_messages"])
        position = 0
        while (page := await queue.events(position, limit=10_000)).events:
            events += page.events
            position = page.next_position
        for topic in _TOPICS:
            ids = [f"{topic}-{number}-{n}" for number in range(_ROUNDS) for n in range(_BATCH)]
            answer = await queue.put_many(topic, [b"again"] * len(ids), ids=ids, delay="1d")
            pairs = zip(ids, answer, strict=True)
            known |= {name for name, put in pairs if put.result is not Result.CREATED}
    return Told(messages, damaged, events, known)


def _flip(folder: Path, kind: str, promised: int, chance: random.Random) -> str:
    """Flip one bit in a file of a kind, and say where."""
    path = chance.choice(sorted(folder.glob(f"{KINDS[kind]}*")))
    data = bytearray(path.read_bytes())
    written = len(data.rstrip(b"\0"))
    if path.name == segment_path(folder, promised // SEGMENT_BYTES).name:
        # What is broken in the last frame cannot be told from a write that was torn.
        written, last = promised % SEGMENT_BYTES, written
    else:
        last = written
    at = chance.randrange(max(written, 1))
    if chance.random() < _ANYWHERE and last < len(data):
        at = chance.randrange(last, len(data))
    bit = chance.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"{path.name}: bit {bit} of byte {at}"


def _wreck(folder: Path, chance: random.Random) -> str:
    """Damage more than a bit of some file, and say where and how."""
    kind = chance.choice(list(KINDS))
    path = chance.choice(sorted(folder.glob(f"{KINDS[kind]}*")))
    data = bytearray(path.read_bytes())
    at = chance.randrange(max(len(data.rstrip(b"\0")), 1))
    there = slice(at, min(at + chance.choice((8, 100, 4096)), len(data)))
    size, how = there.stop - at, chance.choice(("gone", "cut", "zeros", "noise", "other"))
    if how == "gone":
        path.unlink()
        return f"{path.name}: gone"
    if how == "cut":
        del data[at:]
    elif how == "other":
        # What was right elsewhere, as a disk leaves it that writes to a wrong place.
        data[there] = data[at // 2 :][:size]
    else:
        data[there] = bytes(size) if how == "zeros" else chance.randbytes(size)
    path.write_bytes(data)
    return f"{path.name}: {how} from byte {at}, {size} bytes"


def _compared(truth: Told, told: Told, warnings: list[str]) -> str:
    """Return what came of a flip, by what the store says with it."""
    if told.known != truth.known:
        return "served wrong"
    if told.messages != truth.messages:
        missing = len(truth.messages) - len(told.messages)
        is_told = told.messages.items() <= truth.messages.items() and missing <= told.damaged
        return "refused" if is_told and warnings else "served wrong"
    if told.events == truth.events:
        return "repaired" if warnings else "harmless"
    # Events that are damaged are forgotten with those before them, and that is told.
    true = {event.position: event for event in truth.events}
    is_part = all(event == true.get(event.position) for event in told.events)
    return "repaired" if is_part and warnings else "served wrong"


class Bench:
    """A store whose copies are damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        clock = SimulatedClock()
        self._promised = asyncio.run(_fill(folder / "store", folder / "copy", clock))
        self._now_ms = clock.now_ms()
        self._truth, _ = self._ask(folder / "copy")

    def _ask(self, copy: Path) -> tuple[Told, list[str]]:
        handler, log = _Warnings(), logging.getLogger("dwell")
        log.addHandler(handler)
        propagated, log.propagate = log.propagate, False
        try:
            with self._copied(copy, "asked") as place:
                return asyncio.run(_tell(place, self._now_ms)), handler.said
        finally:
            log.removeHandler(handler)
            log.propagate = propagated

    @contextlib.contextmanager
    def _copied(self, copy: Path, name: str) -> Iterator[Path]:
        """Copy a store, for as long as a block takes."""
        place = self._folder / name
        shutil.copytree(copy, place)
        try:
            yield place
        finally:
            shutil.rmtree(place)

    def flip(self, kind: str, chance: random.Random) -> tuple[str, str]:
        """Flip a bit in a copy; return what came of it, and where it was."""
        with self._copied(self._folder / "copy", "flipped") as place:
            where = _flip(place, kind, self._promised, chance)
            try:
                told, warnings = self._ask(place)
                outcome = _compared(self._truth, told, warnings)
                wrong = self._repair(place) if outcome == "refused" else ""
                return "served wrong" if wrong else outcome, f"{where}: {wrong or outcome}"
            except StoreDamaged as error:
                wrong = self._repair(place)
                return "served wrong" if wrong else "refused", f"{where}: {wrong or error}"
            except (dwell.DwellError, ValueError, LookupError, AssertionError, TypeError) as error:
                # It was refused, but by an error that does not say what is wrong.
                return "served wrong", f"{where}: {type(error).__name__}: {error}"

    def wreck(self, chance: random.Random) -> tuple[str, str]:
        """Do more damage to a copy; return what came of it, and where it was.

        What was never promised cannot be told from what is lost, so that less is no fault here.
        """
        with self._copied(self._folder / "copy", "flipped") as place:
            where = _wreck(place, chance)
            wrong = self._repair(place)
            return "served wrong" if wrong else "repaired", f"{where}: {wrong}"

    def _repair(self, place: Path) -> str:
        """Repair a store that refuses; return what is wrong then, empty for nothing.

        What is lost may have ended a message or moved it, but it has not changed a body.
        """
        try:
            check(place, repair=True)
            told, _ = self._ask(place)
        except Exception as error:
            return f"not repaired: {type(error).__name__}: {error}"
        return ", ".join(name for name, found in told.messages.items() if not _is_own(found))


def _is_own(message: Message) -> bool:
    """Whether a message has the body that was put with its id, or one of those put without."""
    body = message.body.decode()
    id_ = body[: len(body) // 9] if body == body[: len(body) // 9] * 9 else body
    is_known = message.id == id_ or message.id.startswith(QUEUE_ID_MARK)
    return is_known and id_.startswith(f"{message.topic}-")


def run(kind: str, runs: int, seed: int) -> Flips:
    """Flip so many bits in files of a kind, one at a time; or damage any files more than that."""
    flips, chance = Flips(kind), random.Random(seed)
    # A disk in memory: what is asked is what bytes do, not what a sync costs.
    place = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="dwell-survive-", dir=place) as folder:
        bench = Bench(Path(folder))
        for _ in range(runs):
            outcome, where = bench.wreck(chance) if kind == MORE else bench.flip(kind, chance)
            flips.outcomes[outcome] += 1
            if outcome == "served wrong":
                flips.wrong.append(where)
    return flips
