"""The store on Redis, on Valkey and on a cluster of three, by the suite and beside the model."""

import itertools
import os
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from dwell.clock import SimulatedClock
from dwell.errors import ServerUnreachable
from dwell.store.redis import RedisStore
from dwell.store.redis.limits import Limits
from dwell.testing.domains import TOPICS
from dwell.testing.machine import StoreMachine
from dwell.testing.suite import StoreSuite
from dwell.testing.suite.arrows import Arrows
from dwell.testing.suite.fairness import Fairness
from dwell.testing.suite.follows import Follows
from dwell.testing.suite.ids import ByIdVerbs
from dwell.testing.suite.limits import Limits as TopicLimits
from dwell.testing.suite.notices import Notices
from dwell.testing.suite.picks import Picks
from dwell.testing.suite.puts import Puts
from dwell.testing.suite.queries import Queries
from dwell.testing.suite.rates import Rates
from dwell.testing.suite.reading import Reading
from dwell.testing.suite.receipts import Receipts
from dwell.testing.suite.results import Results
from dwell.testing.suite.sweeps import Sweeps
from dwell.testing.suite.takes import Takes
from tests import RUNS
from tests.http.between import Between

_names = itertools.count()


def new_store(url: str, clock: SimulatedClock, **options) -> RedisStore:
    """Return a store of its own, whose keys are nobody else's, with time for a busy machine."""
    own = {"prefix": f"test-{os.getpid()}-{next(_names)}", "timeout": 60}
    return RedisStore(url, clock=clock, **(own | options))


class TestRedisStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock)


class TestBlocks(Arrows, Puts, Takes, TopicLimits, Rates, Fairness, Picks, Receipts, ByIdVerbs):
    """What blocks change, where even two messages, or a single one, are a block."""

    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock, packed=1)


class TestFourShards(
    Arrows, Takes, TopicLimits, Receipts, Results, Follows, Notices, Reading, Sweeps, Queries
):
    """What is gathered of several shards."""

    shards = 4

    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock, shards=self.shards)


@pytest.mark.campaign
class TestBlocksOnValkey(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, valkey_url):
        self.url = valkey_url

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock, packed=1)


@pytest.mark.campaign
class TestShardsOfACluster(StoreSuite):
    shards = 4

    @pytest.fixture(autouse=True)
    def server(self, cluster_url):
        self.url = cluster_url

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock, shards=self.shards)


#: Every threshold small, so that each path behind one is gone through thousands of times. Only a
#: put is left whole: in parts, what one of them put can be over before the next is looked at.
LEAST = Limits(
    **{name: 1 for name in Limits._fields if name not in ("arguments", "step_ms", "loose")},
    arguments=2,
)
FEW = LEAST._replace(
    budget=5,
    timers=2,
    taken=2,
    scanned=30,
    looked=4,
    read=2,
    ids=2,
    receipts=2,
    acks=3,
    swept=3,
    scan_read=2,
    scan_first=1,
    forgotten=2,
    topics=2,
    idle_ms=500,
)
#: A call that is told of many messages does something with a part of them only.
PART = Limits(looked=2, taken=2)


class RedisMachine(StoreMachine):
    """The machine on whatever engine a test names; each of its runs has a store of its own."""

    url: ClassVar[str]
    options: ClassVar[dict[str, object]] = {}
    limits = Limits()

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock, limits=self.limits, **self.options)

    @initialize(limits=st.sampled_from((Limits(), LEAST, LEAST, FEW, PART)))
    def choose_limits(self, limits: Limits) -> None:
        """Let one call do as little as it can, or as much as usual."""
        self.limits = limits
        self.run(self.store.close())
        self.store = self.run(self.make_store(self.clock))
        self._start()
        self.notices.expect_nothing(self.model)


class BlockMachine(RedisMachine):
    options: ClassVar[dict[str, object]] = {"packed": 1}


