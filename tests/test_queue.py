import asyncio
import contextlib

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import dwell
from dwell import Result, State
from dwell.batch.puts import Puts
from dwell.errors import InvalidHeaders
from dwell.given.rows import row_of
from dwell.message import MAX_EXTRA_BYTES
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore

NOW = 1_700_000_000_000


@contextlib.asynccontextmanager
async def opened(clock=None):
    """Give a queue in memory, with a clock that a test may move."""
    store = MemoryStore(clock or dwell.SimulatedClock(NOW))
    async with dwell.Queue(store) as queue, asyncio.timeout(60):
        yield queue


async def settle():
    """Let everything that can run now run to its end."""
    for _ in range(20):
        await asyncio.sleep(0)


# --- put --------------------------------------------------------------------------------------


def test_columns_refuse_key_and_headers_that_no_store_can_keep():
    row = row_of(b"x", NOW)
    largest = msgspec.structs.replace(row, extra=bytes(MAX_EXTRA_BYTES))
    assert len(Puts.of_rows("t", [row, largest])) == 2
    larger = msgspec.structs.replace(row, extra=bytes(MAX_EXTRA_BYTES + 1))
    with pytest.raises(InvalidHeaders, match=f"got {MAX_EXTRA_BYTES + 1} bytes"):
        Puts.of_rows("t", [row, larger])


@pytest.mark.parametrize("verb", ["put", "put_many"])
async def test_a_keyword_that_a_put_does_not_have_is_named(verb):
    """The functions behind have keywords of their own, and other names."""
    async with dwell.open("memory:") as queue:
        for word in ("dely", "named", "body", "now_ms"):
            with pytest.raises(TypeError, match=f"{verb}.*'{word}'"):
                await getattr(queue, verb)("t", [b"x"], **{word: 1})


async def test_a_message_is_taken_as_it_was_put():
    async with opened() as queue:
        put = await queue.put(
            "t",
            {"a": 1},
            id="x",
            priority=7,
            lease="5s",
            max_attempts=3,
            ttl="1h",
            key="k",
            headers={"h": "v"},
        )
        assert (put.id, put.result) == ("x", Result.CREATED)
        (message,) = await queue.take("t")
        assert message.number == put.number > 0
        assert message.json() == {"a": 1}
        assert (message.id, message.priority, message.max_attempts) == ("x", 7, 3)
        assert (message.key, message.headers, message.due_ms) == ("k", {"h": "v"}, NOW)
        assert message.lease_until_ms == NOW + 5_000
        assert message.expires_ms == NOW + 3_600_000


async def test_put_many_takes_one_value_or_one_for_each():
    async with opened() as queue:
        answer = await queue.put_many(
            "t",
            [b"a", "b"],
            ids=["x", "y"],
            due=np.array([NOW + 5, NOW + 9]),
            priority=[1, 2],
            lease=["1s", None],
            max_attempts=4,
            expires=[None, NOW + 50],
            key=["k", None],
            headers={"h": "v"},
        )
        assert [(put.id, put.result) for put in answer] == [
            ("x", Result.CREATED),
            ("y", Result.CREATED),
        ]
        first, second = await queue.get("t", ["x", "y"])
        assert (first.due_ms, first.priority, first.lease_ms) == (NOW + 5, 1, 1_000)
        assert (first.max_attempts, first.expires_ms, first.key) == (4, 0, "k")
        assert (second.due_ms, second.priority, second.lease_ms) == (NOW + 9, 2, 0)
        assert (second.max_attempts, second.expires_ms, second.key) == (4, NOW + 50, None)
        assert first.headers == second.headers == {"h": "v"}


@pytest.mark.parametrize(
    ("how", "due_ms"),
    [
        ({}, NOW),
        ({"delay": "1m"}, NOW + 60_000),
        ({"due": NOW + 7}, NOW + 7),
        ({"delay_level": 3}, NOW + 10_000),
    ],
)
async def test_when_a_message_falls_due(how, due_ms):
    async with opened() as queue:
        await queue.put("t", b"", id="one", **how)
        await queue.put_many("t", [b""], ids=["many"], **how)
        assert [message.due_ms for message in await queue.get("t", ["one", "many"])] == [due_ms] * 2


