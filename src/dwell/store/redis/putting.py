"""Putting: assigns messages to shards, and chooses the form to send them in."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dwell.batch.puts import DUE_COUNTED, EXPIRY_COUNTED, PutAnswer, Puts
from dwell.clock.clock import elapsed_s
from dwell.errors import (
    DwellError,
    IdExists,
    InvalidInput,
    ServerUnreachable,
    StoreFull,
    TopicFull,
)
from dwell.message import I64, QUEUE_ID_MARK, U8, U64, Result, keys_of
from dwell.store.followups import its_own_id
from dwell.store.partly import PartlyPut
from dwell.store.redis.blocks import Block, blocks_of
from dwell.store.redis.numbers import SLOTS, number, shard_of, shares
from dwell.store.redis.records import packed_versions
from dwell.store.redis.results import packed
from dwell.store.redis.shards import Shards, all_of

#: Results of a put: places in the batch, with results and numbers; and the error that refused the
#: rest.
_Done: TypeAlias = list[tuple[I64, U8, U64]]
_Told: TypeAlias = tuple[_Done, DwellError | None]

#: How often the delays of a put are counted again, before they are used as they are.
_MOST_STEPS = 3


class _Counted(NamedTuple):
    """The base time for the delays of a put: the engine's clock, and the elapsed time."""

    now_ms: int
    at: float

    def again(self, puts: Puts, now_ms: int, step_ms: int) -> "tuple[Puts, _Counted]":
        """Return a put with its delays counted from the engine's time, if its clock was set."""
        set_ms = now_ms - self.now_ms - round((elapsed_s() - self.at) * 1000)
        if abs(set_ms) > step_ms:
            dues = np.where(_has(puts, DUE_COUNTED), puts.due_ms + set_ms, puts.due_ms)
            ends = _has(puts, EXPIRY_COUNTED) & (puts.expires_ms > 0)
            expiries = np.where(ends, puts.expires_ms + set_ms, puts.expires_ms)
            puts = dataclasses.replace(puts, due_ms=dues, expires_ms=expiries)
        return puts, _Counted(now_ms, elapsed_s())