class LossyMachine(RedisMachine):
    """The same over a wire that loses requests and answers, or lets them through twice."""

    wire: Between | None = None

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        if self.wire is None:
            self.wire = Between(self.url)
            await self.wire.start()
        return new_store(self.wire.url, clock, limits=self.limits, **self.options)

    def teardown(self) -> None:
        self.wire.break_("pass")
        self.run(self.store.close())
        self.run(self.wire.stop())
        self.loop.close()

    @invariant()
    def store_is_like_the_model(self) -> None:
        """Let a tick find first what a wake said that was lost with its answer."""
        if not self.has_only_moved:
            self.store.waiting = lambda: TOPICS
            now_ms = self.clock.now_ms()
            self.notices.promise(self.ask(lambda store: store.tick(now_ms)))
        super().store_is_like_the_model()

    @rule(how=st.sampled_from(("mute", "part", "cut", "twice")), requests=st.integers(1, 3))
    def break_wire(self, how: str, requests: int) -> None:
        """Let something happen to the next requests, which verbs must not notice."""
        self.wire.break_(how, requests)
        # It is to happen to the next verb, and not to the calls of a check.
        self.has_only_moved = True


class LossyBlockMachine(LossyMachine):
    options: ClassVar[dict[str, object]] = {"packed": 1}


class InstancesMachine(RedisMachine):
    """The same by two instances of one store: each verb by one of them, and what it finds too."""

    other: RedisStore | None = None

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        if self.other is not None:
            await self.other.close()
        own = {"prefix": f"test-{os.getpid()}-{next(_names)}"}
        store, self.other = (
            new_store(self.url, clock, limits=self.limits, **self.options, **own) for _ in range(2)
        )
        return store

    def _start(self) -> None:
        super()._start()
        self.notices.listen(self.other)
        self.run(self.other.open())

    @invariant()
    def store_is_like_the_model(self) -> None:
        """Let a tick of each find first what the other was told: it hears of that in a while."""
        if not self.has_only_moved:
            now_ms = self.clock.now_ms()
            for store in (self.other, self.store):
                store.waiting = lambda: TOPICS
                promised = self.ask(lambda _, store=store: store.tick(now_ms))
            self.notices.promise(promised)
        super().store_is_like_the_model()

    @rule()
    def go_on_with_the_other(self) -> None:
        """Let the other instance do what comes next."""
        self.store, self.other = self.other, self.store

    def teardown(self) -> None:
        self.run(self.other.close())
        super().teardown()


class DyingMachine(LossyMachine):
    """The same where a verb is given up, and its instance dies: it was done or not, as a whole."""

    can_reopen = True
    crashes = (ServerUnreachable,)
    fails_left = 2

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        store = await super().make_store(clock)
        self.prefix = store.shards.engine.keys(0).base.split(":{")[0]
        return store

    async def reopen(self) -> RedisStore:
        self.wire.break_("pass")
        # What it owes is not given back, as nobody is there to do it.
        self.store._taking._debts._owed.clear()
        await self.store.close()
        options = {"limits": self.limits, "timeout": 0.5, **self.options}
        return RedisStore(self.wire.url, clock=self.clock, prefix=self.prefix, **options)

    @initialize(limits=st.just(Limits()))
    def choose_limits(self, limits: Limits) -> None:
        """Leave all as it is: what is made of several calls can be done in part."""

    @precondition(lambda self: self.fails_left)
    @rule(how=st.sampled_from(("mute", "cut")))
    def fail(self, how: str) -> None:
        """Let nothing come back from now on, until the instance is dead."""
        self.fails_left -= 1
        self.wire.break_(how)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("machine", "engine", "runs"),
    [
        (RedisMachine, "redis_url", 4),
        (BlockMachine, "redis_url", 4),
        (InstancesMachine, "redis_url", 3),
        (LossyMachine, "redis_url", 2),
        (LossyBlockMachine, "redis_url", 2),
        (DyingMachine, "redis_url", 2),
        (RedisMachine, "valkey_url", 2),
        (BlockMachine, "valkey_url", 2),
        (RedisMachine, "cluster_url", 2),
        (BlockMachine, "cluster_url", 2),
    ],
)
def test_machine(machine, engine, runs, request):
    class Machine(machine):
        url = request.getfixturevalue(engine)

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=RUNS * runs, stateful_step_count=50, deadline=None)
    )
