"""Targets that accept nothing at the moment: their records wait, and other records pass them."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from dwell.relay.record import Record

#: The pause of a target after its first refusal, and the longest; each pause is twice the last.
_FIRST_MS = 500
_MOST_MS = 16_000
#: A target without messages is dropped after this time.
_FORGET_MS = 60_000


class _Pause(NamedTuple):
    length_ms: int
    until_ms: int


class Apart:
    """The targets of one outlet that are set apart, and the time of their next attempts."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    @property
    def targets(self) -> Collection[str]:
        """The targets that are set apart."""
        return self._pauses.keys()

    def add(self, targets: Iterable[str], now_ms: int) -> None:
        """Set targets apart, each for twice as long as before."""
        for target in targets:
            before = self._pauses.get(target)
            length_ms = _FIRST_MS if before is None else min(2 * before.length_ms, _MOST_MS)
            self._pauses[target] = _Pause(length_ms, now_ms + length_ms)

    def discard(self, targets: Iterable[str]) -> list[str]:
        """Return targets to normal, as they accepted a record; return those now back."""
        gone = self._pauses.keys() & set(targets) if self._pauses else set()
        for target in gone:
            del self._pauses[target]
        return sorted(gone)

    def forgotten(self, now_ms: int) -> list[str]:
        """Drop targets without records for a while, and return them."""
        last_ms = now_ms - _FORGET_MS
        return self.discard([one for one, p in self._pauses.items() if p.until_ms < last_ms])

    def waits(self, records: Sequence[Record], now_ms: int) -> dict[int, list[int]]:
        """Return the places of records whose targets are paused, by the rest of the pause in ms."""
        found: dict[int, list[int]] = {}
        if not self._pauses:
            return found
        for at, record in enumerate(records):
            pause = self._pauses.get(record.topic)
            if pause is not None and pause.until_ms > now_ms:
                found.setdefault(pause.until_ms - now_ms, []).append(at)
        return found
