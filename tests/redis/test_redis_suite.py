"""The store on Redis, on Valkey and on a cluster of three, by the suite and beside the model."""

import itertools
import os
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from dwell.clock import SimulatedClock
from dwell.store.redis import RedisStore
from dwell.testing.machine import StoreMachine
from dwell.testing.suite import StoreSuite

_names = itertools.count()


def new_store(url: str, clock: SimulatedClock, **options) -> RedisStore:
    """Return a store of its own, whose keys are nobody else's."""
    return RedisStore(url, clock=clock, prefix=f"test-{os.getpid()}-{next(_names)}", **options)


class TestRedisStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock)


class TestBlocks(TestRedisStore):
    """The same where even two messages, or a single one, are a block."""

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock, packed=1)


#: What holds within a shard, and not over several: the order, all or none, and max_pending; and an
#: id is looked for under the key that it was put with.
WITHIN_A_SHARD = {
    "test_a_new_priority",
    "test_cancel_many",
    "test_clock_jumps_far_ahead",
    "test_error_puts_nothing",
    "test_error_with_an_id_twice_in_the_batch",
    "test_events_from_a_position",
    "test_events_of_batches_stand_in_order",
    "test_expires_not_while_leased",
    "test_full_topic_does_not_count_leased_and_dead",
    "test_full_topic_drops_what_is_too_much",
    "test_full_topic_refuses_ids_of_the_past",
    "test_full_topic_refuses_the_batch",
    "test_held_no_longer",
    "test_name_messages_by_number",
    "test_peek_in_the_order_of_taking",
    "test_put_and_whole_life_of_a_batch",
    "test_receipts_keep_their_order",
    "test_replace_starts_anew",
    "test_replace_with_an_id_twice_in_the_batch",
    "test_scan_ends_with_the_last_message",
    "test_scan_page_after_page",
    "test_scan_while_things_change",
    "test_take_after_rescheduling_to_the_front",
    "test_take_by_id_and_come_back",
    "test_take_by_priority_due_and_arrival",
    "test_take_from_many_topics",
    "test_take_keeps_the_arrival",
    "test_take_late_but_more_urgent",
    "test_take_topics_as_listed",
    "test_arrow[put GONE GONE topic full, on_full=drop]",
    "test_arrow_in_counts_and_scans[put GONE GONE topic full, on_full=drop]",
}


class TestFourShards(StoreSuite):
    @pytest.fixture(autouse=True)
    def within_a_shard(self, request):
        if {request.node.name, request.node.originalname} & WITHIN_A_SHARD:
            pytest.skip("holds within a shard")

    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock, shards=4)


class TestValkeyStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, valkey_url):
        self.url = valkey_url

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock)


class TestClusterStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, cluster_url):
        self.url = cluster_url

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock)


class RedisMachine(StoreMachine):
    """The machine on whatever engine a test names; each of its runs has a store of its own."""

    url: ClassVar[str]

    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock)


class BlockMachine(RedisMachine):
    async def make_store(self, clock: SimulatedClock) -> RedisStore:
        return new_store(self.url, clock, packed=1)


@pytest.mark.parametrize(
    ("machine", "engine", "runs"),
    [
        (RedisMachine, "redis_url", 40),
        (BlockMachine, "redis_url", 40),
        (RedisMachine, "valkey_url", 12),
        (BlockMachine, "valkey_url", 12),
        (RedisMachine, "cluster_url", 12),
        (BlockMachine, "cluster_url", 12),
    ],
)
def test_machine(machine, engine, runs, request):
    class Machine(machine):
        url = request.getfixturevalue(engine)

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=runs, stateful_step_count=50, deadline=None)
    )
