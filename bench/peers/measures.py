"""What is measured, once for all peers: a measure takes a peer that runs, and returns figures."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench.peers.deliveries import seen
from bench.peers.driver import PeerFailed
from bench.peers.stand import BATCH, CALLERS, PATIENCE_S, Stand
from bench.process import now_ms

Figures = dict[str, float]

#: The figures that are counts of what should not be: their sum over all rounds is told.
COUNTS = ("early", "missing", "doubled", "errors")

_MOST = 0.9
_DAY_MS = 24 * 3_600_000
#: A lead before the first message falls due, beyond what its puts need.
_HEAD_S, _MOST_HEAD_S = 0.7, 20.0


@dataclass(frozen=True)
class Sizes:
    """How much of everything: enough for a figure, or little enough for a test."""

    #: About how long a life of many messages takes.
    life_s: float
    late_s: float
    burst: int
    pending: int
    fill_s: float
    verbs_s: float
    kill_s: float


FULL = Sizes(1.0, 1.5, 50_000, 500_000, 10.0, 1.0, 6.0)
SMALL = Sizes(0.2, 0.3, 500, 3_000, 3.0, 0.2, 4.0)


@dataclass(frozen=True)
class Measure:
    """One of them: its first figure is what ratios are of."""

    name: str
    unit: str
    what: str
    run: Callable[[Stand, Sizes], Figures]
    #: Whether more is better.
    more: bool = True
    #: Whether many messages have to be pending; it is measured once, then.
    filled: bool = False
    #: Whether it is measured in the first round only, as it takes long.
    once: bool = False


# --- lives and delays -----------------------------------------------------------------------------


def _life(takers: int, batch: int, stand: Stand, sizes: Sizes) -> Figures:
    """Put so many that it takes long enough; return how many a second were put, taken and acked."""
    batch = stand.batch("put", batch)
    stand.begin(takers)
    key = f"life of {batch} by {takers}"
    _lives_s(stand, CALLERS, batch)
    count = int(stand.known.get(key, max(200, 2 * batch)))
    while (took_s := _lives_s(stand, count, batch)) < sizes.life_s / 2:
        count = int(count * min(8, max(sizes.life_s / took_s, 1.5)))
    stand.known[key] = count
    return {"messages/s": count / took_s}


def _lives_s(stand: Stand, count: int, batch: int) -> float:
    """Let messages go all the way; return how long it took, from nine tenths of them.

    The last ones may wait until a worker that was not woken looks by itself: that is lateness.
    """
    deliveries = stand.deliveries(count)
    start_ms = now_ms()
    stand.call("put", deliveries.first, count, batch)
    deliveries.wait_all(PATIENCE_S)
    most_ms = float(np.quantile(deliveries.at_ms, _MOST))
    return (most_ms - start_ms) / 1000 / _MOST


def _late_ms(stand: Stand, count: int, rate: int) -> np.ndarray:
    """Let messages fall due at a rate, or all at once; return by how much each was late."""
    stand.begin()
    for _ in range(2):
        speed = stand.known.get("puts/s", 2_000.0)
        head_s = _HEAD_S + 1.5 * count / speed
        if head_s > _MOST_HEAD_S:
            raise PeerFailed(f"{speed:.0f} puts/s are too few to have {count} there in time")
        deliveries = stand.deliveries(count)
        start_ms = int(now_ms() + 1000 * head_s)
        batch = stand.most("put")
        answer = stand.call("put", deliveries.first, count, batch, start_ms=start_ms, rate=rate)
        stand.known["puts/s"] = count / answer["seconds"]
        is_in_time = now_ms() < start_ms
        due_ms = start_ms + (np.arange(count) * 1000 // rate if rate else np.zeros(count))
        deliveries.wait_all(max(due_ms[-1] - now_ms(), 0) / 1000 + PATIENCE_S)
        if is_in_time:
            return deliveries.late_ms(due_ms)
    raise PeerFailed(f"{count} puts took longer than {head_s:.0f} s")


def _lateness(rate: int, stand: Stand, sizes: Sizes) -> Figures:
    late_ms = _late_ms(stand, int(rate * sizes.late_s), rate)
    p50, p99 = np.percentile(late_ms, (50, 99))
    return {
        "p99": float(p99),
        "p50": float(p50),
        "max": float(late_ms.max()),
        "early": int(np.count_nonzero(late_ms < 0)),
    }


def _burst(stand: Stand, sizes: Sizes) -> Figures:
    late_ms = _late_ms(stand, sizes.burst, 0)
    return {"s": float(late_ms.max()) / 1000, "early": int(np.count_nonzero(late_ms < 0))}


# --- with many pending ----------------------------------------------------------------------------


def fill(stand: Stand, sizes: Sizes) -> None:
    """Put what falls due on another day: as many as there should be, or as the time allows."""
    stand.known["begin_s"] = stand.first_delivery_s()
    before = stand.memory_bytes(), stand.engine.disk_bytes()
    deliveries = stand.deliveries(sizes.pending)
    start_ms = int(now_ms()) + _DAY_MS
    limits = {"start_ms": start_ms, "rate": 100, "seconds": sizes.fill_s, "keep": True}
    answer = stand.call("put", deliveries.first, sizes.pending, stand.most("put"), **limits)
    stand.pending, stand.first_pending = answer["count"], deliveries.first
    after = stand.memory_bytes(), stand.engine.disk_bytes()
    memory, disk = ((a - b) / stand.pending for a, b in zip(after, before, strict=True))
    stand.known |= {"memory": memory, "disk": disk}


def _bytes(name: str, stand: Stand, _: Sizes) -> Figures:
    if name == "disk":
        stand.must_keep()
    return {"bytes": stand.known[name], "pending": stand.pending}


def _verb(verb: str, batch: int, stand: Stand, sizes: Sizes) -> Figures:
    """Cancel or move some of what is pending; return how many a second."""
    batch = stand.batch(verb, batch)
    count = min(stand.pending // 8, 50_000)
    first, stand.first_pending = stand.first_pending, stand.first_pending + count
    more = {"start_ms": int(now_ms()) + 2 * _DAY_MS} if verb == "move" else {}
    answer = stand.call(verb, first, count, batch, seconds=sizes.verbs_s, **more)
    if not answer["count"]:
        raise PeerFailed(f"{verb} found none of the messages")
    return {"verbs/s": answer["count"] / answer["seconds"]}


def _restart(stand: Stand, _: Sizes) -> Figures:
    """Kill the engine; return how much later its first message comes than after a start."""
    stand.must_keep()
    stand.end()
    start = time.perf_counter()
    stand.restart()
    up_s = time.perf_counter() - start
    return {"s": max(up_s + stand.first_delivery_s() - stand.known["begin_s"], 0)}


# --- kills ----------------------------------------------------------------------------------------

_KILL_RATE = 200
_LEAD_MS = 300
#: Longer than any peer holds what was taken by a worker that it does not hear of.
_KILL_PATIENCE_S = 75.0


def _kill(stand: Stand, sizes: Sizes) -> Figures:
    """Put at a steady rate, kill the engine in the middle, start it again, and count."""
    stand.must_keep()
    stand.begin()
    count = int(_KILL_RATE * sizes.kill_s)
    deliveries = stand.deliveries(count)
    confirmed = Path(stand.folder, f"put-{deliveries.first}")
    start_ms = int(now_ms()) + _LEAD_MS
    more = {"rate": _KILL_RATE, "lead_ms": _LEAD_MS, "file": str(confirmed)}
    stand.tell("put", deliveries.first, count, 1, start_ms=start_ms, **more)
    time.sleep(sizes.kill_s / 3)
    stand.restart()
    errors = 0
    if stand.is_library:
        stand.start()
        # What was under way when the process ended is left out: its caller has ended too.
        done = int((now_ms() - start_ms + _LEAD_MS) * _KILL_RATE / 1000) + 1
        due_ms = start_ms + done * 1000 // _KILL_RATE
        stand.call("put", deliveries.first + done, count - done, 1, start_ms=due_ms, **more)
    else:
        errors = stand.answer()["errors"]
    put = np.unique(seen(confirmed).numbers) - deliveries.first
    deliveries.expect(put)
    # Where some never come, the gap lasts until nobody waits for them any longer.
    end_ms = [] if deliveries.wait(_KILL_PATIENCE_S) else [now_ms()]
    late_ms = deliveries.late_ms(start_ms + np.arange(count) * 1000 // _KILL_RATE)
    _, times = np.unique(deliveries.numbers, return_counts=True)
    return {
        "gap ms": float(np.diff([start_ms, *np.sort(deliveries.at_ms), *end_ms]).max()),
        "missing": len(deliveries.missing),
        "doubled": int(np.count_nonzero(times > 1)),
        "early": int(np.count_nonzero(late_ms < 0)),
        "errors": errors,
        "confirmed": len(put),
    }


# --- the table ------------------------------------------------------------------------------------


def _lateness_of(rate: int, *, filled: bool) -> Measure:
    name = f"late {rate}" + (" pending" if filled else "")
    what = f"p99 of lateness, {rate:,} due a second" + (", many others pending" if filled else "")
    return Measure(name, "ms", what, partial(_lateness, rate), more=False, filled=filled)


def _verb_of(verb: str, batch: int) -> Measure:
    batches = " batches" if batch > 1 else ""
    what = f"{verb} by id" + (", in batches" if batches else f", by {CALLERS} callers")
    return Measure(verb + batches, "verbs/s", what, partial(_verb, verb, batch), filled=True)


MEASURES = [
    *(
        Measure(
            f"singles {takers}",
            "messages/s",
            f"put singly by {CALLERS} callers, taken and acked by {takers}",
            partial(_life, takers, 1),
        )
        for takers in (2, 1, 16)
    ),
    Measure("batches", "messages/s", "batches, put, taken and acked", partial(_life, 2, BATCH)),
    *(_lateness_of(rate, filled=False) for rate in (100, 2_000, 10_000)),
    Measure("burst", "s", "due at one moment, until the last was delivered", _burst, more=False),
    Measure("kill", "ms", "longest gap when the engine is killed", _kill, more=False, once=True),
    *(
        Measure(name, "bytes", f"{name} a pending message", partial(_bytes, name), False, True)
        for name in ("memory", "disk")
    ),
    *(_lateness_of(rate, filled=True) for rate in (2_000, 10_000)),
    *(_verb_of(verb, batch) for batch in (1, BATCH) for verb in ("cancel", "move")),
    Measure("restart", "s", "start after SIGKILL with many pending", _restart, False, True),
]
NAMES = [measure.name for measure in MEASURES]
