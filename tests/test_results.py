"""Results of acks, and waits for what comes of a message, at the queue."""

import asyncio
import contextlib
import math

import pytest

import dwell
from dwell import Outcome, Result
from dwell.clock import SimulatedClock
from dwell.errors import BatchTooLarge, InvalidBody, InvalidInput, InvalidTopic, StoreClosed
from dwell.message import MAX_BODY_BYTES
from dwell.queue import Queue
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from tests.waiting import PATIENCE_S, until_async

LONG = PATIENCE_S


@pytest.fixture(params=["memory", "folder"])
async def queue(request, tmp_path):
    url = "memory:" if request.param == "memory" else tmp_path / "store"
    async with dwell.open(url) as opened:
        yield opened


async def waiting(queue, id_, wait=LONG):
    """Begin to wait for a result, and return when the wait is on."""
    before = sum(map(len, queue._watchers.topics.values()))
    task = asyncio.create_task(queue.result("t", id_, wait=wait))
    await until_async(lambda: sum(map(len, queue._watchers.topics.values())) > before)
    return task


async def test_results_take_what_bodies_take(queue):
    given = {"1": b"\xff\0", "2": "täxt", "3": {"a": [1, None]}, "4": 0, "5": bytearray(b"x")}
    await queue.put_many("t", [b""] * 5, ids=list(given))
    for message in await queue.take("t", 10):
        assert await queue.ack(message, result=given[message.id]) is Result.ACKED
    found = {id_: (await queue.result("t", id_)).result for id_ in given}
    assert found == {
        "1": b"\xff\0",
        "2": "täxt".encode(),
        "3": b'{"a":[1,null]}',
        "4": b"0",
        "5": b"x",
    }
    assert (await queue.result("t", "3")).json() == {"a": [1, None]}
    assert Outcome("done").json() is None


async def test_batch_takes_a_result_for_each(queue):
    await queue.put_many("t", [b""] * 3, ids=["1", "2", "3"])
    batch = await queue.take("t", 3)
    assert set(await queue.ack(batch, results=["of 1", None, {"of": 3}])) == {Result.ACKED}
    assert [await queue.result("t", id_) for id_ in ("1", "2", "3")] == [
        Outcome("done", b"of 1"),
        Outcome("done"),
        Outcome("done", b'{"of":3}'),
    ]
    assert await queue.ack([], results=[]) == []


async def test_bad_input_changes_nothing(queue):
    await queue.put_many("t", [b""] * 2, ids=["1", "2"])
    batch = await queue.take("t", 2)
    one = batch[0]
    large = bytes(MAX_BODY_BYTES + 1)
    for error, match, call in (
        (InvalidBody, "result: got 1048577 bytes", lambda: queue.ack(one, result=large)),
        (InvalidBody, "result: got float nan", lambda: queue.ack(one, result=math.nan)),
        (InvalidInput, "results: got one message", lambda: queue.ack(one, results=["x"])),
        (InvalidInput, "result: got many messages", lambda: queue.ack(batch, result="x")),
        (InvalidBody, "results: got 1 values, expected 2", lambda: queue.ack(batch, results=["x"])),
        (InvalidBody, r"results\[1\]: got", lambda: queue.ack(batch, results=["x", {1j}])),
        (InvalidBody, "results", lambda: queue.ack(batch, results="xy")),
        (InvalidTopic, "topic", lambda: queue.result("", "1")),
        (InvalidInput, "wait", lambda: queue.result("t", "1", wait="soon")),
    ):
        with pytest.raises(error, match=match):
            await call()
    assert [(await queue.result("t", id_)).state for id_ in ("1", "2")] == ["leased", "leased"]


async def test_results_of_a_batch_have_a_limit_together(queue):
    await queue.put_many("t", [b""] * 17)
    batch = await queue.take("t", 17)
    with pytest.raises(BatchTooLarge, match="results: got 17825792 bytes"):
        await queue.ack(batch, results=[bytes(MAX_BODY_BYTES)] * 17)
    assert set(await queue.ack(batch[:16], results=[bytes(MAX_BODY_BYTES)] * 16)) == {Result.ACKED}


async def test_acks_of_one_turn_keep_their_own_results(queue):
    await queue.put_many("t", [b""] * 20, ids=[str(n) for n in range(20)])
    batch = await queue.take("t", 20)
    acks = (
        queue.ack(message, result=message.id if int(message.id) % 2 else None) for message in batch
    )
    assert set(await asyncio.gather(*acks)) == {Result.ACKED}
    found = [(await queue.result("t", str(n))).result for n in range(20)]
    assert found == [str(n).encode() if n % 2 else None for n in range(20)]


