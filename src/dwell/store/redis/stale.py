"""Stale entries of a shard, found by comparing its parts, a piece a call."""

from collections import Counter
from collections.abc import Iterator

from dwell.batch.stats import Stale
from dwell.slices import slices, tuples
from dwell.store.redis.counting import counts_of
from dwell.store.redis.numbers import number
from dwell.store.redis.shards import Shards

#: Entries that hold back others are repaired before the others.
_OF_A_SHARD_FIRST = ("places", "messages")
_OF_A_TOPIC = ("delayed", "ready", "dead", "expiring", "fronts")
_OF_A_SHARD = ("leased",)
_STATES = ("delayed", "ready", "leased", "dead")


class StaleFinder:
    """Finds at most ``limit`` stale entries of one shard, and may repair them."""

    def __init__(self, shards: Shards, shard: int, *, repair: bool, limit: int) -> None:
        self._shards = shards
        self._shard = shard
        self._repair = repair
        self._limit = limit
        self._found: list[Stale] = []
        self._seen: Counter[tuple[str, str]] = Counter()

    async def find(self) -> list[Stale]:
        """Return the stale entries."""
        while await self._walk() and self._repair and self._left:
            # Only a consistent shard can be counted.
            pass
        return self._found[: self._limit]

    async def _walk(self) -> bool:
        """Compare all parts, and the counts if nothing was stale; tell whether anything was."""
        before = len(self._found)
        self._seen.clear()
        counts, _, position = await counts_of(self._shards, self._shard)
        for part, topic in _parts(list(counts)):
            await self._compare(part, topic)
        if len(self._found) > before:
            return True
        # Messages still have the names of topics missing from the list.
        for topic in {topic for topic, _ in self._seen} - counts.keys():
            counts |= (await counts_of(self._shards, self._shard, topic))[0]
        await self._recount(counts, position)
        return False

    @property
    def _left(self) -> int:
        return self._limit - len(self._found)

    async def _compare(self, part: str, topic: str) -> None:
        where = b"0"
        while self._left:
            told = (int(self._repair), self._left, part, topic, where)
            answer = await self._shards.run(self._shard, "stale", *told)
            found, where, seen = answer.values
            for of, id_, n, problem in tuples(found, 4):
                self._tell(of.decode(), id_.decode(), number(n, self._shard), problem.decode())
            for of, state, count in tuples(seen, 3):
                self._seen[of.decode(), state.decode()] += count
            if where == b"0":
                break

    async def _recount(self, counts: dict[str, list[int]], position: int) -> None:
        for topics in slices(list(counts), self._shards.limits.compared):
            told: list[object] = [int(self._repair), self._left, position]
            for topic in topics:
                told += [topic, " ".join(map(str, counts[topic]))]
                told += [self._seen[topic, state] for state in _STATES]
            answer = await self._shards.run(self._shard, "recount", *told)
            for wrong in answer.values[0]:
                self._tell(wrong.decode(), "", 0, "no message")

    def _tell(self, topic: str, id_: str, of: int, problem: str) -> None:
        self._found.append(Stale(topic, id_, of, problem, self._repair))


def _parts(topics: list[str]) -> Iterator[tuple[str, str]]:
    yield from ((part, "") for part in _OF_A_SHARD_FIRST)
    for topic in topics:
        yield from ((part, topic) for part in _OF_A_TOPIC)
    yield from ((part, "") for part in _OF_A_SHARD)
    yield from (("ids", topic) for topic in topics)
