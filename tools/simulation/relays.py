"""Relays in a simulated world: all that comes in leaves, in once's case exactly once.

One or two relays read a group's lanes of a broker, or the table of an outbox, hold what they read
in a queue that another process serves, and send what falls due. Relays are killed and stopped, the
broker goes away and takes lanes from them, a target takes nothing, a topic is full, replies are
lost; and the process that serves the queue and its machine come to harm as well.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from dwell.errors import DwellError
from dwell.message import Kind
from dwell.queue import Queue
from dwell.relay.house import QueueSink
from dwell.relay.outbox.source import OutboxSource
from dwell.relay.record import Headers
from dwell.relay.relay import Plan, Relay
from dwell.relay.rules import Rules
from dwell.testing.views import events_from
from tools.simulation.broker import (
    POISON,
    Broker,
    Came,
    PlainSink,
    SimulatedSource,
    TransactionalSink,
)
from tools.simulation.history import Broken
from tools.simulation.loop import Life, SimulatedLoop
from tools.simulation.outboxtable import SimulatedRows, Table
from tools.simulation.process import OUTSIDE
from tools.simulation.remote import RemoteQueue
from tools.simulation.served import HARM, Served

_DEAD = "relay-dead"
_JOBS = "jobs"
_LONGEST_S = 20
#: How long a relay that is told to stop may take, and how long all may need at the end.
_STOPS_WITHIN_S = 60
_ENDS_WITHIN_S = 300
#: Longer than a lease, after which what is still there would leave again.
_QUIET_S = 15
#: What goes wrong with relays and brokers, and what it is called in a summary.
_HARM = HARM | {
    "relay killed": "relays killed",
    "relay stopped": "relays stopped",
    "broker away": "brokers away",
    "lanes taken": "lanes taken",
    "target refuses": "targets that refuse",
    "topic full": "full topics",
    "cut off": "partitions",
}


class Expected(NamedTuple):
    """A record that was produced, and what is to become of it."""

    target: str
    due_ms: int
    key: bytes | None
    headers: Headers
    lane: str = ""
    offset: int = 0


class RelayProcess:
    """One relay after another, each of which runs until it is killed or stopped."""

    def __init__(
        self,
        loop: SimulatedLoop,
        make: Callable[[], tuple[Relay, SimulatedSource | SimulatedRows]],
        broken: Callable[[Broken], None],
    ) -> None:
        self._loop = loop
        self._make = make
        self._broken = broken
        self._life = Life()
        self._stopping = asyncio.Event()
        self._link: SimulatedSource | SimulatedRows | None = None

    def start(self) -> None:
        """Start a relay."""
        self._life = Life()
        self._stopping = asyncio.Event()
        self._life.context.copy().run(self._loop.create_task, self._run())

    async def _run(self) -> None:
        life = self._life
        relay, self._link = self._make()
        try:
            await relay.run(self._stopping)
        except DwellError:
            # It ends, and is started again.
            pass
        except Exception as error:
            if not life.is_over:
                self._broken(Broken("error", f"a relay raised {error!r}"))
            return
        self._again()

    def _again(self) -> None:
        self._loop.call_later(0.3, self.start, context=OUTSIDE.copy())

    def kill(self) -> None:
        """Kill the relay that runs; another is started."""
        if not self._life.is_over and self._link is not None:
            self._link.crash(self._loop)
            self._loop.end(self._life)
            self._again()

    def stop(self) -> None:
        """Stop the relay in good order; it is to end in a while, and another is started."""
        life = self._life
        self._stopping.set()
        stopping = self._stopping

        def look() -> None:
            if not life.is_over and stopping is self._stopping:
                self._broken(Broken("hang", f"a relay does not stop in {_STOPS_WITHIN_S} s"))

        self._loop.call_later(_STOPS_WITHIN_S, look)

    def end(self) -> None:
        """Let nothing of it run any more."""
        self._loop.end(self._life)


class Relays(Served):
    """One run, drawn from a seed."""

    #: Clocks that leap let leases end, which a relay is to bear; what it sends by then is not late.
    most_step_ms = 2_000

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        chance = self._chance
        #: Whether no request and no reply is lost, as where a relay opens the store itself.
        self._is_near = self._network.is_calm = chance.random() < 0.5
        #: What is read, and how it leaves: once, at least once, or to workers of the queue.
        self._way = chance.choice(("once", "once", "plain", "outbox", "workers"))
        self._reads_table = self._way in ("outbox", "workers")
        lanes = [f"in-{at}" for at in range(chance.choice((1, 2, 3)))]
        self._broker = Broker(self._clock, chance, lanes, _DEAD)
        self._table = Table(chance)
        self._plan = Plan(to="out-a", lease_ms=5_000, batch=chance.choice((1, 3, 50)), dead=_DEAD)
        self._relays = [
            RelayProcess(self._loop, self._relay, self._fail) for _ in range(chance.choice((1, 2)))
        ]
        self._expected: dict[bytes, Expected] = {}
        self._poisoned: set[bytes] = set()
        #: Of records that others cancel: where the first of those is.
        self._cancels: dict[bytes, tuple[str, int]] = {}

    def _relay(self) -> tuple[Relay, SimulatedSource | SimulatedRows]:
        queue = cast(Queue, RemoteQueue(self._network, self._clock, self._chance))
        link = SimulatedRows(self._table) if self._reads_table else SimulatedSource(self._broker)
        source: Any = OutboxSource("outbox", link) if self._reads_table else link  # type: ignore[arg-type]
        kind = TransactionalSink if self._way == "once" else PlainSink
        sink = None if self._way == "workers" else kind(self._broker)
        is_named = sink is not None
        rules = source.reader(is_named=is_named) if self._reads_table else Rules(to="out-a")
        letters = QueueSink(queue) if sink is None else sink
        relay = Relay(queue, self._plan, rules, source=source, sink=sink, letters=letters)
        return relay, link

    async def _work(self) -> None:
        chance = self._chance
        for relay in self._relays:
            self._loop.call_later(chance.random(), relay.start)
        count = chance.choice((5, 20, 60))
        producing = [self._loop.create_task(self._produce(at)) for at in range(count)]
        harms = chance.choice((0, 2, 4, 8))
        harming = [self._loop.create_task(self._harm()) for _ in range(harms)]
        for task in (*producing, *harming):
            await task
        await self._calm()
        await self._all_gone()
        await asyncio.sleep(_QUIET_S)
        await self._check()

    def _tear_down(self) -> None:
        for relay in self._relays:
            relay.end()
        super()._tear_down()

    # --- what comes -------------------------------------------------------------------------------

    async def _produce(self, at: int) -> None:
        chance = self._chance
        await asyncio.sleep(chance.random() * _LONGEST_S)
        target = chance.choice(("out-a", "out-a", "out-b"))
        due_ms = self._clock.now_ms() + chance.choice((0, 0, 100, 2_000, 15_000))
        lane = chance.choice(list(self._broker.log))
        # What is produced together falls due together, and leaves in its order.
        for one in range(chance.choice((1, 1, 1, 5))):
            kind = POISON if chance.random() < 0.1 else b"body"
            body = kind + b" %d.%d" % (at, one)
            if kind == POISON:
                self._poisoned.add(body)
            if self._reads_table:
                self._insert(body, target, due_ms)
            elif chance.random() < 0.1:
                self._cancel(lane)
            else:
                self._append(lane, body, target, due_ms)

    def _insert(self, body: bytes, target: str, due_ms: int) -> None:
        topic = _JOBS if self._way == "workers" else target
        self._expected[body] = Expected(topic, due_ms, None, [])
        self._table.insert(_id_of(body), topic, body, due_ms)

    def _append(self, lane: str, body: bytes, target: str, due_ms: int) -> None:
        log = self._broker.log[lane]
        key = self._chance.choice((None, b"key", b"\xff"))
        said: Headers = [("kind", b"test")]
        due: Headers = [("dwell-due-ms", b"%d" % due_ms), ("dwell-to", target.encode())]
        if self._chance.random() < 0.05:
            # A record that says no time is a dead letter.
            due = []
            self._poisoned.add(body)
        self._expected[body] = Expected(target, due_ms, key, said, lane, len(log))
        log.append(Came(body, key, [*said, *due], self._clock.now_ms()))

    def _cancel(self, lane: str) -> None:
        log = self._broker.log[lane]
        if log:
            offset = self._chance.randrange(len(log))
            self._cancels.setdefault(log[offset].body, (lane, len(log)))
            said: Headers = [("dwell-cancel", f"{lane}-{offset}".encode())]
            log.append(Came(b"cancel", None, said, self._clock.now_ms()))

    # --- enemies ----------------------------------------------------------------------------------

    async def _harm(self) -> None:
        chance = self._chance
        await asyncio.sleep(chance.random() * (_LONGEST_S + 10))
        kind = chance.choice([*_HARM, "relay killed", "relay killed", "lanes taken"])
        if kind in HARM:
            await self._harm_process(kind)
            return
        self.tally[_HARM[kind]] += 1
        relay, while_s = chance.choice(self._relays), chance.choice((0.5, 3, 8))
        if kind == "relay killed":
            relay.kill()
        elif kind == "relay stopped":
            relay.stop()
        elif kind == "broker away":
            self._broker.is_away = self._table.is_away = True
            await asyncio.sleep(while_s)
            self._broker.is_away = self._table.is_away = False
        elif kind == "lanes taken" and self._broker.members:
            self._broker.remove(chance.choice(self._broker.members))
        elif kind == "target refuses":
            self._broker.refusing.add(chance.choice(("out-a", "out-b")))
            await asyncio.sleep(while_s)
            self._broker.refusing.clear()
        elif kind == "topic full":
            await self._fill(2)
            await asyncio.sleep(while_s)
            await self._fill(0)
        elif kind == "cut off" and not self._is_near:
            self._network.is_cut_off = True
            await asyncio.sleep(while_s)
            self._network.is_cut_off = False

    async def _fill(self, max_pending: int) -> None:
        """Bound what topics may hold, or bound it no longer."""
        for topic in self._holds():
            await self._ask(_configure(topic, max_pending), "fill")

    def _holds(self) -> list[str]:
        if self._reads_table:
            return [_JOBS, "relay"]
        return [f"relay.{lane}" for lane in self._broker.log]

    # --- the end ----------------------------------------------------------------------------------

    async def _calm(self) -> None:
        self._network.is_cut_off = False
        self._broker.is_calm = self._table.is_calm = True
        await super()._calm()

    async def _all_gone(self) -> None:
        """Wait until nothing is left that was to leave."""
        left: Any = "unread"
        until_s = self._loop.time() + _ENDS_WITHIN_S
        while self._loop.time() < until_s:
            await asyncio.sleep(1)
            if self._table.rows or self._broker.committed != {
                lane: len(log) for lane, log in self._broker.log.items()
            }:
                continue
            if self._way == "workers":
                return
            counts = (await self._ask(lambda queue: queue.stats(), "stats")).topics
            left = {topic: count for topic in self._holds() if (count := counts.get(topic))}
            if not any(c.delayed + c.ready + c.leased for c in left.values()):
                return
        raise Broken(
            "stuck", f"not all has left: {left}, {self._broker.committed}, {self._table.rows}"
        )

    async def _check(self) -> None:
        if self._way == "workers":
            return await self._check_jobs()
        came: Counter[bytes] = Counter()
        letters: Counter[bytes] = Counter()
        for one in self._broker.sent:
            self._hash.update(repr(one).encode())
            body = one.body or b""
            (letters if one.topic == _DEAD else came)[body] += 1
            if one.topic != _DEAD:
                self._check_sent(one)
        self._check_counts(came, letters)
        # What waits for a target that takes nothing may leave in another order, and a store that
        # has failed does not tell what was taken of it.
        harms = ("target refuses", "fault")
        if self._way == "once" and self._is_near and not any(map(self._harmed, harms)):
            self._check_order()
        return None

    def _check_sent(self, one: Any) -> None:
        expected = self._expected.get(one.body)
        if expected is None or one.body in self._poisoned:
            raise Broken("strange", f"{one} was sent")
        if (one.topic, one.key) != (expected.target, expected.key) or (
            expected.headers and one.headers != expected.headers
        ):
            raise Broken("wrong", f"{one} was sent for {expected}")
        if one.at_ms < expected.due_ms and not self._clock.steps:
            raise Broken("early", f"{one} was sent {expected.due_ms - one.at_ms} ms early")

    def _check_counts(self, came: Counter[bytes], letters: Counter[bytes]) -> None:
        self.tally["answered puts"] += len(self._expected)
        self.tally["delivered again"] += sum(count - 1 for count in came.values())
        for body, expected in self._expected.items():
            where, count = (
                ("dead letters", letters[body])
                if body in self._poisoned
                else (expected.target, came[body])
            )
            if not count and body not in self._cancels:
                raise Broken("lost", f"{body!r} never came to {where}: {expected}")
            if count and body in self._cancels and self._is_too_late(body, expected):
                raise Broken("cancelled", f"{body!r} came though it was cancelled: {expected}")
            if count > 1 and self._way == "once" and body not in self._poisoned:
                raise Broken("doubled", f"{body!r} came {count} times to {where}: {expected}")

    def _is_too_late(self, body: bytes, expected: Expected) -> bool:
        """Tell whether a record fell due after the one that cancels it was done."""
        if body in self._poisoned or self._clock.steps or self._harmed("lanes taken"):
            # A relay that lost a lane may put what the next one has cancelled.
            return False
        return expected.due_ms > self._broker.committed_ms.get(self._cancels[body], 1 << 62)

    def _harmed(self, kind: str) -> bool:
        return bool(self.tally[_HARM[kind]])

    def _check_order(self) -> None:
        """Check that records of one lane that fell due together left in the order they came in."""
        last: dict[tuple[str, int], int] = {}
        for one in self._broker.sent:
            expected = self._expected.get(one.body or b"")
            if expected is None or one.topic == _DEAD:
                continue
            group = (expected.lane, expected.due_ms)
            if expected.offset < last.get(group, -1):
                raise Broken("order", f"{one} of {group} was sent after {last[group]}")
            last[group] = expected.offset

    async def _check_jobs(self) -> None:
        """Check that each row was put once, as the log of events tells."""

        async def read(queue: Queue) -> list[Any]:
            return await events_from(queue.store, 0)

        events = await self._ask(read, "events", 20)
        puts = [event.id for event in events if event.topic == _JOBS and event.kind is Kind.PUT]
        self._hash.update(repr(puts).encode())
        self.tally["answered puts"] += len(self._expected)
        expected = set(map(_id_of, self._expected))
        if lost := sorted(expected - set(puts)):
            raise Broken("lost", f"{len(lost)} rows were never put: {lost[:5]}")
        if doubled := [id_ for id_, count in Counter(puts).items() if count > 1]:
            raise Broken("doubled", f"{len(doubled)} rows were put twice: {doubled[:5]}")


def _id_of(body: bytes) -> str:
    return f"id-{body.rpartition(b' ')[2].decode()}"


def _configure(topic: str, max_pending: int) -> Callable[[Queue], Any]:
    return lambda queue: queue.configure(topic, max_pending=max_pending)
