"""The topics: their numbers, their settings in columns, and their messages that can be taken."""

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from dwell.message import I64, U32, TopicSettings
from dwell.store.embedded.limits import LIMITS, Limits
from dwell.store.embedded.runs import Chunk, Later, Runs

_DEFAULTS = TopicSettings()
#: How many different settings are shared, one object for all topics with the same settings.
_MOST_SHARED = 1000


class Topics:
    """The topics in use, by number; empty topics without settings are dropped.

    The number of a dropped topic is reused once no event needs its name; ``reused`` is told then.
    """

    def __init__(self, limits: Limits = LIMITS, reused: Callable[[int], None] = lambda _: None):
        self._limits, self._reused = limits, reused
        self._most_names = limits.idle_names
        self._looked_at = 0
        self._forgotten: deque[tuple[int, int]] = deque()
        self._reusable: list[int] = []
        self.names: list[str] = []
        self._ready: dict[int, Runs] = {}
        self._later = Later()
        self._settings: list[TopicSettings] = []
        self._shared: dict[TopicSettings, TopicSettings] = {}
        self._numbers: dict[str, int] = {}
        self.lease_ms = np.zeros(16, dtype=np.int64)
        self.max_attempts = np.zeros(16, dtype=np.int64)
        self.remember_ms = np.zeros(16, dtype=np.int64)
        self.keep_dead_ms = np.zeros(16, dtype=np.int64)

    def find(self, name: str) -> int | None:
        """Return the number of a topic; None if it was never used."""
        return self._numbers.get(name)

    def found(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of the topics, out of some, that were ever used."""
        return [self._numbers[name] for name in names if name in self._numbers]

    def number(self, name: str) -> int:
        """Return the number of a topic, making the topic if it is new."""
        number = self._numbers.get(name)
        if number is None:
            if self._reusable:
                number = self._reusable.pop()
                self._reused(number)
            else:
                number = self._new_number()
            self._numbers[name] = number
            self.names[number] = name
            self.empty_runs(number)
            self._settings[number] = _DEFAULTS
            self._note(number, _DEFAULTS)
        return number

    def _new_number(self) -> int:
        self.names.append("")
        self._settings.append(_DEFAULTS)
        return len(self.names) - 1

    def numbered(self) -> dict[str, int]:
        """Return the numbers of all topics by their names."""
        return self._numbers

    def listed(self) -> list[tuple[str, TopicSettings]]:
        """Return name and settings by number; the name of a dropped topic is empty."""
        found = [("", _DEFAULTS)] * len(self.names)
        for name, number in self._numbers.items():
            found[number] = name, self._settings[number]
        return found

    def restore(self, listed: list[tuple[str, TopicSettings]]) -> None:
        """Restore the topics that :meth:`listed` returned."""
        for name, settings in listed:
            number = self._new_number()
            self._reusable.append(number)
            if name:
                self.configure(name, settings)

    def settings(self, name: str) -> TopicSettings:
        """Return the settings of a topic."""
        number = self._numbers.get(name)
        return _DEFAULTS if number is None else self._settings[number]

    def settings_of(self, number: int) -> TopicSettings:
        """Return the settings of a topic by its number."""
        return self._settings[number]

    def configure(self, name: str, settings: TopicSettings) -> int:
        """Set the settings of a topic, and return its number."""
        number = self.number(name)
        # Most topics that have settings share the same, and such settings contain lists of numbers.
        if len(self._shared) >= _MOST_SHARED:
            self._shared.clear()
        self._settings[number] = self._shared.setdefault(settings, settings)
        self._note(number, settings)
        return number

    @property
    def are_many(self) -> bool:
        """Whether it is time to look for topics to drop."""
        is_looking = self._looked_at > 0
        return is_looking or len(self._numbers) > self._most_names or bool(self._forgotten)

    def forget_idle(self, pending: I64, written: int, following: int) -> None:
        """Drop topics without settings or messages, given how many each has.

        Events up to position ``written`` are written; the next event has ``following``.
        """
        while self._forgotten and self._forgotten[0][0] <= written:
            self._reusable.append(self._forgotten.popleft()[1])
        if not self._looked_at and len(self._numbers) <= self._most_names:
            return
        first, last = self._looked_at, self._looked_at + self._limits.idle_step
        for number in np.flatnonzero(pending[first:last] == 0).tolist():
            self.forget(first + number, following)
        self._looked_at = last
        if last >= len(pending):
            self._looked_at = 0
            self._most_names = 2 * len(self._numbers) + self._limits.idle_names

    def forget(self, number: int, following: int) -> None:
        """Drop a topic that has no messages, if it has no settings either."""
        name = self.names[number]
        if self._numbers.get(name) == number and self._settings[number] == _DEFAULTS:
            del self._numbers[name]
            self._forgotten.append((following, number))

    def forget_ready(self) -> None:
        """Drop all ready runs, before they are rebuilt."""
        self._later = Later()
        self._ready = {}

    def runs(self, number: int) -> Runs:
        """Return the messages of a topic that can be taken."""
        runs = self._ready.get(number)
        if runs is None:
            runs = self._ready[number] = Runs(self._limits)
        later = self._later.pop(number)
        if later is not None:
            runs.push(later)
        return runs

    def empty_runs(self, number: int) -> None:
        """Drop the ready run of a topic."""
        self._later.pop(number)
        self._ready.pop(number, None)

    def ready_later(self, numbers: U32, chunk: Chunk, starts: I64, ends: I64) -> None:
        """Keep parts of a chunk that can be taken, to be sorted in when they are asked for.

        When messages of very many topics fall due at once, sorting them all would take too long.
        """
        for number in self._later.known(numbers.tolist()):
            self.runs(number)
        self._later.add(numbers.tolist(), chunk, starts, ends)

    def _note(self, number: int, settings: TopicSettings) -> None:
        for name in ("lease_ms", "max_attempts", "remember_ms", "keep_dead_ms"):
            column = getattr(self, name)
            if number >= len(column):
                # A restored number may be far beyond the others, behind many forgotten topics.
                more = np.zeros(max(len(column), number + 1 - len(column)), dtype=np.int64)
                column = np.concatenate([column, more])
                setattr(self, name, column)
            column[number] = getattr(settings, name)

    def dead_retentions(self) -> dict[str, int]:
        """Return the ``keep_dead_ms`` of each topic that sets it."""
        numbers = np.flatnonzero(self.keep_dead_ms).tolist()
        return {self.names[number]: int(self.keep_dead_ms[number]) for number in numbers}