async def test_rows_count_from_when_they_are_put():
    clock = dwell.SimulatedClock(NOW)
    many = [
        row_of(b"spans", NOW, delay="5s", ttl="1m"),
        row_of(b"moments", NOW, due=NOW + 5_000, expires=NOW + 60_000),
    ]

    async with opened(clock) as queue:
        clock.advance(1_000)
        for rows in (many, many[:1]):
            answer = await queue.put_rows("t", rows, counted_ms=NOW)
            assert [put.result for put in answer] == [Result.CREATED] * len(rows)
        page = await queue.scan("t", "delayed")
        assert sorted(zip(page.messages.bodies, page.messages.due_ms - NOW, strict=True)) == [
            (b"moments", 5_000),
            (b"spans", 6_000),
            (b"spans", 6_000),
        ]
        assert set((page.messages.expires_ms - NOW).tolist()) == {60_000, 61_000}
        assert await queue.put_rows("t", []) == ()


@pytest.mark.parametrize("count", [1, 3])
async def test_rows_with_headers_that_no_layout_has_room_for_are_refused(count):
    rows = [row_of(b"x", NOW)] * count
    rows[-1] = replace(rows[-1], extra=bytes(MAX_EXTRA_BYTES + 1))
    async with opened() as queue:
        with pytest.raises(InvalidHeaders, match="expected at most 65535"):
            await queue.put_rows("t", rows)
        assert not (await queue.stats()).topics


async def test_a_row_alone_is_gathered_with_the_puts_of_others():
    async with opened() as queue:
        sizes, put = [], queue.store.put

        async def counted(puts, on_conflict):
            sizes.append(len(puts))
            return await put(puts, on_conflict)

        queue.store.put = counted
        await asyncio.gather(queue.put_rows("t", [row_of(b"x", NOW)]), queue.put("t", b"y"))
        assert sizes == [2]


@pytest.mark.parametrize("room", [1, 300, 1_000])
async def test_the_first_of_a_put_that_have_room_are_put_by_few_calls_of_the_store(room):
    async with opened() as queue:
        await queue.configure("t", max_pending=room)
        sizes, put = [], queue.store.put

        async def counted(puts, on_conflict):
            sizes.append(len(puts))
            return await put(puts, on_conflict)

        queue.store.put = counted
        puts = Puts.of_rows("t", [row_of(b"%d" % number, NOW) for number in range(1_000)])
        numbers, _ = await queue.put_fitting(puts)
        assert np.flatnonzero(numbers).tolist() == list(range(room))
        assert len(sizes) <= 70
        assert not (await queue.put_fitting(puts)).numbers.any()
        assert len(sizes) <= 70 + 11


async def test_conflicts():
    async with opened() as queue:
        assert (await queue.put("t", b"1", id="x")).result is Result.CREATED
        assert (await queue.put("t", b"2", id="x")).result is Result.KEPT
        assert (await queue.put("t", b"3", id="x", on_conflict="replace")).result is Result.REPLACED
        with pytest.raises(dwell.IdExists):
            await queue.put("t", b"4", id="x", on_conflict="error")
        assert (await queue.get("t", "x")).body == b"3"


async def test_empty_batches_are_answered_without_the_store():
    async with opened() as queue:
        assert list(await queue.put_many("t", [])) == []
        for verb in (queue.ack, queue.release, queue.touch, queue.bury):
            assert list(await verb([])) == []
            assert list(await verb(dwell.Batch.empty())) == []
        assert list(await queue.cancel("t", [])) == await queue.get("t", []) == []
        assert list(await queue.kick("t", [])) == list(await queue.kick("t")) == []


# --- verbs by receipt -------------------------------------------------------------------------


async def test_one_in_one_out_and_many_in_many_out():
    async with opened() as queue:
        await queue.put_many("t", [b""] * 6)
        batch = await queue.take("t", 6)
        assert await queue.ack(batch[0]) is Result.ACKED
        assert await queue.ack(batch[0].receipt) is Result.STALE
        assert await queue.ack([batch[1], batch[2]]) == [Result.ACKED] * 2
        assert await queue.ack([batch[2].receipt, batch[3].receipt]) == [Result.STALE, Result.ACKED]
        results = await queue.ack(batch)
        assert (results.count(Result.STALE), results.count(Result.ACKED)) == (4, 2)
        assert results[4] is Result.ACKED
        assert results[:2] == [Result.STALE] * 2
        assert repr(results) == "<Results of 6: 2 acked, 4 stale>"


async def test_messages_that_nobody_took_have_no_receipt():
    async with opened() as queue:
        await queue.put("t", b"", id="x")
        message = await queue.get("t", "x")
        for what in (message, [message], (await queue.scan("t", State.READY)).messages):
            with pytest.raises(dwell.InvalidReceipt, match="nobody took"):
                await queue.ack(what)