async def test_wait_ends_with_the_result(queue):
    await queue.put("t", b"", id="1")
    made = await queue.put("t", b"")
    waits = [await waiting(queue, id_) for id_ in ("1", "1", made.id)]
    batch = await queue.take("t", 2)
    await queue.ack(batch, results=[message.id for message in batch])
    found = await asyncio.wait_for(asyncio.gather(*waits), LONG)
    assert [outcome.result for outcome in found] == [b"1", b"1", made.id.encode()]
    assert not queue._watchers.topics


@pytest.mark.parametrize("how", ["ack", "bury", "cancel", "exhaust", "expire"])
async def test_wait_ends_with_every_end(queue, how):
    await queue.configure("t", max_attempts=1)
    await queue.put("t", b"", id="1", ttl="200ms" if how == "expire" else None)
    wait = await waiting(queue, "1")
    if how == "cancel":
        await queue.cancel("t", "1")
    elif how != "expire":
        (message,) = await queue.take("t")
        if how == "ack":
            await queue.ack(message)
        elif how == "bury":
            await queue.bury(message, "because")
        else:
            await queue.release(message, error="failed")
    expected = {
        "ack": Outcome("done"),
        "bury": Outcome("dead", error="because"),
        "cancel": Outcome("gone"),
        "exhaust": Outcome("dead", error="failed"),
        "expire": Outcome("dead", error="expired"),
    }
    assert await asyncio.wait_for(wait, LONG) == expected[how]


async def test_wait_for_what_is_over_or_unknown_is_answered_at_once(queue):
    assert await asyncio.wait_for(queue.result("t", "1", wait="1h"), LONG) == Outcome("unknown")
    await queue.put("t", b"", id="1")
    await queue.bury(await queue.take("t"), "because")
    wait = queue.result("t", "1", wait="1h")
    assert await asyncio.wait_for(wait, LONG) == Outcome("dead", error="because")


async def test_wait_that_is_over_tells_where_the_message_is():
    clock = SimulatedClock()
    async with Queue(MemoryStore(clock)) as queue:
        await queue.put("t", b"", id="1", delay="1h")
        wait = await waiting(queue, "1", "10s")
        clock.advance(10_000)
        assert await asyncio.wait_for(wait, LONG) == Outcome("delayed")
        assert not queue._watchers.topics


async def test_message_that_is_replaced_is_waited_for_on(queue):
    await queue.put("t", b"", id="1", delay="1h")
    wait = await waiting(queue, "1")
    await queue.put("t", b"", id="1", on_conflict="replace")
    (message,) = await queue.take("t", wait=LONG)
    await queue.ack(message, result="of the second")
    assert (await asyncio.wait_for(wait, LONG)).result == b"of the second"


async def test_close_ends_waits(queue):
    await queue.put("t", b"", id="1")
    wait = await waiting(queue, "1")
    await queue.close()
    with pytest.raises(StoreClosed, match="closed while a result"):
        await asyncio.wait_for(wait, LONG)
    with pytest.raises(StoreClosed):
        await queue.result("t", "1", wait=1)


async def test_cancelled_wait_leaves_nothing(queue):
    await queue.put("t", b"", id="1")
    wait = await waiting(queue, "1")
    wait.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await wait
    assert not queue._watchers.topics


async def test_watchers_look_together_and_not_for_each_end(tmp_path):
    """A stream of acks of others costs those who wait few looks."""
    async with dwell.open(tmp_path / "store") as queue:
        await queue.put_many("t", [b""] * 300)
        await queue.put("t", b"", id="mine", delay="1h")
        waits = [await waiting(queue, "mine") for _ in range(20)]
        looks, real = [], queue.store.results

        async def results(topic, ids):
            looks.append(len(ids))
            return await real(topic, ids)

        queue.store.results = results
        loop = asyncio.get_running_loop()
        began = loop.time()
        for message in await queue.take("t", 300):
            await queue.ack(message)
        most = (loop.time() - began) / 0.005 + 10
        assert len(looks) <= most
        assert max(looks, default=20) == 20
        for wait in waits:
            wait.cancel()


def test_sync_face_waits_too(tmp_path):
    with dwell.open(tmp_path / "store") as queue:
        queue.put("t", b"", id="1")
        (message,) = queue.take("t")
        queue.ack(message, result=[1])
        assert queue.result("t", "1", wait="1s").json() == [1]


