"""Shards: the parts of a store, and the running of a verb on each of them that it concerns."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from dwell.clock import Clock, RealClock
from dwell.clock.clock import elapsed_s
from dwell.clock.servertime import ServerClock
from dwell.errors import (
    DwellError,
    ForeignReceipt,
    InvalidInput,
    ServerUnreachable,
    StoreError,
    StoreLocked,
)
from dwell.message import U8, U64, Result
from dwell.slices import slices, tuples
from dwell.store.partly import Told
from dwell.store.redis.agreement import FORMAT, Agreement, Config, drawn
from dwell.store.redis.engine import Call, Engine
from dwell.store.redis.limits import USUAL
from dwell.store.redis.numbers import Group, groups_of, shard_of, shares
from dwell.store.redis.options import Options
from dwell.store.redis.records import Row, loose, packed_versions
from dwell.store.redis.wakes import Wakes

_log = logging.getLogger(__name__)

#: The part of the store's time limit after which a shard without an answer counts as away.
_LATE = 0.1

T = TypeVar("T")


class Answer(NamedTuple):
    """The answer of a verb: its own values, and the common end of all answers.

    ``now_ms`` is the engine's time, ``next_ms`` the shard's next deadline, 0 for none, and ``new``
    has pairs of a topic and how many of its messages can be taken.
    """

    values: list[Any]
    now_ms: int
    next_ms: int
    new: list[Any]


class Shards:
    """The shards of one store; ``wake`` and ``plan`` come from the store.

    ``agreed`` is called when the number or the secret of the store may have changed.
    """

    def __init__(
        self,
        options: Options,
        clock: Clock | None,
        wake: Callable[[str, int], None],
        plan: Callable[[], None],
        agreed: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = Engine(options)
        self.is_cluster = options.address.kind == "cluster"
        #: With a real clock the engine's time is used.
        self.server_clock = ServerClock() if clock is None or isinstance(clock, RealClock) else None
        self.clock: Clock = self.server_clock or clock or RealClock()
        self._clocks: dict[int, ServerClock] = {}
        self.limits = options.limits
        #: At least this many messages are put as a block; fewer are cheaper as loose messages.
        self.packed = options.packed
        own = options.limits != USUAL
        self._limits = msgspec.msgpack.encode(options.limits.of_functions()) if own else b""
        self.number = 0
        self.secret = b""
        self.count = 0
        #: The next deadline of each shard, 0 for none.
        self.deadlines_ms: dict[int, int] = {}
        #: Shards whose last call failed or is late: only calls that need them should wait for them.
        self.away: set[int] = set()
        #: The planned time of the queue's next wake-up, 0 for never.
        self.planned_ms = 0
        self._options = options
        self._wake = wake
        self._plan = plan
        self._agreed = agreed
        self._wakes: Wakes | None = None
        self._agreement = Agreement(self.engine, options.shards, is_cluster=self.is_cluster)
        self._agreeing = asyncio.Lock()
        self._config: Config | None = None
        self._is_alone = False

    async def is_made(self) -> bool:
        """Connect, and tell whether an agreement of the instances exists."""
        await self.engine.open()
        try:
            return await self._agreement.is_made()
        finally:
            await self.engine.close()

    async def open(self, *, is_alone: bool = False) -> None:
        """Connect, and read or make the agreement of all instances; raises StoreError.

        With ``is_alone`` a store with moving messages can be opened, no wakes are received, and a
        store that gets another number is not followed.
        """
        self._is_alone = is_alone
        await self.engine.open()
        try:
            await self._agree()
            await self.run(self._options.home % self.count, "tick")
        except BaseException:
            await self.engine.close()
            raise
        self._listen()

    async def close(self) -> None:
        """Disconnect from the engine."""
        await self._stop_listening()
        await self.engine.close()

    def _listen(self) -> None:
        if not self._is_alone:
            channels = {self._channel(shard).encode(): shard for shard in range(self.count)}
            self._wakes = Wakes(self.engine, channels, self._hear)
            self._wakes.start()

    async def _stop_listening(self) -> None:
        wakes, self._wakes = self._wakes, None
        if wakes is not None:
            await wakes.stop()

    # --- agreeing -----------------------------------------------------------------------------

    async def _agree(self) -> None:
        """Read the agreement of all instances, or make it if it is missing."""
        config = await self._agreement.config(self._config)
        if config.target and not self._is_alone:
            raise StoreLocked(
                f"the store is on its way to {config.target} shards; `dwell reshard` ends that"
            )
        secret = await self._agreement.secret(self.secret)
        self._agree_on(config)
        self.secret = secret
        self._agreed()

    def _agree_on(self, config: Config) -> None:
        if config == self._config:
            return
        self._config, self.number, self.count = config, config.number, config.shards
        self.deadlines_ms, self.planned_ms = {}, 0
        if self.server_clock is not None:
            # The nodes of a cluster may differ in time, so each shard has a clock.
            self._clocks = {shard: ServerClock() for shard in range(self.count)}
            self._clocks[self._options.home % self.count] = self.server_clock

    async def _agree_anew(self, shard: int, number: int) -> None:
        """Read the agreement again, because a shard does not belong to the store ``number``."""
        async with self._agreeing:
            if self.number == number:
                if self._is_alone and (await self._agreement.config()).number != number:
                    raise self._overtaken()
                await self._agree()
                if self.number != number:
                    _log.warning(
                        "%s: the store %08x is gone, and %08x is in its place, with %d shards",
                        *(self.engine.address, number, self.number, self.count),
                    )
                    if self._wakes is not None:
                        await self._stop_listening()
                        self._listen()
        # An unreachable shard must not block the others.
        if shard < self.count:
            assert self._config is not None
            await self._claim(shard, self._config)

    async def _claim(self, shard: int, config: Config, *, is_forced: bool = False) -> None:
        """Assign a shard to the store, if it is new or has lost everything.

        If the store is gone by now, this does nothing, and the next call of the shard reports it.
        """
        data = msgspec.msgpack.encode(config)
        told = (self.count, self._options.max_events, self._limits, config.number)
        place = "" if self.is_cluster else self.engine.keys(0).store
        own = (data, int(is_forced), place)
        number, _ = await self.engine.run(shard, "claim", self._now_ms(), *told, *own)
        if not number or int(number) == config.number:
            return
        meta, copy = self.engine.keys(shard).meta, await self._agreement.copy(shard)
        if copy and copy.number == config.number:
            # Another instance has assigned it since.
            return
        if copy is None or copy.moves >= config.moves:
            if self._is_alone and copy and copy.moves > config.moves:
                raise self._overtaken()
            raise StoreError(
                f"{meta}: belongs to the store {int(number):08x}, expected {config.number:08x}"
            )
        _log.warning("%s: is from before a reshard; what was moved from it comes again", meta)
        await self._claim(shard, config, is_forced=True)

    def _now_ms(self) -> int:
        """Return the time for a call: 0 makes the engine use its own."""
        return self.clock.now_ms() if self.server_clock is None else 0

    @property
    def is_moving(self) -> bool:
        """Whether an interrupted run was moving messages to more shards."""
        return self._config is not None and self._config.target != 0

    async def announce_move(self, target: int) -> None:
        """Record that messages are moving; raises InvalidInput if they already move elsewhere.

        The store gets a new number: earlier receipts are refused, and every shard refuses the calls
        of an instance that still has the store open, and of an earlier run of a reshard.
        """
        known = self._config
        assert known is not None
        if known.target not in (0, target):
            raise InvalidInput(
                f"shards: got {target}, and the store is on its way to {known.target}; "
                "end that first"
            )
        if not known.target:
            for shard in range(self.count, target):
                if await self._agreement.copy(shard):
                    raise StoreError(
                        f"{self.engine.keys(shard).meta}: belongs to another store; remove the "
                        "keys of that shard first"
                    )
        config = Config(FORMAT, drawn(), self.count, target, known.moves + 1)
        await self._agree_to(config)
        self._agree_on(config)
        for shard in range(target):
            await self._claim(shard, config, is_forced=True)

    async def end_move(self, target: int) -> None:
        """Record the new number of shards; raises StoreLocked if another run has begun since."""
        assert self._config is not None
        config = msgspec.structs.replace(self._config, shards=target, target=0)
        for shard in range(target):
            await self._claim(shard, config)
        # The first shard is written last: an open before that reports that messages are moving.
        await self._agree_to(config)

    async def _agree_to(self, config: Config) -> None:
        """Write a new agreement, unless the present one is not the known one any more."""
        assert self._config is not None
        known, new = map(msgspec.msgpack.encode, (self._config, config))
        if (await self.run(0, "agree", known, new)).values[0] != b"ok":
            raise self._overtaken()

    def _overtaken(self) -> StoreLocked:
        return StoreLocked(
            f"{self.engine.address}: another `dwell reshard` has begun since, and goes on; "
            "this one has ended"
        )

    async def listeners(self) -> int:
        """Return how many instances listen."""
        return await self.engine.listeners(self._channel(0))

    def _channel(self, shard: int) -> str:
        """Return the channel of a shard; stores of one engine may use the same key names."""
        return f"{self.engine.keys(shard).wake}:{self.number}"

    def round(self) -> Iterator[int]:
        """Yield all shards, starting with the home shard of this instance."""
        home = self._options.home
        return ((home + step) % self.count for step in range(self.count))

    # --- running ------------------------------------------------------------------------------

    def clock_of(self, shard: int) -> Clock:
        """Return the clock for the dues and leases of a shard's messages."""
        return self._clocks.get(shard, self.clock)

    async def run(
        self,
        shard: int,
        name: str,
        *own: object,
        large: Sequence[tuple[int, bytes]] = (),
        call: Call | None = None,
        patience_s: float | None = None,
    ) -> Answer:
        """Run a verb on a shard, and process the wakes and the deadline in its answer.

        It is repeated while it reports that due work is left before it.

        ``call`` and ``patience_s`` are passed to the engine, which gives up after its time-out at
        the latest.
        """
        while True:
            asked_at = elapsed_s()
            number, count = self.number, self.count
            told = (count, self._options.max_events, self._limits, number, *own)
            asked = self.engine.run(
                shard, name, self._now_ms(), *told, large=large, call=call, patience_s=patience_s
            )
            *values, end = await self._watched(shard, asked)
            if values[0] == b"another":
                await self._agree_anew(shard, number)
                if self.count != count:
                    raise ServerUnreachable(
                        f"{self.engine.address}: the store has {self.count} shards by now, and had "
                        f"{count} when this was asked"
                    )
                continue
            answer = Answer(values, *end)
            if self.server_clock is not None:
                self._clocks.setdefault(shard, ServerClock()).hear(answer.now_ms, asked_at)
            self._hear(shard, answer.next_ms, answer.new)
            if values[0] != b"again":
                return answer

    async def _watched(self, shard: int, asked: Awaitable[T]) -> T:
        """Return the answer of a shard; note meanwhile whether it is away."""
        late_s = _LATE * self.engine.timeout_s
        late = asyncio.get_running_loop().call_later(late_s, self.away.add, shard)
        try:
            answer = await asked
        except ServerUnreachable:
            self.away.add(shard)
            raise
        finally:
            late.cancel()
        self.away.discard(shard)
        return answer

    def _hear(self, shard: int, next_ms: int, new: list[Any]) -> None:
        """Wake takers for new messages, and reschedule the queue if a deadline is nearer."""
        self.deadlines_ms[shard] = next_ms
        for topic, count in tuples(new, 2):
            self._wake(topic.decode() if isinstance(topic, bytes) else topic, int(count))
        if next_ms and (not self.planned_ms or next_ms < self.planned_ms):
            self.planned_ms = next_ms
            self._plan()

    def rows(self, shard: int, answer: Answer) -> list[Row]:
        """Return the messages of an answer that begins with pairs of n and text."""
        pairs = tuples(answer.values[0], 2)
        return [loose(n, shard, text, answer.now_ms) for n, text in pairs if text is not None]

    # --- by receipt and by id -----------------------------------------------------------------

    def groups(self, receipts: U64) -> dict[int, list[Group]]:
        """Return receipts in groups by shard; raises ForeignReceipt for other stores' receipts."""
        foreign = receipts[:, 0] >> np.uint64(32) != self.number
        if foreign.any():
            at = int(foreign.argmax())
            raise ForeignReceipt(f"receipt {at} of {len(receipts)} was made by another store")
        groups = [group for group in groups_of(receipts) if group.shard < self.count]
        parts = shares([group.shard for group in groups])
        return {shard: [groups[at] for at in places] for shard, places in parts.items()}

    async def by_receipt(
        self,
        verb: str,
        receipts: U64,
        most: int,
        own: Callable[[Sequence[Group]], tuple[object, ...]],
    ) -> U8:
        """Run a verb on each shard's receipts, about ``most`` at a time, in sequence.

        A call may answer for the first groups only; the others are sent again. ``own`` returns the
        further arguments for some groups. If a shard fails, the error has what the others did.
        """
        told = Told(len(receipts), Result.STALE)

        async def ask(shard: int, groups: list[Group]) -> None:
            done = 0
            try:
                for part in parts_of(groups, most):
                    stop = done + len(part)
                    while done < stop:
                        left = groups[done:stop]
                        texts = [group.text for group in left]
                        answer = await self.run(shard, verb, *own(left), *texts)
                        codes, before = np.frombuffer(answer.values[0], np.uint8), 0
                        while before < len(codes):
                            group, count = groups[done], groups[done].stop - groups[done].start
                            told.codes[group.start : group.stop] = codes[before : before + count]
                            before, done = before + count, done + 1
            except DwellError as error:
                for group in groups[done:]:
                    told.fail(range(group.start, group.stop), error)

        await all_of([ask(shard, groups) for shard, groups in self.groups(receipts).items()])
        return told.answer()

    async def by_id(
        self,
        verb: str,
        topic: str,
        ids: Sequence[bytes],
        versions: U64 | None,
        own: Callable[[list[int]], tuple[object, ...]],
    ) -> U8:
        """Run a verb on the shard of each id; ids unknown there are sent to the other shards.

        A message with a key is in the shard of its key. A call may answer for the first ids only;
        the others are sent again. ``own`` returns the further arguments for the ids at some places.
        A message with another version than the given one is unknown. If a shard fails, the error
        has what the others did.
        """
        told, away = Told(len(ids), Result.UNKNOWN), dict[int, DwellError]()

        async def ask(shard: int, places: list[int]) -> None:
            done = 0
            try:
                # The error of an earlier call stands: no message waits for the shard again.
                if shard in away:
                    raise away[shard]
                while done < len(places):
                    left = places[done : done + self.limits.ids]
                    sent = (topic, packed_versions(versions, left), *own(left))
                    answer = await self.run(shard, verb, *sent, *[ids[at] for at in left])
                    codes = np.frombuffer(answer.values[0], np.uint8)
                    told.codes[left[: len(codes)]] = codes
                    done += len(codes)
            except DwellError as error:
                away[shard] = error
                told.fail(places[done:], error)

        homes = [shard_of(id_, self.count) for id_ in ids]
        await all_of([ask(shard, places) for shard, places in shares(homes).items()])
        for step in range(1, self.count):
            unknown: list[int] = np.flatnonzero(told.codes == Result.UNKNOWN).tolist()
            # What a shard that failed may have done must not be done to another message.
            left = [at for at in unknown if at not in told.errors]
            others = [(homes[at] + step) % self.count for at in left]
            parts = shares(others).items()
            await all_of([ask(shard, [left[at] for at in places]) for shard, places in parts])
        return told.answer()

    async def everywhere(
        self, ids: Sequence[bytes], ask: Callable[[int, Sequence[bytes]], Awaitable[None]]
    ) -> None:
        """Ask every shard for ids, a bounded number at a time."""
        for shard in range(self.count):
            for part in slices(ids, self.limits.ids):
                await ask(shard, part)


async def all_of(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Return the answers of calls; if one fails, the others still complete."""
    if len(calls) == 1:
        return [await calls[0]]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in errors:
        # A bug of ours must not be hidden by an error that allows a retry.
        if not isinstance(error, DwellError):
            raise error
    if errors:
        raise errors[0]
    return [answer for answer in answers if not isinstance(answer, BaseException)]


def parts_of(groups: Sequence[Group], most: int) -> Iterator[list[Group]]:
    """Yield groups of receipts in parts that end once they have ``most`` receipts."""
    part: list[Group] = []
    count = 0
    for group in groups:
        part.append(group)
        count += group.stop - group.start
        if count >= most:
            yield part
            part, count = [], 0
    if part:
        yield part