async def test_release_with_a_delay_the_retry_delay_and_not_counted():
    async with opened() as queue:
        await queue.configure("t", retry_delays_ms=[70_000])
        await queue.put_many("t", [b""] * 3, ids=["a", "b", "c"])
        a, b, c = await queue.take("t", 3)
        assert await queue.release(a, "5s", error="later") is Result.RELEASED
        assert await queue.release(b, retry=True) is Result.RELEASED
        assert await queue.release([c], counted=False) == [Result.RELEASED]
        a, b, c = await queue.get("t", ["a", "b", "c"])
        assert (a.due_ms, a.last_error, a.attempt) == (NOW + 5_000, "later", 1)
        assert (b.due_ms, b.attempt, c.due_ms, c.attempt) == (NOW + 70_000, 1, NOW, 0)


async def test_touch_and_bury():
    async with opened() as queue:
        await queue.put_many("t", [b""] * 2, ids=["a", "b"])
        a, b = await queue.take("t", 2)
        assert await queue.touch(a, "10m") is Result.TOUCHED
        assert await queue.touch([b]) == [Result.TOUCHED]
        assert (await queue.get("t", "a")).lease_until_ms == NOW + 600_000
        assert (await queue.get("t", "b")).lease_until_ms == NOW + 60_000
        assert await queue.bury(a, "broken") is Result.BURIED
        assert await queue.bury([b]) == [Result.BURIED]
        dead = (await queue.scan("t", "dead")).messages
        assert [message.last_error for message in dead] == ["broken", None]


# --- verbs by id ------------------------------------------------------------------------------


async def test_cancel_and_reschedule_tell_the_truth():
    async with opened() as queue:
        await queue.put_many("t", [b""] * 3, ids=["a", "b", "c"], delay=[0, 9, 9])
        await queue.take("t")
        assert await queue.cancel("t", "b") is Result.CANCELLED
        assert await queue.cancel("t", ["a", "b"]) == [Result.LEASED, Result.UNKNOWN]
        assert await queue.reschedule("t", "c", delay="1h") is Result.MOVED
        assert await queue.reschedule("t", ["c", "a"], due=[NOW + 1, NOW]) == [
            Result.MOVED,
            Result.LEASED,
        ]
        assert (await queue.get("t", "c")).due_ms == NOW + 1
        assert await queue.get("t", "b") is None


async def test_the_queues_own_ids_work_in_verbs_by_id():
    async with opened() as queue:
        put = await queue.put("t", b"x")
        assert put.id.startswith("~")
        assert (await queue.get("t", put.id)).body == b"x"
        assert await queue.cancel("t", put.id) is Result.CANCELLED


async def test_kick_brings_back_as_many_as_are_asked_for_however_large():
    async with opened() as queue:
        for _ in range(40):
            await queue.put("t", b"x" * 1_000_000)
        while len(batch := await queue.take("t", 40)):
            await queue.bury(batch)
        assert len(await queue.kick("t", limit=38)) == 38
        assert (await queue.stats()).topics["t"].dead == 2


async def test_verbs_by_id_leave_what_has_changed_since_a_page():
    async with opened() as queue:
        await queue.put_many("t", ["x"] * 4, ids=list("abcd"), delay="1m")
        page = await queue.scan("t", "delayed")
        versions = page.versions
        await queue.put("t", "y", id="a", on_conflict="replace", delay="2m")
        expected = [Result.UNKNOWN, Result.MOVED]
        assert (
            await queue.reschedule("t", ["a", "b"], delay="3m", versions=versions[:2]) == expected
        )
        seen = versions[[0, 2]].tolist()
        expected = [Result.UNKNOWN, Result.CANCELLED]
        assert await queue.cancel("t", ["a", "c"], versions=seen) == expected
        await queue.reschedule("t", "d", delay=0)
        await queue.bury((await queue.take("t"))[0])
        dead = (await queue.scan("t", "dead")).versions
        assert await queue.kick("t", ["d"], versions=dead + np.uint64(1)) == [Result.UNKNOWN]
        assert await queue.kick("t", ["d"], versions=dead) == [Result.KICKED]


