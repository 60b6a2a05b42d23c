"""Scratch: memory for large arrays that stays within a budget.

Arrays that grow with the number of messages lie in areas (:mod:`area`) once they are large. When
the pages of files that this process has in memory exceed the budget, pieces of the areas are
released, one after another in a circle. A released page costs a page fault at the next access, and
nothing else: the system has it in its cache, or on the disk.

Without a budget, or where the system has no files without names, arrays stay in ordinary memory.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from dwell.errors import DiskFull
from dwell.store.embedded.area import Area
from dwell.store.embedded.disk import Disk, is_no_room
from dwell.store.embedded.limits import LIMITS, Limits

_log = logging.getLogger(__name__)

#: Bytes of a piece, which is released in one call; how many are released between two looks at the
#: memory; and how many bytes are released before other tasks run.
_PIECE_BYTES, _LOOK_AFTER, _AT_ONCE_BYTES = 4 << 20, 16, 512 << 20
#: Bytes of an area without use that are freed before other tasks run, and all at its end.
_FREED_BYTES = 8 << 20
#: How long nothing is released after an error.
_PAUSE_S = 10.0
#: How much longer a start waits between two looks, and how much more memory it may take.
_START_FACTOR, _STARTING_BYTES = 10, 256 << 20

Release = Callable[[], None]


class Scratch:
    """The areas of one open store. ``budget_bytes`` is None for ordinary memory only."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        budget_bytes: int | None,
        limits: Limits = LIMITS,
        others: Callable[[], Iterable[Release]] = tuple,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self.budget_bytes = budget_bytes
        #: Returns how much room on the disk must stay free; None while the store starts. Until then
        #: nothing can be refused, and where there is no room ordinary memory has to do.
        self.kept_bytes: Callable[[], int] | None = None
        #: Returns what releases the other mapped files of the store, which count as well.
        self._others = others
        self._limits = limits
        self._areas: list[Area] = []
        self._hot: list[Area] = []
        self._retired: deque[tuple[Area, Iterator[tuple[int, int]]]] = deque()
        #: The pieces to release next, of ordinary areas and of hot ones.
        self._circles: list[Iterator[Release]] = [iter(()), iter(())]
        self._next_s = 0.0
        self._users: list[Callable[[], None]] = []
        # The program itself and its libraries do not count.
        self._program_bytes = 0
        if budget_bytes is not None:
            try:
                self._program_bytes = disk.mapped_bytes()
            except OSError as error:
                self._give_up(error)

    @property
    def is_used(self) -> bool:
        """Whether large arrays lie in areas."""
        return self.budget_bytes is not None

    @property
    def least_rows(self) -> int:
        """From how many rows on an array lies in an area."""
        return self._limits.scratch_rows

    @property
    def step_rows(self) -> int:
        """By how many rows an array grows in an area."""
        return self._limits.scratch_step

    def area(self, size_bytes: int, *, is_hot: bool = False) -> Area | None:
        """Return a new area that may become this large; None where ordinary memory has to do.

        A hot one is used all over by most verbs, and stays in memory as long as others can be
        released. Raises DiskFull.
        """
        if self.budget_bytes is None:
            return None
        try:
            area = Area(self._disk, self._folder, size_bytes, by_page=not is_hot)
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and is_no_room(error):
                raise self._full() from error
            self._give_up(error)
            return None
        self._areas.append(area)
        if is_hot:
            self._hot.append(area)
        return area

    def _give_up(self, error: Exception) -> None:
        words = "%s: no scratch file (%s), so memory grows with the number of messages"
        _log.warning(words, self._folder, error)
        self.budget_bytes = None

    def extend(self, area: Area, start: int, end: int) -> None:
        """Give a part of an area space up to a byte; raises DiskFull before it changes anything.

        So it does for every error of the disk: nothing is lost, and less room is needed to go on.
        """
        more = area.missing_bytes(start, end)
        if not more:
            return
        kept_bytes = 0 if self.kept_bytes is None else self.kept_bytes()
        try:
            if self._disk.free_bytes(self._folder) - more < kept_bytes:
                raise self._full()
            area.extend(start, end)
        except OSError as error:
            raise self._full("" if is_no_room(error) else f" ({error})") from error

    def grown(self, area: Area | None, most_bytes: int, size_bytes: int) -> Area | None:
        """Return an area, or a new one, with space up to a size; None if there is no room for it.

        A new one may become ``most_bytes`` large.
        """
        found = area
        try:
            if (found := area or self.area(most_bytes)) is not None:
                self.extend(found, 0, size_bytes)
        except DiskFull:
            if found is not None and found is not area:
                self.retire(found)
            return None
        return found

    def refuse(self, full: DiskFull) -> None:
        """Raise an error of :meth:`extend`, unless the store only starts: then tell of it."""
        if self.kept_bytes is not None:
            raise full
        _log.warning("%s, so they take more memory than the budget", full)

    def _full(self, why: str = "") -> DiskFull:
        return DiskFull(f"{self._folder}: no room for the scratch file of more messages{why}")

    def retire(self, area: Area) -> None:
        """Free an area that is out of use, a part at a time."""
        self._areas.remove(area)
        self._hot = [hot for hot in self._hot if hot is not area]
        if area.size_bytes:
            self._retired.append((area, area.pieces(_FREED_BYTES)))
        else:
            area.close()

    @property
    def size_bytes(self) -> int:
        """How much space the areas have on the disk."""
        return sum(area.size_bytes for area in self._areas)

    @property
    def resident_bytes(self) -> int:
        """How much memory the pages of the areas take, and of other files mapped since."""
        return max(self._disk.mapped_bytes() - self._program_bytes, 0)

    def condition(self) -> dict[str, int | str]:
        """Return the budget, the memory that counts against it, and the space on the disk."""
        if self.budget_bytes is None:
            return {}
        return {
            "memory_budget_bytes": self.budget_bytes,
            "memory_mapped_bytes": self.resident_bytes,
            "scratch_bytes": self.size_bytes,
        }

    def tend(self) -> None:
        """Release pages that are over the budget, at most every few milliseconds."""
        if not self._areas or self.budget_bytes is None:
            return
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        # A start waits for nothing else, and reads on for longer.
        is_starting = self.kept_bytes is None
        self._next_s = now_s + self._limits.tended_s * (_START_FACTOR if is_starting else 1)
        try:
            self._keep_to(self.budget_bytes, is_starting=is_starting)
        except OSError as error:
            # No message is lost by it: memory and space on the disk stay in use for longer.
            self._next_s = now_s + _PAUSE_S
            _log.warning("%s: could not release memory: %s", self._folder, error)

    def _keep_to(self, budget_bytes: int, *, is_starting: bool) -> None:
        self._free_retired()
        budget_bytes += _STARTING_BYTES if is_starting else 0
        if self.resident_bytes > budget_bytes:
            # One message that is read elsewhere makes up to 2 MiB resident.
            for release in self._others():
                release()
            self._release(budget_bytes - budget_bytes // 8)

    def _release(self, goal_bytes: int) -> None:
        """Release pieces until the goal is met: pieces of hot areas after all others."""
        if self.kept_bytes is not None:
            goal_bytes = max(goal_bytes, self.resident_bytes - _AT_ONCE_BYTES)
        if self.resident_bytes <= goal_bytes:
            return
        for is_hot in (False, True):
            # The circle may be near its end, so each piece has its turn after two of them.
            for _ in range(2):
                if self._is_met(goal_bytes, is_hot=is_hot):
                    return
                self._circles[is_hot] = self._pieces(is_hot=is_hot)

    def _is_met(self, goal_bytes: int, *, is_hot: bool) -> bool:
        """Release pieces up to the end of a circle, and tell whether the goal is met before."""
        circle = self._circles[is_hot]
        while some := list(islice(circle, _LOOK_AFTER)):
            for release in some:
                release()
            if self.resident_bytes <= goal_bytes:
                return True
        return False

    def _pieces(self, *, is_hot: bool) -> Iterator[Release]:
        for area in list(self._areas):
            if (area in self._hot) == is_hot:
                for start, size_bytes in area.pieces(_PIECE_BYTES):
                    yield partial(area.release, start, size_bytes)

    def _free_retired(self) -> None:
        if not self._retired:
            return
        area, pieces = self._retired[0]
        # Where the file system frees no part of a file, all is freed at once.
        with contextlib.suppress(OSError):
            if (piece := next(pieces, None)) is not None:
                area.discard(*piece)
                return
        self._retired.popleft()
        area.close()

    def at_close(self, let_go: Callable[[], None]) -> None:
        """Call a function at the end, which drops all arrays that may lie in an area."""
        self._users.append(let_go)

    def close(self) -> None:
        """Close the files, and free the memory and the space on the disk."""
        for let_go in self._users:
            let_go()
        self._users = []
        for area in [*self._areas, *(area for area, _ in self._retired)]:
            area.close()
        self._areas, self._hot, self._circles = [], [], [iter(()), iter(())]
        self._retired.clear()
