"""Deadlines: the times of the rows' next changes, the nearest first."""

import heapq

from dwell.store.memory.rows import SLACK, Row


class Deadlines:
    """A heap of deadlines; an entry whose row has moved since is outdated."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, Row]] = []

    def push(self, deadline_ms: int, row: Row, most: int) -> bool:
        """Note when a row changes, one of ``most`` rows; tell whether it is the next to change."""
        heapq.heappush(self.entries, (deadline_ms, row.serial, row))
        is_next = self.entries[0][2] is row
        if len(self.entries) > 2 * most + SLACK:
            self.entries = [entry for entry in self.entries if entry[2].serial == entry[1]]
            heapq.heapify(self.entries)
        return is_next

    def pop(self, now_ms: int) -> Row | None:
        """Return a row whose deadline has come; None when there is no other."""
        while self.entries and self.entries[0][0] <= now_ms:
            _, serial, row = heapq.heappop(self.entries)
            if row.serial == serial:
                return row
        return None

    def next_ms(self) -> int | None:
        """Return the next deadline."""
        while self.entries and self.entries[0][2].serial != self.entries[0][1]:
            heapq.heappop(self.entries)
        return self.entries[0][0] if self.entries else None
