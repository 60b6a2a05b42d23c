"""The process that serves the queue: it starts, fails, is killed, and is started again."""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dwell.errors import DwellError, NotAStore, StoreDamaged, StoreError, StoreLocked, StoreTooNew
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.limits import Limits
from dwell.testing.faults import Stopped
from tools.simulation.clock import SteppedClock
from tools.simulation.disk import SimulatedDisk
from tools.simulation.history import Broken
from tools.simulation.loop import Life, SimulatedLoop
from tools.simulation.network import Request
from tools.simulation.plan import Settings

S = TypeVar("S", bound=EmbeddedStore)

FOLDER = Path("/simulated/store")
#: How long a request may take beyond what it waits for: a sync or two of a slow disk, and a start.
_LONGEST_S = 10.0


def store_on(disk: SimulatedDisk, clock: SteppedClock, settings: Settings, kind: type[S]) -> S:
    """Return a store with the settings of a run, not open yet."""
    return kind(
        FOLDER,
        clock=clock,
        disk=disk,
        sync=settings.sync,
        segment_bytes=settings.segment_bytes,
        events_bytes=settings.events_bytes,
        limits=Limits(**settings.limits),
    )


class Process:
    """One process after another, on one disk."""

    def __init__(
        self,
        loop: SimulatedLoop,
        disk: SimulatedDisk,
        settings: Settings,
        make_store: Callable[[SimulatedDisk], EmbeddedStore],
        broken: Callable[[Broken], None],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._make_store = make_store
        self._broken = broken
        self.disk = disk
        self._adopt(disk)
        self.life = Life()
        self._requests: dict[asyncio.Task[None], tuple[float, str]] = {}
        self.queue: Queue | None = None
        self.store: EmbeddedStore | None = None
        self.is_up = False
        self.up_since_s = 0.0
        self.starts = self.ends = 0
        #: What the next processes meet: fault, after how many calls, and when.
        self.next_faults: list[tuple[str, int, str]] = []

    # --- starting and ending ----------------------------------------------------------------------

    def start(self) -> None:
        """Start a process, unless one is there."""
        if self.disk.dead:
            disk = self.disk.restarted()
            assert isinstance(disk, SimulatedDisk)
            self.disk = disk
            self._adopt(disk)
            self.life = Life()
            if self.next_faults:
                self.disk.arm(*self.next_faults.pop(0))
        self._in_life(self._open())

    def restart(self) -> None:
        """Let the process close its queue in good order, and open it again."""
        if self.is_up:
            self.is_up = False
            self._in_life(self._close_and_open())

    def _adopt(self, disk: SimulatedDisk) -> None:
        disk.belong(self._loop, self._ended)
        disk.system.drops = self._settings.drops_pages

    def _in_life(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.life.context.copy().run(self._loop.create_task, work)
        return task

    def _ended(self) -> None:
        """Take note that the process is gone."""
        self.is_up, self.queue, self.store = False, None, None
        self.ends += 1
        self._requests.clear()
        self._loop.end(self.life)
        self._loop.call_later(0.3, self.start, context=OUTSIDE.copy())

    async def _open(self) -> None:
        self.starts += 1
        life = self.life
        while True:
            store = self._make_store(self.disk)
            queue = Queue(store)
            try:
                await queue.open()
            except (StoreDamaged, NotAStore, StoreLocked, StoreTooNew) as error:
                return self._broken(Broken("refused", f"the store does not open: {error}"))
            except (StoreError, OSError) as error:
                if isinstance(error, Stopped):
                    return None
                await asyncio.sleep(0.2)
            except Exception as error:
                if not isinstance(error, Broken) and not life.is_over:
                    self._broken(Broken("error", f"open raised {error!r}"))
                return None
            else:
                self.queue, self.store, self.is_up = queue, store, True
                self.up_since_s = self._loop.time()
                self._begin(queue)
                return None

    def _begin(self, queue: Queue) -> None:
        """Begin what else a process does while its queue is open."""

    async def _close_and_open(self) -> None:
        queue, self.queue, self.store = self.queue, None, None
        assert queue is not None
        life = self.life
        try:
            await queue.close()
        except (StoreError, OSError) as error:
            if isinstance(error, Stopped):
                return
        except Exception as error:
            if not life.is_over:
                self._broken(Broken("error", f"close raised {error!r}"))
            return
        await self._open()

    # --- serving ----------------------------------------------------------------------------------

    def serve(
        self, request: Request, tell: Callable[[Any], None], wait_s: float, words: str
    ) -> Callable[[], None] | None:
        """Begin to do what is asked (see :class:`Server`)."""
        if not self.is_up or self.queue is None:
            return None
        task = self._in_life(self._handle(request, self.queue, tell, words))
        until_s = self._loop.time() + wait_s + _LONGEST_S * self._loop.slowness
        self._requests[task] = (until_s, words)
        task.add_done_callback(self._forget)
        return task.cancel  # type: ignore[return-value]

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._requests.pop(task, None)

    async def _handle(
        self, request: Request, queue: Queue, tell: Callable[[Any], None], words: str
    ) -> None:
        life = self.life
        try:
            answer = await request(queue)
        except Broken as broken:
            return self._broken(broken)
        except DwellError as error:
            answer = error
        except Exception as error:
            if life.is_over or isinstance(error, Stopped):
                return None
            return self._broken(Broken("error", f"{words} raised {error!r}"))
        if not life.is_over:
            OUTSIDE.copy().run(tell, answer)
        return None

    # --- looking ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Find requests that get no answer; start a store again that has failed."""
        now_s = self._loop.time()
        for until_s, words in self._requests.values():
            if until_s < now_s:
                self._broken(Broken("hang", f"no answer to: {words}"))
        if self.is_up and self.store is not None:
            try:
                self.store.check()
            except StoreError:
                self.restart()

    def tear_down(self) -> None:
        """End the process, its machine and the loop, as a run is over."""
        self.disk.system.ended = lambda: None
        self._loop.end(self.life)
        self.disk.kill()
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._loop.close()

    async def end(self) -> None:
        """Close the queue."""
        assert self.queue is not None
        self.is_up = False
        with contextlib.suppress(StoreError, OSError):
            await self.queue.close()


#: Where no process is.
OUTSIDE = contextvars.Context()
