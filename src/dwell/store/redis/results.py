"""Results on Redis: acks with results, and what came of messages."""

from collections.abc import Iterator, Sequence

import numpy as np

from dwell.batch.outcome import UNKNOWN, Outcome
from dwell.errors import DwellError
from dwell.message import MAX_BODY_BYTES, U8, U64, Result
from dwell.slices import slices, tuples
from dwell.store.partly import Told
from dwell.store.redis.numbers import Group
from dwell.store.redis.shards import Shards, all_of

#: What precedes the name of a topic, among the woken, whose messages have ended.
ENDED_MARK = "\0"
#: The states that the function tells, by their numbers, which rise with what a state says.
_STATES = ("unknown", "ready", "delayed", "leased", "dead", "done")
_DONE = _STATES.index("done")


async def ack_with(shards: Shards, receipts: U64, results: Sequence[bytes | None]) -> U8:
    """Ack messages with results, a bounded size of them at a time on each shard.

    If a shard fails, or refuses a part, the error has what was done.
    """
    told, most = Told(len(receipts), Result.STALE), shards.limits.acks

    async def ask(places: list[int]) -> None:
        for start, stop in _parts_of([results[at] for at in places], most):
            some = places[start:stop]

            def own(part: Sequence[Group], some: list[int] = some) -> tuple[bytes]:
                its = [at for group in part for at in some[group.start : group.stop]]
                return (packed([results[at] for at in its]),)

            try:
                told.codes[some] = await shards.by_receipt("done", receipts[some], most, own)
            except DwellError as error:
                told.fail(places[start:], error)
                return

    groups = shards.groups(receipts).values()
    await all_of([ask([at for of in some for at in range(of.start, of.stop)]) for some in groups])
    return told.answer()


def packed(results: Sequence[bytes | None]) -> bytes:
    """Return results in the form that the function takes."""
    sizes = [len(results), *(0 if one is None else len(one) + 1 for one in results)]
    return b"".join([np.array(sizes, ">u4").tobytes(), *filter(None, results)])


def _parts_of(results: Sequence[bytes | None], most: int) -> Iterator[tuple[int, int]]:
    """Yield where parts of results start and stop."""
    start, size = 0, 0
    for at, result in enumerate(results):
        own = len(result or b"")
        if at > start and (size + own > MAX_BODY_BYTES or at - start >= most):
            yield start, at
            start, size = at, 0
        size += own
    if start < len(results):
        yield start, len(results)


async def outcomes(
    shards: Shards, topic: str, ids: Sequence[bytes], watch_ms: int
) -> list[Outcome]:
    """Return what came of messages.

    A message with a key is in the shard of its key, so all shards are asked: one with a message
    says more than one with a memory, and a newer end more than an older.
    """
    found = await all_of([_told(shards, n, topic, ids, watch_ms) for n in range(shards.count)])
    return [_outcome_of(max(each, key=_rank)) for each in zip(*found, strict=True)]


async def _told(
    shards: Shards, shard: int, topic: str, ids: Sequence[bytes], watch_ms: int
) -> list[tuple[int, bytes | None, int]]:
    """Return state, text and end of each message, as one shard tells them."""
    told: list[tuple[int, bytes | None, int]] = []
    for some in slices(ids, shards.limits.ids):
        left = some
        while left:
            answer = await shards.run(shard, "results", topic, watch_ms, *left)
            part = [(int(s), text, int(ends)) for s, text, ends in tuples(answer.values[0], 3)]
            told += part
            left = left[len(part) :]
    return told


def _rank(told: tuple[int, bytes | None, int]) -> tuple[bool, bool, int, bool]:
    state, text, ends = told
    # A reshard copies the memory of an id to other shards, and leaves the result where it is.
    return 0 < state < _DONE, state == _DONE, ends, text is not None


def _outcome_of(told: tuple[int, bytes | None, int]) -> Outcome:
    state, text, _ = told
    if not state:
        return UNKNOWN
    if state == _DONE:
        return Outcome("done", text)
    return Outcome(_STATES[state], error=None if text is None else text.decode())