async def test_a_verb_on_one_id_leaves_what_has_changed_since_a_page():
    async with opened() as queue:
        await queue.put("t", "x", id="a", delay="1m")
        old = (await queue.scan("t", "delayed")).versions
        await queue.put("t", "y", id="a", on_conflict="replace", delay="2m")
        assert await queue.reschedule("t", "a", delay=0, versions=old) is Result.UNKNOWN
        assert await queue.cancel("t", "a", versions=old) is Result.UNKNOWN
        new = (await queue.scan("t", "delayed")).versions
        assert await queue.reschedule("t", "a", delay=0, versions=new.tolist()) is Result.MOVED
        await queue.bury((await queue.take("t"))[0])
        dead = (await queue.scan("t", "dead")).versions
        assert await queue.kick("t", "a", versions=new) is Result.UNKNOWN
        with pytest.raises(dwell.InvalidInput, match="versions: got them without ids"):
            await queue.kick("t", versions=dead)
        with pytest.raises(dwell.InvalidInput, match="versions: got 2 values, expected 1"):
            await queue.cancel("t", "a", versions=[1, 2])
        assert await queue.kick("t", "a", delay="1m", versions=dead) is Result.KICKED
        assert (await queue.get("t", "a")).state is dwell.State.DELAYED
        newest = (await queue.scan("t", "delayed")).versions
        assert await queue.cancel("t", "a", versions=newest) is Result.CANCELLED


@pytest.mark.parametrize("versions", [[1], [1, 2, 3], ["x", "y"], [-1, 2], [2**64, 1], "ab", 7])
async def test_bad_versions_are_refused(versions):
    async with opened() as queue:
        await queue.put_many("t", ["x"] * 2, ids=["a", "b"])
        for verb in (queue.cancel, queue.kick):
            with pytest.raises(dwell.InvalidInput, match="versions"):
                await verb("t", ["a", "b"], versions=versions)
        assert (await queue.stats()).topics["t"].ready == 2


async def test_kick_by_id_and_the_oldest_dead():
    async with opened() as queue:
        ids = ["a", "b", "c", "d"]
        await queue.put_many("t", [b""] * 4, ids=ids, due=[NOW - 4, NOW - 3, NOW - 2, NOW - 1])
        await queue.bury(await queue.take("t", 4))
        assert await queue.kick("t", "d", delay="1m") is Result.KICKED
        assert await queue.kick("t", ["d"]) == [Result.UNKNOWN]
        assert await queue.kick("t", limit=2) == [Result.KICKED] * 2
        states = [message.state for message in await queue.get("t", ids)]
        assert states == [State.READY, State.READY, State.DEAD, State.DELAYED]


async def test_kick_each_to_a_due_or_after_a_delay_of_its_own():
    async with opened() as queue:
        ids = ["a", "b", "c", "d"]
        await queue.put_many("t", [b""] * 4, ids=ids)
        await queue.bury(await queue.take("t", 4))
        assert await queue.kick("t", ["a", "b"], delay=["1m", 0]) == [Result.KICKED] * 2
        kicked = await queue.kick("t", ["c", "a"], due=[NOW + 5, NOW + 6])
        assert kicked == [Result.KICKED, Result.UNKNOWN]
        assert await queue.kick("t", "d", due=NOW - 1) is Result.KICKED
        dues_ms = [message.due_ms for message in await queue.get("t", ids)]
        assert dues_ms == [NOW + 60_000, NOW, NOW + 5, NOW]
        for bad in ({"delay": [1]}, {"due": [NOW] * 3}, {"delay": 1, "due": NOW}):
            with pytest.raises(dwell.InvalidInput):
                await queue.kick("t", ["a", "b"], **bad)


# --- reading and settings ---------------------------------------------------------------------


async def test_pages_yield_everything_once():
    async with opened() as queue:
        await queue.put_many("t", [b""] * 25, delay=np.arange(1, 26))
        pages = [page async for page in queue.pages("t", limit=10)]
        assert [len(page) for page in pages] == [10, 10, 5]
        due_ms = [message.due_ms for page in pages for message in page]
        assert due_ms == [NOW + 1_000 * n for n in range(1, 26)]
        assert [page async for page in queue.pages("t", "dead")] == []


async def test_held_events_and_stats():
    async with opened() as queue:
        await queue.put_many("t", [b""] * 3)
        await queue.take("t", 2, owner="me")
        held = await queue.held("me")
        assert len(held) == 2
        assert await queue.ack(held) == [Result.ACKED] * 2
        page = await queue.events(3, limit=2)
        assert [str(event.kind) for event in page.events] == ["take", "take"]
        assert (await queue.events(page.next_position)).events[0].kind is dwell.Kind.ACK
        assert (await queue.stats()).topics["t"] == dwell.TopicStats(ready=1)


