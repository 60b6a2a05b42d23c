"""A relay: one way in, a way out for each lane, and the queue between them."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from dwell.digits import number_of
from dwell.errors import DwellError
from dwell.given import values
from dwell.message import MAX_TOPIC_CHARS
from dwell.queue import Queue
from dwell.relay.contract import BrokerUnreachable, ForgetfulSource, OnceSink, Reader, Sink, Source
from dwell.relay.dead import DeadLetters
from dwell.relay.house import QueueSink
from dwell.relay.intake import Intake
from dwell.relay.outlet import OnceOutlet, Outlet, Way
from dwell.relay.patience import AGAIN_S, patiently
from dwell.relay.rules import Cancelled, Held
from dwell.relay.tally import NOT_YET, Tally

_log = logging.getLogger(__name__)

#: Repeated kills of a relay must not use up the attempts of a message, which never failed.
_MAX_ATTEMPTS = 65_535
#: Room for 32 characters of a mark, a partition and two separators, where a long name is cut.
_CUT_CHARS = 45


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The topics of a relay, and its limits.

    ``hold`` is the topic of held records, and the prefix for the topics of lanes; ``remember_ms``
    is how long an id is known after its message has left, ``lease_ms`` the lease of the relay's
    takes. ``to`` is the target of a message that names none, ``dead`` the topic of dead letters.
    """

    hold: str = "relay"
    to: str | None = None
    dead: str = "relay-dead"
    remember_ms: int = 600_000
    lease_ms: int = 30_000
    batch: int = 5_000
    topics: tuple[str, ...] = ()


