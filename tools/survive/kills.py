"""Kills and clock steps: real processes under load, something fails, and the books are read."""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import dwell
from dwell import State
from tools.survive import places
from tools.survive.actor import SETTINGS, TOPICS
from tools.survive.books import Books, Row
from tools.survive.clock import SetClock
from tools.survive.crew import Crew
from tools.survive.places import Place

HOUR_S = 3_600
#: How long to wait for what has to come: machines may be busy with other things.
_PATIENCE_S = 240.0


async def set_up(url: str) -> None:
    """Tell the topics of a store what holds for them."""
    async with dwell.open(url) as queue:
        for topic in TOPICS:
            await queue.configure(topic, **SETTINGS)


async def everything(url: str) -> set[str]:
    """Return the ids of all messages of a store."""
    found: set[str] = set()
    async with dwell.open(url) as queue:
        for topic in TOPICS:
            # In the order in which time moves messages, so that none slips past between two scans.
            for state in (State.LEASED, State.DELAYED, State.READY, State.DEAD):
                async for batch in queue.pages(topic, state):
                    found.update(batch.ids)
    return found


class Campaign:
    """One scenario: a store under load, in which something fails again and again."""

    def __init__(self, place: Place, failure: str, seed: int) -> None:
        self.place, self.failure = place, failure
        self.books = Books()
        self._chance = random.Random(seed)
        roles = ["put,take"] if place.is_alone else ["put", "take", "take"]
        clock = place.clock.file if place.clock else None
        self._crew = Crew(self.books, place.url, roles, clock)
        self._row = Row(place.store, place.over, failure)

    def run(self, runs: int) -> Row:
        """Let it fail so often, and return what came of it."""
        asyncio.run(set_up(self.place.url))
        self._crew.start()
        try:
            self.books.until(lambda: len(self.books.acked) > 50, "no work is done", _PATIENCE_S)
            for _ in range(runs):
                time.sleep(self._chance.uniform(0.2, 0.8))
                self._fail()
                self._row.runs += 1
            self._drain()
        finally:
            self._crew.stop()
        return self.books.settle(self._row, asyncio.run(everything(self.place.url)))

    def _fail(self) -> None:
        fail: dict[str, Callable[[], None]] = {
            "SIGKILL of the process": lambda: self._kill_actor("put,take"),
            "SIGKILL of a producer": lambda: self._kill_actor("put"),
            "SIGKILL of a taker": self._kill_taker,
            "clock an hour forth and back": self._step_clock,
        }
        if self.failure in fail:
            fail[self.failure]()
        else:
            self._kill_store(self.place.failures[self.failure.removeprefix("SIGKILL of ")])

    def _kill_store(self, kill: Callable[[], None]) -> None:
        at_s = self.books.fail()
        kill()
        self._until_delivered(at_s, at_s)

    def _until_delivered(self, at_s: float, put_after_s: float) -> None:
        """Wait until something was delivered that was put after a moment."""
        question = lambda: self.books.first_delivery(put_after_s)  # noqa: E731
        found = self.books.until(question, f"no delivery after {self.failure}", _PATIENCE_S)
        self._row.seconds.append(found - at_s)

    def _kill_actor(self, role: str) -> None:
        at_s = self.books.fail() if self.place.is_alone else time.monotonic()
        name = self._crew.kill(role)
        # What the dead one put before is no proof that the next one gets on.
        died_s = self.books.deaths[name]
        self._until_delivered(at_s, died_s + 0.001)

    def _kill_taker(self) -> None:
        """Kill a taker that holds messages, and wait until they are delivered to another one."""
        books, name = self.books, self._crew.named("take")
        books.until(lambda: books.held_by(name), "the taker holds nothing", _PATIENCE_S)
        at_s = time.monotonic()
        self._crew.kill("take")
        held = {each: books.count_of(each) for each in books.held_by(name)}
        # It may have acked all of them on the way to its end, or they have expired since.
        held = {e: n for e, n in held.items() if e in books.puts and not books.puts[e].expires_ms}
        if held:
            all_again = lambda: all(books.count_of(each) > n for each, n in held.items())  # noqa: E731
            books.until(all_again, "what a dead taker held does not come again", _PATIENCE_S)
            self._row.seconds.append(
                max(books.deliveries[e][n].at_s for e, n in held.items()) - at_s
            )

    def _step_clock(self) -> None:
        """Set the clock an hour on and back, or back and on again; delivery goes on after each."""
        assert self.place.clock is not None
        first = self._chance.choice((HOUR_S, -HOUR_S))
        for ahead_s, by_s in ((first, first), (0, -first)):
            at_s = time.monotonic()
            self.books.steps.append((at_s, by_s))
            self.place.clock.step(ahead_s)
            self._until_delivered(at_s, at_s)
            time.sleep(self._chance.uniform(0.2, 0.8))

    def _drain(self) -> None:
        self._crew.drain()
        # What was put while the clock was ahead is due in an hour, and so do leases end then.
        if self.place.clock is not None:
            time.sleep(0.5)
            self.place.clock.step(3 * HOUR_S)
        self.books.until(lambda: not self.books.pending(), "messages are left over", _PATIENCE_S)


#: Each place, and what fails in it with how many runs.
_TAKER, _PRODUCER = "SIGKILL of a taker", "SIGKILL of a producer"
_CLOCK = "clock an hour forth and back"
SCENARIOS: list[tuple[Callable[..., AbstractContextManager[Place]], str, int]] = [
    (places.folder_in_process, "SIGKILL of the process", 40),
    (places.folder_over_http, "SIGKILL of the server", 30),
    (places.folder_over_http, _TAKER, 15),
    (places.folder_over_http, _PRODUCER, 20),
    (places.folder_over_http, _CLOCK, 15),
    (places.redis_in_process, "SIGKILL of Redis", 40),
    (places.redis_in_process, _TAKER, 15),
    (places.redis_in_process, _PRODUCER, 20),
    (places.redis_in_process, _CLOCK, 15),
    (places.redis_over_http, "SIGKILL of Redis", 40),
    (places.redis_over_http, "SIGKILL of the server", 30),
    (places.redis_over_http, _TAKER, 15),
    (places.redis_over_http, _PRODUCER, 20),
    (places.redis_over_http, _CLOCK, 15),
    (places.redis_of_three, "SIGKILL of one node of a cluster", 10),
]


def run(
    make: Callable[..., AbstractContextManager[Place]], failure: str, runs: int, seed: int
) -> Row:
    """Run one scenario."""
    with tempfile.TemporaryDirectory(prefix="dwell-survive-") as text:
        folder = Path(text)
        options = {"clock": SetClock(folder)} if failure == _CLOCK else {}
        with make(folder, **options) as place:
            return Campaign(place, failure, seed).run(runs)
