"""Turns of the event loop: what brings much waits, in order, and what brings little does not."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from dwell.server.turns import TURN_BYTES, Turns


class Connection:
    """Notes what it parses, and goes on until it is done."""

    def __init__(self, turns, parts, size_bytes, log):
        self.turns, self.left, self.size_bytes, self.log = turns, parts, size_bytes, log

    def begin(self):
        self.read()

    def read(self):
        """Do as a port does that has read a part."""
        may_parse = self.turns.may_parse(self.size_bytes)
        if may_parse:
            self.parse()
        if self.left and (not may_parse or self.size_bytes == TURN_BYTES):
            self.turns.wait(self, self.size_bytes)
        elif self.left:
            asyncio.get_running_loop().call_soon(self.read)

    def parse(self):
        self.left -= 1
        self.log.append((self, self.size_bytes))

    def take_turn(self):
        if self.left:
            self.parse()
        if self.left:
            asyncio.get_running_loop().call_soon(self.read)


async def parsed_by_turn(many):
    """Return what was parsed in each turn of the loop until all connections are done."""
    turns, log, rows = Turns(), [], []
    loop = asyncio.get_running_loop()
    connections = [Connection(turns, *one, log) for one in many]
    for connection in connections:
        loop.call_soon(connection.begin)
    while any(connection.left for connection in connections):
        await asyncio.sleep(0)
        rows.append(list(log))
        log.clear()
    return connections, rows


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from([5_000, 20_000, 60_000, TURN_BYTES])),
        min_size=1,
        max_size=40,
    )
)
def test_a_turn_parses_little_however_many_bring_much(many):
    _, rows = asyncio.run(parsed_by_turn(many))
    # One read that comes first, others up to the bound, and as many that have waited.
    most_bytes = TURN_BYTES + 2 * TURN_BYTES
    assert max(sum(size for _, size in row) for row in rows) <= most_bytes
    assert sum(len(row) for row in rows) == sum(parts for parts, _ in many)


async def test_connections_that_wait_have_their_turns_in_order():
    turns, order = Turns(), []

    class Waiter:
        def __init__(self, name, times):
            self.name, self.times = name, times

        def take_turn(self):
            order.append(self.name)
            self.times -= 1
            if self.times:
                turns.wait(self, TURN_BYTES)

    for name in "abc":
        turns.wait(Waiter(name, 3), TURN_BYTES)
    while len(order) < 9:
        await asyncio.sleep(0)
    assert "".join(order) == "abcabcabc"


async def test_small_reads_never_wait():
    turns, chance = Turns(), random.Random(1)
    for _ in range(1000):
        turns.may_parse(TURN_BYTES)
        assert turns.may_parse(chance.randrange(4_000))


async def test_less_is_read_at_a_time_while_much_waits():
    turns, log = Turns(), []
    most = len(turns.buffer)
    assert most == TURN_BYTES
    connections = [Connection(turns, 1, TURN_BYTES, log) for _ in range(200)]
    for connection in connections:
        turns.wait(connection, TURN_BYTES)
    assert len(turns.buffer) <= TURN_BYTES // 64
    while len(log) < len(connections):
        await asyncio.sleep(0)
    assert len(turns.buffer) == most
