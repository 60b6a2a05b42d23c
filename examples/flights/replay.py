"""The process that is killed: it schedules the reminders, replays the news, and sends what is due.

``python -m examples.flights.replay FOLDER START_MS SPEED``. The folder holds the flights (see
plan.py). Started again after a crash with the same words, it goes on from the store.
"""

import asyncio
import logging
import sys
import zlib
from pathlib import Path

import numpy as np

import dwell
from dwell.worker import Bury, Worker
from examples.flights.plan import Flights, read

TOPIC = "reminder"
LEASE = "2s"
_PART = 5000
_STEP_S = 0.01


class Times:
    """From the minutes of 2013 to the milliseconds in which they are replayed."""

    def __init__(self, flights: Flights, start_ms: int, speed: float) -> None:
        self._first = int(flights.news.min())
        self._start_ms = start_ms
        self._speed = speed

    def ms(self, minutes: np.ndarray) -> np.ndarray:
        """Return when each minute comes in this replay (epoch milliseconds)."""
        passed_ms = (minutes - self._first) * 60_000 / self._speed
        return self._start_ms + passed_ms.astype(np.int64)


def fails_once(flight_id: str) -> bool:
    """Tell whether the first try to send this reminder fails: one in a thousand."""
    return zlib.crc32(flight_id.encode()) % 1000 == 1


def has_no_address(flight_id: str) -> bool:
    """Tell whether this reminder can never be sent: one in twenty thousand."""
    return zlib.crc32(flight_id.encode()) % 20_000 == 2


def send(message: dwell.Message) -> None:
    """Send one reminder, as a handler does: it may fail now, or for good."""
    if has_no_address(message.id):
        raise Bury("no address to send to")
    if fails_once(message.id) and message.attempt == 1:
        raise ConnectionError("mail server said 421")


async def main(folder: Path, start_ms: int, speed: float) -> None:
    """Do the job, from wherever it was left."""
    flights = read(folder / "flights")
    times = Times(flights, start_ms, speed)
    async with dwell.open(folder / "store") as queue:
        if not (folder / "scheduled").exists():
            await _schedule(queue, flights, times)
            (folder / "scheduled").touch()
        news = _News(queue, flights, times, folder / "news")
        # What was known before anything else falls due has to be told first.
        await news.tell()
        (folder / "ready").touch()
        worker = Worker(queue, owner="reminders")
        worker.on(TOPIC, concurrency=64, lease=LEASE, retry="200ms")(_send)
        serving = asyncio.create_task(worker.serve())
        while not (news.is_over and await _is_done(queue)):
            await asyncio.sleep(_STEP_S)
            await news.tell()
        worker.stop()
        await serving


async def _send(message: dwell.Message) -> None:
    send(message)


async def _schedule(queue: dwell.Queue, flights: Flights, times: Times) -> None:
    """Put every reminder; those that are there already, from before a crash, are kept."""
    due_ms = times.ms(flights.due)
    for at in range(0, len(flights), _PART):
        part = slice(at, at + _PART)
        await queue.put_many(TOPIC, flights.bodies[part], ids=flights.ids[part], due=due_ms[part])


class _News:
    """Tells the queue what really happened, in the order in which it became known."""

    def __init__(self, queue: dwell.Queue, flights: Flights, times: Times, place: Path) -> None:
        self._queue = queue
        happened = np.flatnonzero(flights.cancelled | (flights.delay > 0))
        self._which = happened[np.argsort(flights.news[happened], kind="stable")]
        self._at_ms = times.ms(flights.news[self._which])
        self._due_ms = times.ms(flights.due + flights.delay)
        self._flights = flights
        self._place = place
        self._told = int(place.read_text()) if place.exists() else 0

    @property
    def is_over(self) -> bool:
        """Whether everything was told."""
        return self._told == len(self._which)

    async def tell(self) -> None:
        """Tell all that is known by now."""
        now_ms = dwell.RealClock().now_ms()
        until = int(np.searchsorted(self._at_ms, now_ms, side="right"))
        for start in range(self._told, until, _PART):
            await self._tell(self._which[start : min(start + _PART, until)])
        if until > self._told:
            self._told = until
            # Written after the fact: a crash in between tells some of it twice, which is harmless.
            new = self._place.with_suffix(".new")
            new.write_text(str(until))
            new.rename(self._place)

    async def _tell(self, which: np.ndarray) -> None:
        ids, cancelled = self._flights.ids, self._flights.cancelled
        gone, late = which[cancelled[which]], which[~cancelled[which]]
        if len(gone):
            await self._queue.cancel(TOPIC, [ids[index] for index in gone])
        if len(late):
            names = [ids[index] for index in late]
            await self._queue.reschedule(TOPIC, names, due=self._due_ms[late])


async def _is_done(queue: dwell.Queue) -> bool:
    counts = (await queue.stats()).topics[TOPIC]
    return counts.delayed == counts.ready == counts.leased == 0


if __name__ == "__main__":
    # Every handler that fails is logged with its traceback; here hundreds fail by design.
    logging.getLogger("dwell.worker").setLevel(logging.CRITICAL)
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
