"""Scans: messages of one state by due, merged from many short calls."""

import heapq

from dwell.batch.batch import Batch
from dwell.batch.page import Cursor, Page
from dwell.message import MAX_BATCH_BYTES, State
from dwell.slices import slices, tuples
from dwell.store.redis.numbers import number, shares, split
from dwell.store.redis.records import Row, batch_of, versions_of
from dwell.store.redis.shards import Shards

_FIRST, _LAST = (-(2**62), 0), (2**62, 0)

#: Due and number of a message: the order of a scan.
Name = tuple[int, int]


class Scanner:
    """Returns pages of the shards' messages in one state."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def page(self, topic: str, state: State, cursor: Cursor | None, limit: int) -> Page:
        """Return a page; a message that leaves its state during the scan may be missing."""
        names: list[Name] = []
        for shard in range(self._shards.count):
            names += await self._names(shard, topic, state, cursor, limit + 1)
        names = heapq.nsmallest(limit + 1, names)
        rows, read = await self._whole(topic, state, [of for _, of in names[:limit]])
        more = Cursor(*names[read - 1]) if len(names) > read else None
        return Page(batch_of(rows), more, versions_of(rows))

    async def first(self, topic: str, limit: int) -> Batch:
        """Return the ready messages that a take would give first."""
        numbers: list[int] = []
        for shard in self._shards.round():
            if len(numbers) < limit:
                answer = await self._shards.run(shard, "peek", topic, limit - len(numbers))
                names = sorted(tuples(answer.values[0], 3))
                numbers += [number(n, shard) for *_, n in names]
        rows, _ = await self._whole(topic, State.READY, numbers[:limit])
        return batch_of(rows)

    async def _names(
        self, shard: int, topic: str, state: State, cursor: Cursor | None, limit: int
    ) -> list[Name]:
        """Return the first messages of a shard after a cursor."""
        due_ms, after = _FIRST if cursor is None else (cursor.due_ms, cursor.arrival)
        n, of = split(after)
        # At the same due, messages of shards before the cursor's have a lower number.
        after_n = n if of >= shard else n - 1
        found: set[Name] = set()
        end, where = _LAST, b""
        while True:
            told = (topic, state.name.lower(), due_ms, after_n, *end, limit, where)
            answer = await self._shards.run(shard, "scan", *told)
            pairs, where = answer.values
            found.update(tuples(pairs, 2))
            if len(found) >= limit:
                found = set(heapq.nsmallest(limit, found))
                end = max(found)
            if not where:
                return [(due_ms, number(n, shard)) for due_ms, n in found]

    async def _whole(self, topic: str, state: State, numbers: list[int]) -> tuple[list[Row], int]:
        """Return the first messages, as many as fit an answer, and how many were read."""
        rows: list[Row] = []
        read, size_bytes, step = 0, 0, self._shards.limits.scan_first
        while read < len(numbers) and size_bytes < MAX_BATCH_BYTES:
            found = await self._rows(topic, state, numbers[read : read + step])
            size_bytes += sum(len(row.body) + len(row.extra) for row in found)
            rows += found
            read = min(read + step, len(numbers))
            # As many as fit, if the next messages are as large as those before.
            fitting = (MAX_BATCH_BYTES - size_bytes) * read // (size_bytes + 1)
            step = min(max(fitting, 1), self._shards.limits.scan_read * self._shards.count)
        return rows, read

    async def _rows(self, topic: str, state: State, numbers: list[int]) -> list[Row]:
        """Return messages in the given order, if they are still in place."""
        pairs, most = [split(of) for of in numbers], self._shards.limits.scan_read
        rows: dict[int, Row] = {}
        for shard, places in shares([shard for _, shard in pairs]).items():
            for some in slices(places, most):
                told = [pairs[place][0] for place in some]
                while told:
                    answer = await self._shards.run(shard, "texts", *told)
                    rows |= {row.number: row for row in self._shards.rows(shard, answer)}
                    told = told[len(answer.values[0]) // 2 :]
        found = [rows[of] for of in numbers if of in rows]
        return [row for row in found if row.topic == topic and row.state == state]