async def test_results_survive_a_reopening_and_a_snapshot(tmp_path):
    folder = tmp_path / "store"
    async with dwell.open(folder) as queue:
        await queue.put_many("t", [b""] * 3, ids=["1", "2", "3"])
        batch = await queue.take("t", 3)
        await queue.ack(batch, results=[b"r1", b"r2", None])
        await queue.put("t", b"", id="2", on_conflict="replace", delay="1h")
        await queue.store.compact()
    for _ in range(2):
        async with dwell.open(folder) as queue:
            assert [await queue.result("t", id_) for id_ in ("1", "2", "3")] == [
                Outcome("done", b"r1"),
                Outcome("delayed"),
                Outcome("done"),
            ]


async def test_results_move_with_their_segments_and_are_forgotten(tmp_path):
    """Old segments go though results lay in them, and results go when their time is over."""
    clock = SimulatedClock(1_700_000_000_000)
    store = EmbeddedStore(tmp_path / "store", clock=clock, segment_bytes=256 * 1024)
    async with Queue(store) as queue:
        await queue.configure("t", remember_ms=3_600_000)
        await queue.put("t", b"", id="kept")
        await queue.ack(await queue.take("t"), results=[b"x" * 1000])
        for _ in range(30):
            await queue.put_many("t", [b"y" * 10_000] * 10)
            await queue.ack(await queue.take("t", 10))
        for _ in range(3):
            await store.compact()
        assert min(store.core.journal.segments) > 0
        assert (await queue.result("t", "kept")).result == b"x" * 1000
        used = store.core.machine.table.used
        clock.advance(3_600_000)
        assert await queue.result("t", "kept") == Outcome("unknown")
        assert store.core.machine.table.used == used - 1


async def test_end_during_a_look_is_not_missed(queue):
    """The answer of a look may be older than the end that is told before it comes."""
    await queue.put("t", b"", id="1")
    receipts = (await queue.take("t")).receipts
    real = queue.store.results

    async def results(topic, ids):
        found = await real(topic, ids)
        queue.store.results = real
        # A small call of the queue would wait for this look.
        await queue.store.ack(receipts, [b"in between"])
        return found

    queue.store.results = results
    found = await asyncio.wait_for(queue.result("t", "1", wait="1h"), LONG)
    assert found.result == b"in between"


async def test_results_end_after_a_reopening_too(tmp_path):
    clock = SimulatedClock(1_700_000_000_000)
    async with Queue(EmbeddedStore(tmp_path / "store", clock=clock)) as queue:
        await queue.put("t", b"", id="1")
        await queue.ack(await queue.take("t"), results=["x"])
    store = EmbeddedStore(tmp_path / "store", clock=clock)
    async with Queue(store) as queue:
        assert (await queue.result("t", "1")).result == b"x"
        clock.advance(600_000)
        assert await queue.result("t", "1") == Outcome("unknown")
        assert store.core.machine.table.used == 0


@pytest.mark.parametrize("on_conflict", ["replace", "error"])
async def test_put_over_a_result_frees_its_row(tmp_path, on_conflict):
    """Two rows of one id would both have its entry, also after a start from a snapshot."""
    for life in range(3):
        async with dwell.open(tmp_path / "store") as queue:
            if life == 0:
                await queue.put("t", b"", id="1")
                await queue.ack(await queue.take("t"), results=["old"])
                await queue.put("t", b"new", id="1", on_conflict=on_conflict)
            assert queue.store.core.machine.table.used == 1
            assert (await queue.get("t", "1")).body == b"new"


async def test_many_who_wait_in_one_topic_look_seldom(monkeypatch):
    async with dwell.open("memory:") as queue:
        looked, look = 0, queue.store.results

        async def results(topic, ids):
            nonlocal looked
            looked += len(ids)
            return await look(topic, ids)

        monkeypatch.setattr(queue.store, "results", results)
        ids = [f"{number}" for number in range(1_000)]
        await queue.put_many("t", [b""] * len(ids), ids=ids)
        waits = [asyncio.create_task(queue.result("t", id_, wait=PATIENCE_S)) for id_ in ids]
        await until_async(lambda: len(queue._watchers.topics.get("t", ())) == len(ids))
        held = await queue.take("t", len(ids))
        for at in range(50):
            await queue.ack(held[at])
            for _ in range(40):
                # As long as a look of all of them takes.
                await asyncio.sleep(0)
        # A few looks of all of them follow the first ends at once.
        assert looked < 30 * len(ids)
        await queue.ack(held.picked(list(range(50, len(ids)))))
        outcomes = await asyncio.gather(*waits)
    assert {one.state for one in outcomes} == {"done"}
