"""Rounds: what many connections ask at about the same time becomes one call of the store.

A call of the store costs as much as a hundred jobs in it, and ends with a sync of the disk. So a
round that is small is not begun while another one is under way, nor while its company is still
coming: as many commands as were answered last are expected back. Waiting for them ends as soon as
nothing came for a moment. Of the rounds that are ready the largest goes first, and the others are
passed over a few times at most. By that connections that do the same end up in step, and their
rounds are as large as they can be; a connection that is alone waits for nobody.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, TypeAlias

from dwell.message import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES
from dwell.server.beanstalk.commands import Run
from dwell.server.beanstalk.refusals import word_of
from dwell.server.beanstalk.session import Session

#: A round with so many commands needs no company.
ENOUGH = 128
#: How long it is waited for more while nothing comes.
PATIENCE_S = 0.00005
#: How often a round lets larger ones go first.
MOST_PASSED = 3


#: What one session asks in a round. A plain tuple, since one is made for every run.
Part: TypeAlias = tuple[Session, Run]

#: Does the parts of a round, which have a key in common, and answers the sessions.
Work: TypeAlias = Callable[[Any, Sequence[Part]], Awaitable[None]]


class _Round:
    """The parts of one round, how much they are together, and how often others went before it."""

    __slots__ = ("count", "key", "parts", "passed", "size_bytes", "work")

    def __init__(self, work: Work, key: Hashable) -> None:
        self.work = work
        self.key = key
        self.parts: list[Part] = []
        self.count = 0
        self.size_bytes = 0
        self.passed = 0

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        """Tell whether it would still be one batch with so much more."""
        return (
            self.count + count <= MAX_BATCH_MESSAGES
            and self.size_bytes + size_bytes <= MAX_BATCH_BYTES
        )

    @property
    def weight(self) -> tuple[bool, int]:
        """How much it is its turn."""
        return self.passed >= MOST_PASSED, self.count


class Rounds:
    """Gathers runs by what they ask, and has each group done. A session is in one at most."""

    def __init__(self) -> None:
        self._gathering: dict[tuple[Work, Hashable], _Round] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._is_watching = False
        self._sessions = 0
        self._expected = 1
        self._patience = _Patience()

    def add(
        self, work: Work, key: Hashable, session: Session, run: Run, size_bytes: int = 0
    ) -> None:
        """Have a run done together with others of the same work and key."""
        group = self._gathering.get((work, key))
        if group is not None and not group.has_room_for(run.count, size_bytes):
            self._start(group)
            group = None
        if group is None:
            group = self._gathering[work, key] = _Round(work, key)
        group.parts.append((session, run))
        group.count += run.count
        group.size_bytes += size_bytes
        self._sessions += 1
        if not self._is_watching:
            self._watch()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that :meth:`settled` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settled(self) -> None:
        """Return when nothing is under way."""
        while self._tasks or self._gathering:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                await asyncio.sleep(0)

    # --- inside ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look at what has gathered, once the event loop has handed over what came meanwhile."""
        self._is_watching = True
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_watching = False
        gathering = self._gathering
        while gathering:
            group = max(gathering.values(), key=_weight)
            if group.count < ENOUGH and not self._is_time():
                break
            self._start(group)
            for other in gathering.values():
                other.passed += 1

    def _is_time(self) -> bool:
        """Tell whether to begin a round that is small."""
        if self._under_way:
            # Its end looks again.
            return False
        if self._sessions >= self._expected or self._patience.is_over(self._sessions):
            return True
        self._watch()
        return False

    def _start(self, group: _Round) -> None:
        del self._gathering[group.work, group.key]
        self._sessions -= len(group.parts)
        self._under_way += 1
        self._patience = _Patience()
        self.spawn(self._do(group))

    async def _do(self, group: _Round) -> None:
        """Do a round; when it fails, the same word is the answer to every command in it."""
        try:
            await group.work(group.key, group.parts)
        except Exception as error:
            word = word_of(error)
            for session, run in group.parts:
                session.answer(word * run.count)
        finally:
            self._under_way -= 1
            self._expected = len(group.parts) + self._sessions
            if self._gathering and not self._is_watching:
                self._watch()


class _Patience:
    """Counts the time in which nothing came."""

    __slots__ = ("_idle_s", "_looked_at", "_seen")

    def __init__(self) -> None:
        self._seen = -1
        self._idle_s = 0.0
        self._looked_at = 0.0

    def is_over(self, sessions: int) -> bool:
        """Tell whether nothing came for long enough; ``sessions`` is how many there are now."""
        now = time.perf_counter()
        if sessions == self._seen:
            self._idle_s += now - self._looked_at
        self._seen, self._looked_at = sessions, now
        return self._idle_s >= PATIENCE_S


def _weight(group: _Round) -> tuple[bool, int]:
    return group.weight
