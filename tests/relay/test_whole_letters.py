"""What a source forgets becomes a dead letter with all it had, or stays where it is."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dwell
from dwell.clock import RealClock
from dwell.errors import InvalidBody
from dwell.message import MAX_BODY_BYTES
from dwell.queue import Queue
from dwell.relay.relay import Relay
from dwell.store.memory import MemoryStore
from tests.relay.outbox import held, moving
from tests.relay.rabbitmq import Queues, headers_of
from tests.waiting import until_async

LARGE = {"trace": "t" * 20_000, "x-delay": 1, "dwell-to": "jobs"}
GOOD = {"x-delay": 1, "dwell-to": "jobs"}
COUNT = 12


class Small(MemoryStore):
    """A store that refuses what begins with "bad", as a server with a lower limit does."""

    async def put(self, puts: Any, on_conflict: Any) -> Any:
        if any(body.startswith(b"bad") for body in puts.bodies):
            raise InvalidBody("body: got one that is bad, expected none")
        return await super().put(puts, on_conflict)


@pytest.fixture
async def small() -> AsyncIterator[Queue]:
    async with Queue(Small(RealClock())) as queue:
        yield queue


async def stays(relay: Relay, count: int) -> None:
    """Wait until so many records stay in their source."""
    await until_async(lambda: relay.tally.unkept == count)


async def ready(mine: Queues, queue: str, count: int) -> None:
    """Wait until so many messages wait in a queue of RabbitMQ."""
    await until_async(lambda: asyncio.to_thread(lambda: mine.ready(queue) == count))


async def test_messages_that_no_letter_can_have_stay_and_hold_up_nobody(queues, caplog):
    """Also where there are more of them than a consumer may have unacked."""
    mine = await asyncio.to_thread(queues)
    for at in range(COUNT):
        await asyncio.to_thread(mine.say_all, [(b"large", LARGE), (b"%d" % at, GOOD)])
    async with dwell.open("memory:") as queue:
        async with moving(queue, f"{mine.source}&prefetch=4") as relay:
            await stays(relay, COUNT)
            await until_async(lambda: relay.tally.settled == COUNT)
            assert (relay.tally.read, relay.tally.dead.total()) == (COUNT, 0)
            assert relay.why_not_ready() is None
        assert len(await held(queue, "jobs")) == COUNT
        assert not await held(queue, "relay-dead")
    await ready(mine, mine.came, COUNT)
    found = await asyncio.to_thread(mine.read, mine.came, COUNT)
    assert all(headers_of(one) == LARGE and one.body == b"large" for one in found)
    assert sum("stays there" in one for one in caplog.messages) == COUNT


async def test_a_message_that_stayed_becomes_a_letter_once_there_is_a_queue_for_it(queues):
    mine = await asyncio.to_thread(queues)
    body = b"b" * (MAX_BODY_BYTES + 1)
    await asyncio.to_thread(mine.say_all, [(body, GOOD), (b"headers", LARGE)])
    goes = {"sink": mine.sink, "dead": f"{mine.name}-letters"}
    async with dwell.open("memory:") as queue:
        async with moving(queue, mine.source, **goes) as relay:
            await stays(relay, 2)
        await asyncio.to_thread(mine.declare, goes["dead"])
        await ready(mine, mine.came, 2)
        async with moving(queue, mine.source, **goes) as relay:
            found = await asyncio.to_thread(mine.read, goes["dead"], 2)
            await until_async(lambda: relay.tally.dead["source"] == 2)
        assert not await held(queue, goes["dead"])
    assert [one.body for one in found] == [body, b"headers"]
    assert [headers_of(one).get("dwell-to") for one in found] == ["jobs"] * 2
    assert headers_of(found[1])["trace"] == LARGE["trace"]
    await ready(mine, mine.came, 0)


async def test_a_letter_of_what_the_queue_refuses_has_all_that_a_message_had(queues, small):
    mine = await asyncio.to_thread(queues)
    said = {"x-delay": 1, "dwell-to": "jobs", "dwell-id": "order-1", "customer": "ann"}
    await asyncio.to_thread(mine.say, b"bad", said)
    async with moving(small, mine.source, sink=mine.sink, dead=mine.dead):
        (found,) = await asyncio.to_thread(mine.read, mine.dead, 1)
    headers = headers_of(found)
    assert headers | said | {"x-delay": -1} == headers


async def test_a_letter_of_what_cannot_be_read_has_all_that_a_message_had(queues):
    mine = await asyncio.to_thread(queues)
    said = {"dwell-delay": [1, 2], "dwell-to": "jobs", "customer": "ann", "list": [1]}
    await asyncio.to_thread(lambda: mine.say(b"odd", said, correlation_id="c-1"))
    goes = {"sink": mine.sink, "dead": mine.dead}
    async with dwell.open("memory:") as queue, moving(queue, mine.source, **goes):
        (found,) = await asyncio.to_thread(mine.read, mine.dead, 1)
    headers = headers_of(found)
    assert headers | said | {"dwell-delay": "[1, 2]"} == headers
    assert found.header.properties.correlation_id == "c-1"


async def test_rows_that_no_letter_can_have_stay_and_hold_up_nobody(box, small, caplog):
    """Also where only the queue refuses them, and rows of the same topic come after them."""
    odd = [
        {"body": b"x" * (MAX_BODY_BYTES + 1)},
        {"body": b"bad"},
        {"key": "k" * 20_000},
        {"headers": json.dumps({"a": "x" * 300_000})},
    ]
    columns = "(id, topic, body, due_ms, key, headers)"
    insert = f"INSERT INTO {{table}} {columns} VALUES (:id, 't', :body, 0, :key, :headers)"
    for at, one in enumerate(odd):
        box.do(insert, **{"id": f"odd{at}", "body": b"", "key": None, "headers": None} | one)
        box.put("t", b"%d" % at)
    async with moving(small, box.address) as relay:
        await stays(relay, len(odd))
        await until_async(lambda: asyncio.to_thread(lambda: box.count() == len(odd)))
        box.put("t", b"last")
        await until_async(lambda: asyncio.to_thread(lambda: box.count() == len(odd)))
        assert (relay.tally.settled, relay.tally.dead.total()) == (len(odd) + 1, 0)
    assert [one.body for one in await held(small, "t")] == [b"0", b"1", b"2", b"3", b"last"]
    assert not await held(small, "relay-dead")
    assert sum("stays there" in one for one in caplog.messages) == len(odd)


async def test_a_letter_has_all_of_its_row(box, queues, small):
    """Also of a row that only the queue refuses, and of values that no message may have."""
    mine = await asyncio.to_thread(queues)
    key = "k" * 5_000
    insert = "INSERT INTO {table} (id, topic, body, due_ms, key) VALUES (:id, 't', :body, 0, :key)"
    box.do(insert, id="long", body=b"body", key=key)
    # A broker would take its beginning.
    box.do(insert, id="cut", body=b"cut", key="k" * 50_000)
    box.put("orders", b"bad", id="order-1", headers={"customer": "ann"})
    async with moving(small, box.address, sink=mine.sink, dead=mine.dead) as relay:
        found = await asyncio.to_thread(mine.read, mine.dead, 2)
        await until_async(lambda: asyncio.to_thread(lambda: box.count() == 1))
        await stays(relay, 1)
    rows = {one.body: headers_of(one)["dwell-row"] for one in found}
    assert f"key='{key}'" in rows[b"body"]
    for part in ("id='order-1'", "topic='orders'", "customer", "ann"):
        assert part in rows[b"bad"]