async def test_configure_merges_and_returns_what_holds():
    async with opened() as queue:
        await queue.configure("t", lease_ms=5)
        settings = await queue.configure("t", paused=True)
        assert (settings.lease_ms, settings.paused) == (5, True)
        assert await queue.settings("t") == settings
        assert await queue.settings("other") == dwell.TopicSettings()


# --- time and lifetime ------------------------------------------------------------------------


async def test_the_ticker_makes_messages_due_and_ends_leases():
    clock = dwell.SimulatedClock(NOW)

    async with opened(clock) as queue:
        await queue.put("t", b"x", delay="10s", lease="5s")
        taker = asyncio.create_task(queue.take("t", wait="1h"))
        await settle()
        clock.advance(9_999)
        await settle()
        assert not taker.done()
        clock.advance(1)
        (message,) = await taker
        assert message.attempt == 1
        taker = asyncio.create_task(queue.take("t", wait="1h"))
        await settle()
        clock.advance(5_000)
        assert (await taker)[0].attempt == 2


async def test_a_nearer_deadline_shortens_the_sleep():
    clock = dwell.SimulatedClock(NOW)

    async with opened(clock) as queue:
        await queue.put("t", b"later", delay="50s")
        taker = asyncio.create_task(queue.take("t", wait="1h"))
        await settle()
        await queue.put("t", b"sooner", delay="2s")
        await settle()
        clock.advance(2_000)
        assert (await taker)[0].body == b"sooner"


async def test_a_clock_that_jumps_forward_is_noticed_within_a_minute():
    class Jumping(dwell.SimulatedClock):
        jump_ms = 0

        def now_ms(self):
            return super().now_ms() + self.jump_ms

    clock = Jumping(NOW)

    async with opened(clock) as queue:
        await queue.put("t", b"x", delay="30d")
        taker = asyncio.create_task(queue.take("t", wait="60d"))
        await settle()
        clock.jump_ms = 31 * 24 * 3_600_000
        clock.advance(60_000)
        assert len(await taker) == 1


async def test_every_verb_says_that_the_queue_is_closed():
    queue = dwell.Queue(MemoryStore(dwell.SimulatedClock(NOW)))
    for _ in range(2):
        receipt = f"{queue.store.number:08x}" + "0" * 24
        calls = [
            queue.put("t", b""),
            queue.put_many("t", [b""]),
            queue.take("t"),
            queue.ack(receipt),
            queue.ack([receipt]),
            queue.cancel("t", "a"),
            queue.cancel("t", ["a"]),
            queue.kick("t"),
            queue.get("t", "a"),
            queue.held("o"),
            queue.scan("t", "dead"),
            queue.events(),
            queue.stats(),
            queue.configure("t", paused=True),
            queue.settings("t"),
        ]
        for call in calls:
            with pytest.raises(dwell.StoreClosed):
                await call
        await queue.open()
        await queue.close()
        await queue.close()


async def test_close_answers_what_was_asked():
    queue = dwell.Queue(MemoryStore(dwell.SimulatedClock(NOW)))
    await queue.open()
    put = asyncio.create_task(queue.put("t", b""))
    await asyncio.sleep(0)
    await queue.close()
    assert (await put).result is Result.CREATED


class _Slow(MemoryStore):
    """A store that answers a few turns of the event loop after it has leased."""

    async def take_ids(self, *args):
        batch = await super().take_ids(*args)
        for _ in range(3):
            await asyncio.sleep(0)
        return batch


@pytest.mark.parametrize("store", [EmbeddedStore, lambda _: _Slow(dwell.RealClock())])
async def test_messages_taken_by_id_are_given_back_when_the_call_is_cancelled(tmp_path, store):
    async with dwell.Queue(store(tmp_path / "queue")) as queue:
        await queue.put("t", "x", id="a")
        for turns in range(30):
            task = asyncio.create_task(queue.take_ids("t", "a"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            (answer,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(answer, BaseException):
                assert (await queue.stats()).topics["t"].leased == 0
            else:
                await queue.release(answer, counted=False)
        (message,) = await queue.take_ids("t", "a")
        assert message.attempt == 1


async def test_a_store_that_is_opened_again_refuses_receipts_of_before():
    store = MemoryStore(dwell.SimulatedClock(NOW))
    receipts = []
    for _ in range(2):
        async with dwell.Queue(store) as queue:
            await queue.put("t", "x")
            receipts.append((await queue.take("t"))[0].receipt)
            if len(receipts) == 2:
                with pytest.raises(dwell.errors.ForeignReceipt):
                    await queue.ack(receipts[0])
                assert await queue.ack(receipts[1]) is Result.ACKED
