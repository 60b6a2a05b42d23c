"""A peer that runs: its engine, the driver that puts, and the one that takes."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers.catalogue import Peer
from bench.peers.deliveries import Deliveries
from bench.peers.driver import Driver, PeerCannot, PeerFailed
from bench.peers.engines import Engine
from bench.process import descendants, now_ms, own_memory

#: Who puts: many callers of one message each, or a few of batches.
CALLERS, _BATCH_CALLERS = 64, 4
#: The most messages in one call, where a peer takes so many: takers ask for no fewer.
BATCH = 1000
#: How long may pass until what is due was delivered.
PATIENCE_S = 10.0
PUT_S = 60.0
#: The delay of the first message, and how long it may take a worker to deliver it.
_WARM_MS, WARM_S = 100, 30.0


class Stand:
    """One peer; ``known`` is what earlier rounds found out about its speed."""

    def __init__(self, peer: Peer, engine: Engine, folder: Path, known: dict[str, float]) -> None:
        self.peer, self.engine, self.known = peer, engine, known
        self.pending = self.first_pending = self._next = 0
        self.versions: dict[str, str] = {}
        #: The verbs that there are, with the most messages in one call.
        self.can: dict[str, int] = {}
        self.folder, self._command = folder, peer.command
        self._drivers: list[Driver] = []
        self._takers = 0

    @property
    def is_library(self) -> bool:
        """Whether there is no server, so that one process puts and takes."""
        return self.engine.pid() is None

    def begin(self, takers: int = 2) -> None:
        """Have so many takers that work; drivers that run with others are started again.

        A worker may need seconds before it looks at what is delayed, which is no lateness.
        """
        if self._drivers and takers == self._takers:
            return
        self.start(takers)
        deliveries = self.deliveries(1)
        self.call("put", deliveries.first, 1, 1, start_ms=int(now_ms()) + _WARM_MS)
        deliveries.wait_all(WARM_S)

    def start(self, takers: int = 2) -> None:
        """Start the drivers again, with so many takers."""
        self.end()
        self._takers = takers
        putter = self._driver()
        taker = putter if self.is_library else self._driver()
        taker.ask("take", takers=takers, limit=BATCH, file=str(self.folder / "taken"))

    def _driver(self) -> Driver:
        driver = Driver(self._command, self.folder / "log.txt")
        self._drivers.append(driver)
        answer = driver.ask("open", address=self.engine.address)
        self.versions, self.can = answer["versions"], answer["can"]
        return driver

    def end(self, *, at_once: bool = False) -> None:
        """End the drivers."""
        for driver in self._drivers:
            driver.end(at_once=at_once)
        self._drivers = []

    def most(self, do: str) -> int:
        """Return how many messages one call of a command takes here; raises PeerCannot."""
        if do not in self.can:
            raise PeerCannot(f"no {do} by id")
        return min(self.can[do], BATCH)

    def deliveries(self, count: int) -> Deliveries:
        """Return where the deliveries of so many new messages can be waited for."""
        first, self._next = self._next, self._next + count
        return Deliveries(self.folder / "taken", first, count)

    def tell(self, do: str, first: int, count: int, batch: int, **more: Any) -> None:
        """Begin a command of callers."""
        callers = CALLERS if batch == 1 else _BATCH_CALLERS
        call = {"first": first, "count": count, "batch": batch, "callers": callers, **more}
        self._drivers[0].tell(do, **call)

    def answer(self) -> dict[str, Any]:
        """Return the answer of the callers."""
        return self._drivers[0].answer(PUT_S)

    def batch(self, do: str, wanted: int) -> int:
        """Return the size of a batch, or 1 for single calls; raises PeerCannot without batches."""
        most = self.most(do)
        if wanted > 1 and most == 1:
            raise PeerCannot("one a call")
        return min(wanted, most)

    def must_keep(self) -> None:
        """Raise PeerCannot when all that is pending is gone with the engine."""
        if not self.engine.keeps:
            raise PeerCannot("keeps nothing on disk")

    def call(self, do: str, first: int, count: int, batch: int, **more: Any) -> dict[str, Any]:
        """Run a command of callers, which may not meet any error; return the answer."""
        self.tell(do, first, count, batch, **more)
        answer = self.answer()
        if answer["errors"]:
            raise PeerFailed(f"{answer['errors']} calls of {do} raised {answer['error']}")
        return answer

    def memory_bytes(self) -> int:
        """Return what the engine and the process that takes have in memory."""
        taker = self._drivers[-1].pid
        pids = [*self.engine.pids(), taker, *descendants(taker)]
        return sum(map(own_memory, pids))

    def restart(self) -> None:
        """Kill the engine, and start it again; the drivers of one that is a server go on."""
        if self.is_library:
            self.end(at_once=True)
        self.engine.kill()
        self.engine.start()

    def first_delivery_s(self) -> float:
        """Start the drivers again; return how long it took until one message was delivered."""
        start = now_ms()
        self.start()
        deliveries = self.deliveries(1)
        self.call("put", deliveries.first, 1, 1)
        deliveries.wait_all(PATIENCE_S)
        return (float(deliveries.at_ms[0]) - start) / 1000


@contextlib.contextmanager
def stand(peer: Peer, known: dict[str, float]) -> Iterator[Stand]:
    """Run a peer with an empty engine; raises PeerFailed when it is not installed."""
    if not peer.needs.exists():
        raise PeerFailed("not installed")
    with tempfile.TemporaryDirectory(prefix="dwell-peers-") as folder, peer.engine() as engine:
        stand = Stand(peer, engine, Path(folder), known)
        try:
            yield stand
        finally:
            stand.end()