class Putter:
    """Puts messages into the shards of a store."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._turns = itertools.count()

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages; each of several shards puts its own part."""
        counted = self._counted(puts)
        puts = self._settled(puts)
        parts, own = self._parts(puts), _own(puts.ids)
        told = await all_of(
            [
                self._put(shard, puts, places, on_conflict, own, counted)
                for shard, places in parts.items()
            ]
        )
        results = np.zeros(len(puts), np.uint8)
        numbers = np.zeros(len(puts), np.uint64)
        refused, errors = np.ones(len(puts), dtype=bool), []
        for done, error in told:
            errors += [error] if error is not None else []
            for places, some_results, some_numbers in done:
                results[places], numbers[places] = some_results, some_numbers
                refused[places] = False
        if puts.ids is None:
            ids = [f"{QUEUE_ID_MARK}{one:x}" for one in numbers.tolist()]
        else:
            ids = [id_.decode() for id_ in puts.ids]
        numbers[results != Result.CREATED] = 0
        answer = PutAnswer(ids, results, numbers)
        if errors:
            # A put with an unknown outcome matters more than a refused put.
            errors.sort(key=lambda error: not isinstance(error, ServerUnreachable))
            raise errors[0] if refused.all() else PartlyPut(errors[0], answer, refused)
        return answer

    async def ack_then(self, receipts: U64, result: bytes | None, then: Puts) -> U8:
        """Ack one message, and put another in the same step; both must belong to one shard.

        Raises InvalidInput if they do not, or have one id in one topic, and TopicFull; then nothing
        is done.
        """
        found = self._shards.groups(receipts)
        if not found:
            return np.full(1, Result.STALE, np.uint8)
        ((shard, (group,)),) = found.items()
        (home,) = self._homes(then)
        if home not in (None, shard):
            raise InvalidInput(
                f"then: its id or key belongs to shard {home} and the message to shard {shard}, "
                "expected both in one, or neither id nor key"
            )
        counted = self._counted(then)
        then = self._settled(then)
        (block,) = blocks_of(
            then, np.zeros(1, np.int64), self._shards.clock.now_ms(), may_sort=False
        )
        flags = 0 if counted is None or then.counted is None else int(then.counted[0])
        since_ms = 0 if counted is None else counted.now_ms
        told = (packed([result]), block.text, since_ms, flags, group.text)
        values = (await self._shards.run(shard, "follow", *told)).values
        if values[0] == b"full":
            raise _refusal(b"full", [*values[1:], 1], then.topic)
        if values[0] == b"own":
            raise its_own_id(then)
        return np.frombuffer(values[0], np.uint8).copy()

    def _settled(self, puts: Puts) -> Puts:
        """Return the put with dues of now set to the engine's earliest possible time.

        A due that the caller set is not changed.
        """
        clock = self._shards.server_clock
        if clock is None or puts.counted is None:
            return puts
        now_ms, least_ms = clock.now_ms(), clock.least_ms()
        is_now = (puts.due_ms <= now_ms) & (puts.due_ms > least_ms) & _has(puts, DUE_COUNTED)
        if not is_now.any():
            return puts
        return dataclasses.replace(puts, due_ms=np.where(is_now, least_ms, puts.due_ms))

    def _parts(self, puts: Puts) -> dict[int, I64]:
        """Return the messages for each shard: by key, else by id, else all to the next shard."""
        if not len(puts):
            return {}
        count, turn = self._shards.count, next(self._turns) % self._shards.count
        if count == 1 or (puts.ids is None and puts.extras is None):
            return {turn: np.arange(len(puts))}
        homes = shares([turn if home is None else home for home in self._homes(puts)])
        return {shard: np.array(places) for shard, places in homes.items()}

    def _homes(self, puts: Puts) -> list[int | None]:
        """Return the shard that each message belongs to, None for one that any may have."""
        ids = [b""] * len(puts) if puts.ids is None else puts.ids
        keys = [None] * len(puts) if puts.extras is None else keys_of(puts.extras)
        return [shard_for(id_, key, self._shards.count) for id_, key in zip(ids, keys, strict=True)]

    def _counted(self, puts: Puts) -> "_Counted | None":
        """Return the base time for the delays of a put; None without delays."""
        if self._shards.server_clock is None or puts.counted is None or not puts.counted.any():
            return None
        return _Counted(self._shards.clock.now_ms(), elapsed_s())

    async def _put(
        self,
        shard: int,
        puts: Puts,
        places: I64,
        on_conflict: str,
        own: bytes,
        counted: "_Counted | None",
    ) -> _Told:
        """Put the messages of one shard; return the results, and the error for the rest."""
        done: _Done = []
        steps = 0
        while len(places):
            answer = await self._put_as(shard, puts, places, on_conflict, own, counted)
            if isinstance(answer, int):
                # The engine's clock was set since the delays were counted, or the engine is another
                # one.
                assert counted is not None
                puts, counted = counted.again(puts, answer, self._shards.limits.step_ms)
                steps += 1
                counted = counted if steps < _MOST_STEPS else None
                continue
            some, error = answer
            done += some
            if error is not None:
                return done, error
            # One call does not do all of a long put.
            places = np.setdiff1d(places, np.concatenate([put for put, *_ in some]))
        return done, None

    async def _put_as(
        self,
        shard: int,
        puts: Puts,
        places: I64,
        on_conflict: str,
        own: bytes,
        counted: "_Counted | None",
    ) -> _Told | int:
        """Do the same; return the engine's time when the delays must be counted again."""
        # Of a repeated id the first, or the last, counts: the order must be kept.
        for may_sort in (own != b"2", False):
            blocks = blocks_of(puts, places, self._shards.clock.now_ms(), may_sort=may_sort)
            large = () if self._shards.is_cluster else tuple(_large(blocks))
            beside = {place for place, _ in large}
            texts = [
                block.names if place in beside else block.text
                for place, block in enumerate(blocks, 1)
            ]
            since_ms = 0 if counted is None else counted.now_ms
            order = np.concatenate([block.places for block in blocks]).tolist()
            versions = packed_versions(puts.versions, order)
            how = (puts.topic, on_conflict, own, int(may_sort), since_ms, self._shards.packed)
            try:
                answer = await self._shards.run(shard, "put", *how, versions, *texts, large=large)
            except (StoreFull, ServerUnreachable) as error:
                return [], error
            word, *told = answer.values
            if word != b"unsorted":
                break
        if word == b"stepped":
            return answer.now_ms
        if word == b"split":
            (size,) = told
            cuts = range(size, len(places), size)
            some = np.split(places, cuts)
            return await self._put_parts(shard, puts, some, on_conflict, own, counted)
        if word != b"ok":
            return [], _refusal(word, told, puts.topic)
        first, codes = told
        results = np.frombuffer(codes, np.uint8)
        found = np.concatenate([block.places for block in blocks])[: len(results)]
        return [(found, results, _numbers(first, blocks, shard)[: len(results)])], None

    async def _put_parts(
        self,
        shard: int,
        puts: Puts,
        parts: list[I64],
        on_conflict: str,
        own: bytes,
        counted: "_Counted | None",
    ) -> _Told:
        """Put messages part by part, in order, up to the first refused part."""
        done: _Done = []
        for places in parts:
            some, error = await self._put(shard, puts, places, on_conflict, own, counted)
            done += some
            if error is not None:
                return done, error
        return done, None


def shard_for(id_: bytes, key: str | None, count: int) -> int | None:
    """Return the shard of a message by its key, else by its id; None if it has neither."""
    if key is not None:
        return shard_of(b"key " + key.encode(), count)
    return shard_of(id_, count) if id_ else None


def _has(puts: Puts, flag: int) -> np.ndarray:
    assert puts.counted is not None
    found: np.ndarray = (puts.counted & np.uint8(flag)) != 0
    return found


def _large(blocks: Sequence[Block]) -> list[tuple[int, bytes]]:
    return [(place, block.text) for place, block in enumerate(blocks, 1) if block.is_large]


def _own(ids: Sequence[bytes] | None) -> bytes:
    """Return the kind of the ids: the queue's, the caller's, or the caller's with a repeated id."""
    if ids is None:
        return b"0"
    return b"1" if len(set(ids)) == len(ids) else b"2"


def _refusal(word: bytes, told: list[Any], topic: str) -> DwellError:
    if word == b"exists":
        return IdExists(f"topic {topic!r}: id {told[0].decode()!r:.80} exists")
    pending, limit, new = told
    return TopicFull(
        f"topic {topic!r}: {pending} messages are pending and max_pending is {limit}, "
        f"so {new} more are refused"
    )


def _numbers(first: int, blocks: Sequence[Block], shard: int) -> U64:
    parts = [
        np.uint64(number((first + at) * SLOTS, shard))
        + (np.arange(len(block.places), dtype=np.uint64) << np.uint64(8))
        for at, block in enumerate(blocks)
    ]
    return np.concatenate(parts)