class Relay:
    """Moves records from a source to a sink by way of an open queue.

    Without a source it sends the messages of the plan's topics. Without a sink records stay in the
    queue, in the topics that the rules name, for workers; dead letters go to ``letters``.
    """

    def __init__(
        self,
        queue: Queue,
        plan: Plan,
        rules: Reader,
        *,
        source: Source | None,
        sink: Sink | None,
        letters: Sink,
        owner: str = "relay",
    ) -> None:
        self._queue = queue
        self._plan = plan
        self._source = source
        self._sink = sink
        self._sinks = [letters, *([] if sink is None or sink is letters else [sink])]
        self._owner = owner
        self.tally = Tally()
        # Until a broker has answered it is unknown whether anything can be done.
        self.tally.trouble["broker"] = NOT_YET
        if source is not None:
            self.tally.trouble["source"] = NOT_YET
        self._dead = DeadLetters(
            letters,
            plan.dead,
            QueueSink(queue),
            self.tally,
            are_whole=isinstance(source, ForgetfulSource),
        )
        self._is_stopping = False
        self._holds: dict[str, str] = {}
        self._ways: dict[str, tuple[Outlet, asyncio.Task[None]]] = {}
        #: The former lanes that are open as long as a topic's first lane.
        self._adopted: dict[str, set[str]] = {}
        #: The outlets of closed lanes, which may not have ended; the next one of a lane waits.
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._ended: asyncio.Future[None] | None = None
        self._intake: Intake | None = None
        if source is not None:
            self._intake = Intake(
                source,
                queue,
                rules,
                self._dead,
                self.tally,
                topic_of=self._topic_of,
                topics=self._topics,
                limit=plan.batch,
            )

    # --- lifetime -----------------------------------------------------------------------------

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until told to stop, and finish work in progress.

        Raises errors that no retry mends. An absent broker is waited for.
        """
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        working = loop.create_task(self._work())
        working.add_done_callback(self._note_end)
        stop = loop.create_task(stopping.wait())
        futures: list[asyncio.Future[Any]] = [stop, self._ended]
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            await self._end(working)
        if self._ended.done():
            self._ended.result()

    async def _work(self) -> None:
        for sink in self._sinks:
            try:
                await patiently(sink.open, self.tally, "broker", is_over=lambda: self._is_stopping)
            except BrokerUnreachable:
                return
        if self._source is None or self._intake is None:
            await self.open(self._plan.topics)
            return
        await self._source.open(self)
        if not self._source.has_lanes:
            await self.open([""])
        await self._intake.run()

    def why_not_ready(self) -> str | None:
        """Return the present trouble, or None without any."""
        if self._ended is None or self._ended.done():
            return "not running"
        return next(iter(self.tally.trouble.values()), None)

    async def _end(self, working: "asyncio.Task[None]") -> None:
        self._is_stopping = True
        if self._intake is not None:
            self._intake.stop()
        await asyncio.wait([working])
        if self._intake is not None and self._source is not None:
            with contextlib.suppress(DwellError):
                await self._intake.idle()
            # A group's lanes are closed when it is left.
            await self._source.close()
        await self.close(list(self._ways))
        if self._ending:
            await asyncio.wait(self._ending.values())
        for sink in self._sinks:
            await sink.close()

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        """End the whole relay when one part ends early."""
        if self._ended is None or self._ended.done() or task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._ended.set_exception(error)

    # --- lanes --------------------------------------------------------------------------------

    async def open(self, lanes: Sequence[str]) -> None:
        """Start sending the messages that the lanes hold."""
        if self._sink is None:
            return
        for lane in lanes:
            for adopted in self._adopted.values():
                adopted.discard(lane)
            if lane not in self._ways:
                outlet = self._outlet(lane)
                sending = self._send(outlet, lane, self._ending.pop(lane, None))
                task = asyncio.get_running_loop().create_task(sending)
                task.add_done_callback(self._note_end)
                self._ways[lane] = (outlet, task)
        self.tally.lanes = len(self._ways)

    async def adopt(self, counts: Mapping[str, int]) -> set[str]:
        """Send what is held of former lanes (see the contract)."""
        names: Iterable[str] = ()
        while any(f"{topic}-0" in self._ways for topic in counts):
            with contextlib.suppress(DwellError):
                names = await self._topics()
                break
            await asyncio.sleep(AGAIN_S)
        return {topic for topic in counts if await self._adopt(topic, counts[topic], names)}

    async def _adopt(self, topic: str, count: int, names: Iterable[str]) -> bool:
        """Send what is held of former lanes of one topic; tell whether there are any."""
        first = f"{topic}-0"
        start = self._hold_of(first).removesuffix("0")
        found = [number_of(name.removeprefix(start)) for name in names if name.startswith(start)]
        former = {f"{topic}-{at}" for at in found if at is not None and at >= count}
        adopted = self._adopted.get(first, set())
        await self.close(sorted(adopted - former))
        adopted &= former
        if first not in self._ways or not former:
            return False
        if new := sorted(former - self._ways.keys()):
            _log.info("%s has %d partitions; sending what is held of %s", topic, count, new)
            await self.open(new)
            self._adopted.setdefault(first, set()).update(new)
        return True

    async def close(self, lanes: Sequence[str], *, is_lost: bool = False) -> None:
        """End with lanes: records read from them are held, and messages taken are sent."""
        lanes = [*lanes, *(one for lane in lanes for one in self._adopted.pop(lane, ()))]
        # The source does not wait for ever, and may open a lane again before this is done with it.
        ways = {lane: self._ways.pop(lane) for lane in lanes if lane in self._ways}
        self._ending |= {lane: task for lane, (_, task) in ways.items()}
        self.tally.lanes = len(self._ways)
        if self._intake is not None and not is_lost:
            with contextlib.suppress(DwellError):
                await self._intake.idle()
        if self._intake is not None:
            self._intake.forget(lanes)
        for outlet, _ in ways.values():
            outlet.stop()
        if ways and not is_lost:
            await asyncio.wait([task for _, task in ways.values()])

    async def _send(self, outlet: Outlet, lane: str, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        if self._source is not None:
            # Without it frequent deaths of a relay would use up the attempts of a message.
            while not outlet.is_stopping and not await outlet.patiently(
                lambda: self._prepare(self._hold_of(lane))
            ):
                await asyncio.sleep(AGAIN_S)
        try:
            await outlet.run()
        finally:
            outlet.forget()
            if isinstance(outlet, OnceOutlet):
                await outlet.leave()

    def _outlet(self, lane: str) -> Outlet:
        plan, sink = self._plan, self._sink
        assert sink is not None
        way = Way(
            *(self._queue, self._hold_of(lane), plan.lease_ms, plan.to, self._owner, plan.batch),
            is_ordered=self._source is not None and self._source.has_lanes,
        )
        if isinstance(sink, OnceSink):
            assert self._source is not None
            return OnceOutlet(way, sink, self._dead, self.tally, lane, self._source.is_committed)
        return Outlet(way, sink, self._dead, self.tally)

    # --- topics -------------------------------------------------------------------------------

    def _hold_of(self, lane: str) -> str:
        """Return the topic for a lane's messages."""
        if self._source is None:
            return lane
        topic = f"{self._plan.hold}.{lane}" if lane else self._plan.hold
        if len(topic) > MAX_TOPIC_CHARS:
            # Names in Kafka may be longer, and have no colon.
            name, _, number = topic.rpartition("-")
            mark = blake2b(name.encode(), digest_size=16).hexdigest()
            topic = f"{name[: MAX_TOPIC_CHARS - _CUT_CHARS]}:{mark}-{number}"
        return values.topic(topic)

    def _topic_of(self, one: Held | Cancelled) -> str:
        if self._sink is None:
            return one.target
        lane = one.record.lane
        topic = self._holds.get(lane)
        if topic is None:
            topic = self._holds[lane] = self._hold_of(lane)
        return topic

    async def _topics(self) -> Iterable[str]:
        found = (await self._queue.stats()).topics
        if self._sink is None:
            return ()
        hold = self._plan.hold
        return [name for name in found if name == hold or name.startswith(f"{hold}.")]

    async def _prepare(self, topic: str) -> bool:
        """Set a topic to remember ids long enough, and not to bury messages of dying relays."""
        settings = await self._queue.settings(topic)
        changes = {}
        if settings.max_attempts != _MAX_ATTEMPTS:
            changes["max_attempts"] = _MAX_ATTEMPTS
        # A concurrent change of other settings is not overwritten.
        if settings.remember_ms < self._plan.remember_ms:
            changes["remember_ms"] = self._plan.remember_ms
        if changes:
            await self._queue.configure(topic, **changes)
        return True
