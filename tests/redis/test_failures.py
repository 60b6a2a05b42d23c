"""What happens to verbs when the engine goes away, hangs, is full, or is not ours."""

import asyncio
import contextlib
import time

import numpy as np
import pytest

import dwell
from dwell import Result, State
from dwell.store.redis.engine import Engine, check_facts
from dwell.store.redis.limits import Limits
from tests.http.between import between
from tests.redis.calls import call_of
from tests.redis.servers import redis_cluster, redis_sentinel, redis_server
from tests.server.certificates import make_certificate

pytestmark = pytest.mark.campaign

ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
RESTS = ("put", "put own", "take", "ack", "release", "bury", "kick", "cancel", "reschedule")


async def whole(queue: dwell.Queue) -> dict[str, int]:
    """Return the counts of a topic, and see that no part of the store knows more than another."""
    assert await queue.find_stale() == []
    of = (await queue.stats()).topics.get("t", dwell.TopicStats())
    return {"delayed": of.delayed, "ready": of.ready, "leased": of.leased, "dead": of.dead}


def counts(**given: int) -> dict[str, int]:
    return {"delayed": 0, "ready": 0, "leased": 0, "dead": 0} | given


#: What a busy machine may add; what hangs takes twice as long, or for ever.
BUSY_S = 5


@contextlib.contextmanager
def within(least: float, most: float):
    """See that something takes about as long as it should."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert least <= took <= most + BUSY_S, f"it took {took:.2f} s"


# --- functions ------------------------------------------------------------------------------------


async def test_functions_that_were_flushed_are_loaded_again():
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            for verb in RESTS * 2:
                assert server.ask("FUNCTION", "FLUSH", "SYNC")
                await (await asked_of(queue, verb))()
                server.ask("FLUSHALL")
            # A large block, which travels beside the call, comes with the second as well.
            assert server.ask("FUNCTION", "FLUSH", "SYNC")
            await queue.put_many("t", ["x" * 200] * 64)
            assert len(await queue.take("t", 100)) == 64


@pytest.mark.parametrize("shards", [1, 4])
async def test_verbs_that_add_no_message_go_on_when_memory_is_full(shards):
    with redis_server(maxmemory="100mb", maxmemory_policy="noeviction") as server:
        async with dwell.open(server.url, shards=shards) as queue:
            ids = [f"i{n}" for n in range(20)]
            await queue.put_many("later", ["x"] * 20, ids=ids, delay="1h")
            await queue.put_many("dead", ["x"] * 20, ids=ids)
            assert len(await queue.bury(await queue.take("dead", 20))) == 20
            server.ask("CONFIG", "SET", "maxmemory", "1mb")
            with pytest.raises(dwell.StoreFull):
                await queue.put("t", "x")
            assert set(await queue.kick("dead", ids)) == {Result.KICKED}
            assert set(await queue.reschedule("later", ids, delay=0)) == {Result.MOVED}
            assert (await queue.configure("t", max_attempts=3)).max_attempts == 3
            assert len((await queue.events(0, 1_000)).events) == 120
            taken = await queue.take(["dead", "later"], 100)
            assert len(taken) == 40
            assert set(await queue.ack(taken)) == {Result.ACKED}


async def test_a_full_memory_that_keeps_the_library_out_is_told():
    with redis_server(maxmemory="6mb", maxmemory_policy="noeviction") as server:
        async with dwell.open(server.url) as queue:
            put = await fill(queue, 50, b"x" * 500)
            assert server.ask("FUNCTION", "FLUSH", "SYNC")
            # The library's own memory is free now, so that the limit has to come down.
            assert server.ask("CONFIG", "SET", "maxmemory", "1mb")
            with within(0, 2), pytest.raises(dwell.StoreFull, match="FUNCTION LOAD"):
                await queue.take("t", 10_000)
            server.ask("CONFIG", "SET", "maxmemory", "12mb")
            assert len(await queue.take("t", 10_000)) == put


async def test_functions_that_are_flushed_all_the_while_are_loaded_all_the_while():
    with redis_cluster() as cluster:
        async with dwell.open(cluster.url, shards=3) as queue:

            def flush() -> None:
                for node in cluster.masters:
                    node.ask("FUNCTION", "FLUSH")

            ids = [str(at) for at in range(100)]
            await queue.put_many("t", ids, ids=ids)
            seen: list[str] = []
            while len(seen) < len(ids):
                flush()
                taken = await queue.take("t", 7, wait=1)
                seen.extend(taken.ids)
                flush()
                await queue.ack(taken)
            assert sorted(seen) == sorted(ids)


async def test_a_library_that_is_gone_right_after_it_was_loaded_is_loaded_again(monkeypatch):
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            load, left = Engine._load, 3

            async def load_and_lose(engine):
                nonlocal left
                await load(engine)
                if left:
                    left -= 1
                    server.ask("FUNCTION", "FLUSH")

            monkeypatch.setattr(Engine, "_load", load_and_lose)
            server.ask("FUNCTION", "FLUSH")
            assert (await queue.put("t", "x", id="x")).result is Result.CREATED
            # A tick that loaded it at the right moment may have saved the put a round.
            while left:
                server.ask("FUNCTION", "FLUSH")
                assert (await queue.put("t", "x", id="x")).result is Result.KEPT
            assert len(await queue.take("t", 2)) == 1


async def test_stores_in_one_engine_share_no_settings():
    with redis_server() as server:
        for most in (1, 2, 3):
            async with dwell.open(server.url, prefix=f"store{most}") as queue:
                await queue.configure("t", max_attempts=most)
        for most in (3, 1, 2):
            async with dwell.open(server.url, prefix=f"store{most}") as queue:
                await queue.put("t", "x")
                for attempt in range(1, most + 1):
                    (message,) = await queue.take("t")
                    last = Result.BURIED if attempt == most else Result.RELEASED
                    assert await queue.release(message) is last


async def test_stores_in_one_engine_share_no_fronts():
    with redis_server() as server:
        async with (
            dwell.open(server.url, prefix="one") as one,
            dwell.open(server.url, prefix="two") as two,
        ):
            for queue in (one, two):
                await queue.configure("t", ordered=True)
            for queue, others in ((one, 0), (two, 5)):
                # Its numbers are others than those of the other store.
                for _ in range(others):
                    await queue.put("t", "x")
                await queue.put("t", "x", key="k")
                assert len(await queue.take("t", 10)) == others + 1
            for queue in (one, two, one):
                await queue.put("t", "y", key="k")
                assert not len(await queue.take("t", 10))


async def test_instances_with_other_limits_share_one_library():
    with redis_server() as server:
        for options in ({}, {"packed": 2}, {"max_events": 7}, {"limits": Limits(loose=3)}):
            async with dwell.open(server.url, **options) as queue:
                await queue.put_many("t", ["x"] * 20)
        assert len(server.ask("FUNCTION", "LIST")) == 1


@pytest.mark.parametrize("command", ["FCALL", "FUNCTION"])
async def test_an_engine_without_functions_is_told_what_it_lacks(command):
    with redis_server(rename_command=f'{command} ""') as server:
        with within(0, 1), pytest.raises(dwell.StoreError, match="no functions") as caught:
            async with dwell.open(server.url):
                pass
        assert len(str(caught.value)) < 300


# --- an answer that is lost -----------------------------------------------------------------------


async def asked_of(queue: dwell.Queue, verb: str):
    """Prepare a verb; return what asks for it and sees that the answer is what was done."""
    if verb == "put":
        return lambda: put_and_see(queue, None)
    if verb == "put own":
        return lambda: put_and_see(queue, ["a", "b", "c"])
    await queue.put_many("t", ["a", "b", "c"], ids=["a", "b", "c"])
    if verb == "take":
        return lambda: take_and_see(queue)
    if verb == "cancel":
        return lambda: by_id(queue.cancel("t", ["a", "x"]), Result.CANCELLED, queue, ready=2)
    if verb == "reschedule":
        due_ms = queue.clock.now_ms() + 60_000
        moved = queue.reschedule("t", ["a", "x"], due=due_ms)
        return lambda: by_id(moved, Result.MOVED, queue, ready=2, delayed=1)
    taken = await queue.take("t", 3)
    if verb == "ack":
        return lambda: all_of(queue.ack(taken), Result.ACKED, queue)
    if verb == "release":
        return lambda: all_of(queue.release(taken, delay=0), Result.RELEASED, queue, ready=3)
    if verb == "bury":
        return lambda: all_of(queue.bury(taken, "no"), Result.BURIED, queue, dead=3)
    await queue.bury(taken, "no")
    return lambda: by_id(queue.kick("t", ["a", "x"]), Result.KICKED, queue, ready=1, dead=2)


async def put_and_see(queue: dwell.Queue, ids) -> None:
    answer = await queue.put_many("t", ["a", "b", "c"], ids=ids)
    assert [put.result for put in answer] == [Result.CREATED] * 3
    assert await whole(queue) == counts(ready=3)
    assert [m.body for m in await queue.get("t", list(answer.ids))] == [b"a", b"b", b"c"]


async def take_and_see(queue: dwell.Queue) -> None:
    taken = await queue.take("t", 2)
    assert [(m.id, m.body, m.attempt) for m in taken] == [("a", b"a", 1), ("b", b"b", 1)]
    assert await whole(queue) == counts(ready=1, leased=2)
    assert list(await queue.ack(taken)) == [Result.ACKED] * 2


async def by_id(verb, result: Result, queue: dwell.Queue, **then: int) -> None:
    assert list(await verb) == [result, Result.UNKNOWN]
    assert await whole(queue) == counts(**then)


async def all_of(verb, result: Result, queue: dwell.Queue, **then: int) -> None:
    assert list(await verb) == [result] * 3
    assert await whole(queue) == counts(**then)


@pytest.mark.parametrize(("how", "packed"), [("mute", 8), ("mute", 1), ("part", 8), ("cut", 8)])
async def test_a_verb_whose_answer_is_lost_is_done_once_and_answered_truly(how, packed):
    with redis_server() as server:
        async with between(server.url) as wire:
            for verb in RESTS:
                options = {"prefix": verb, "packed": packed}
                async with dwell.open(wire.url, **options) as queue:
                    await (await asked_of(queue, verb))()
                server.ask("FLUSHALL")
                for lost in (1, 3):
                    async with dwell.open(wire.url, **options) as queue:
                        asked = await asked_of(queue, verb)
                        wire.break_(how, lost, call_of(verb.split()[0]))
                        await asked()
                        assert wire.how == "pass", f"{verb} was not cut"
                    server.ask("FLUSHALL")


async def test_a_large_put_whose_answer_is_lost_is_done_once():
    bodies = [bytes([at % 256]) * 3000 for at in range(200)]
    with redis_server() as server:
        async with between(server.url) as wire, dwell.open(wire.url) as queue:
            await queue.put_many("warm", bodies)
            for how in ("mute", "part", "cut"):
                wire.break_(how, 1, call_of("put"))
                answer = await queue.put_many("t", bodies)
                assert wire.how == "pass"
                assert [m.body for m in await queue.get("t", list(answer.ids))] == bodies
            assert await whole(queue) == counts(ready=600)


async def test_answers_are_given_again_over_four_shards():
    ids = [f"id-{at}" for at in range(40)]
    with redis_server() as server:
        async with (
            between(server.url) as wire,
            dwell.open(wire.url, shards=4) as queue,
        ):
            # The first time, connections are made.
            await queue.put_many("t", ids, ids=ids)
            await queue.ack(await queue.take("t", 40))
            wire.break_("mute", 4, call_of("put"))
            answer = await queue.put_many("t", ids, ids=[f"{id_}+" for id_ in ids])
            assert {put.result for put in answer} == {Result.CREATED}
            assert wire.how == "pass"
            wire.break_("mute", 4, call_of("take"))
            taken = await queue.take("t", 40)
            assert {message.id for message in taken} == set(answer.ids)
            assert wire.how == "pass"
            wire.break_("mute", 4, call_of("ack"))
            assert set(await queue.ack(taken)) == {Result.ACKED}
            assert wire.how == "pass"
            assert await whole(queue) == counts()


@pytest.mark.parametrize("verb", ["put", "take", "cancel"])
async def test_a_request_that_comes_after_its_repetition_does_nothing(verb):
    """The network may hold back what was sent, until after the verb was repeated and answered."""

    with redis_server() as server:
        async with between(server.url) as wire, dwell.open(wire.url, timeout=2) as queue:
            # The first time, connections are made.
            warm = await queue.put("warm", "x")
            await queue.take("warm")
            await queue.cancel("warm", warm.id)
            await queue.put_many("t", ["a", "b"], ids=["a", "b"])
            wire.break_("late", 1, call_of(verb))
            if verb == "put":
                await queue.put("t", "c")
            elif verb == "take":
                assert [message.id for message in await queue.take("t")] == ["a"]
            else:
                assert await queue.cancel("t", "a") is Result.CANCELLED
                assert (await queue.put("t", "a", id="a")).result is Result.CREATED
            before = await whole(queue)
            wire.let_go.set()
            await asyncio.sleep(0.2)
            assert await whole(queue) == before


# --- an engine that goes away ---------------------------------------------------------------------


class Load:
    """Puts, takes and acks, all the time, and sees that each answer is true."""

    def __init__(self, queue: dwell.Queue) -> None:
        self._queue = queue
        self._stopping = self._is_all_put = False
        self.put: list[str] = []
        self.taken: list[str] = []

    async def run(self, seconds: float, meanwhile) -> None:
        """Work while something happens, and for some time after it; then take all that is left."""
        tasks = [asyncio.create_task(part) for part in (self._puts(1), self._puts(20))]
        takes = [asyncio.create_task(self._takes(limit)) for limit in (1, 30)]
        await meanwhile
        await asyncio.sleep(seconds)
        self._stopping = True
        await asyncio.gather(*tasks)
        self._is_all_put = True
        await asyncio.gather(*takes)

    async def _puts(self, size: int) -> None:
        while not self._stopping:
            answer = await self._queue.put_many("t", ["body"] * size)
            assert {put.result for put in answer} == {Result.CREATED}
            self.put += answer.ids
            await asyncio.sleep(0.002)

    async def _takes(self, limit: int) -> None:
        while True:
            was_all_put = self._is_all_put
            taken = await self._queue.take("t", limit)
            self.taken += [message.id for message in taken]
            assert {message.attempt for message in taken} <= {1}
            if taken:
                assert set(await self._queue.ack(taken)) == {Result.ACKED}
            elif was_all_put:
                return
            else:
                await asyncio.sleep(0.002)

    async def check(self) -> None:
        """See that what was answered is what was done."""
        assert sorted(self.put) == sorted(self.taken)
        assert await whole(self._queue) == counts()
        totals = (await self._queue.stats()).totals
        done = {"put": len(self.put), "take": len(self.put), "ack": len(self.put)}
        assert totals == done


async def test_verbs_wait_for_an_engine_that_is_killed_and_started_again():
    with redis_server(**ALWAYS) as server:
        async with dwell.open(server.url) as queue:

            async def restarts() -> None:
                for pause in (0.1, 0.0, 0.4):
                    await asyncio.sleep(0.3)
                    server.kill()
                    await asyncio.sleep(pause)
                    await asyncio.to_thread(server.start)

            load = Load(queue)
            await load.run(0.3, restarts())
            await load.check()
            assert len(load.put) > 100


async def test_verbs_that_met_an_engine_that_hung_are_done_once():
    with redis_server() as server:
        async with dwell.open(server.url, timeout=4) as queue:

            async def hangs() -> None:
                for _ in range(2):
                    await asyncio.sleep(0.2)
                    server.stop()
                    # Longer than half of the time-out, after which a verb tries again.
                    await asyncio.sleep(2.6)
                    server.cont()

            load = Load(queue)
            await load.run(0.2, hangs())
            await load.check()
            assert len(load.put) > 100


async def test_nobody_there_is_said_after_the_time_out():
    with redis_server() as server:
        url = server.url
    unreachable = pytest.raises(dwell.ServerUnreachable, match=r"redis://127.0.0.1:\d+: .*Conn")
    for timeout in (0.3, 2):
        with within(0.5 * timeout, timeout + 1), unreachable:
            async with dwell.open(url, timeout=timeout):
                pass


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_no_verb_waits_much_longer_than_the_time_out(how):
    with redis_server() as server:
        async with dwell.open(server.url, timeout=1, connections=4) as queue:
            await queue.put("t", "x")
            taken = await queue.take("t")
            waiting = asyncio.create_task(queue.take("other", wait=60))
            await asyncio.sleep(0.1)
            getattr(server, how)()
            verbs = [queue.ack(taken), queue.take("t"), queue.stats(), queue.settings("t")]
            # More than there are connections: the time in line counts, too.
            verbs += [queue.put("t", "x", id=str(at), on_conflict="error") for at in range(20)]
            verbs += [queue.cancel("t", str(at)) for at in range(20)]
            with within(0.5, 2.5):
                answers = await asyncio.gather(*verbs, return_exceptions=True)
            assert {type(answer) for answer in answers} == {dwell.ServerUnreachable}
            # Who waits for a message is told, too, that nobody looks for one.
            with within(0, 4), pytest.raises(dwell.ServerUnreachable):
                await waiting
            server.start() if how == "kill" else server.cont()
            await queue.put("t", "y")


async def test_close_does_not_hang_on_an_engine_that_hangs():
    with redis_server() as server:
        async with dwell.open(server.url, timeout=1) as queue:
            await queue.put("t", "x")
            server.stop()
            closing = time.monotonic()
        assert time.monotonic() - closing < 3 + BUSY_S


async def test_a_verb_that_is_cancelled_leaves_the_queue_usable():
    with redis_server() as server:
        async with dwell.open(server.url, timeout=5, connections=2) as queue:
            await queue.put("t", "x", id="x")
            server.stop()
            for _ in range(10):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(queue.settings("t"), 0.02)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(queue.cancel("t", "nobody"), 0.02)
            server.cont()
            with within(0, 1):
                assert (await queue.get("t", ["x"]))[0].body == b"x"
                assert await whole(queue) == counts(ready=1)


# --- an engine that refuses -----------------------------------------------------------------------


async def test_a_cancellation_that_the_client_loses_is_not_lost():
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            await queue.put("t", "x", delay="1h")
            client = queue.store.shards.engine._client
            execute = client.execute_command

            async def losing(*command, **how):
                answer = await execute(*command, **how)
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                return answer

            client.execute_command = losing
            asking = asyncio.ensure_future(queue.stats())
            with pytest.raises(asyncio.CancelledError):
                await asking
            client.execute_command = execute
            assert await whole(queue) == counts(delayed=1)


async def test_a_wrong_password_is_refused_at_once():
    with redis_server(requirepass="opensesame") as server:
        server.ask("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+info")
        place = f"127.0.0.1:{server.port}"
        for login in ("", ":wrongpass@", "nobody:wrongpass@", "reader:secret@"):
            with within(0, 1), pytest.raises(dwell.AccessDenied) as caught:
                async with dwell.open(f"redis://{login}{place}"):
                    pass
            assert place in str(caught.value)
            assert "wrongpass" not in str(caught.value)
        # One who may not publish would be stopped in the middle of a verb.
        server.ask("ACL", "SETUSER", "deaf", "on", ">secret", "~dwell:*", "+@all")
        with within(0, 1), pytest.raises(dwell.AccessDenied, match="channel"):
            async with dwell.open(f"redis://deaf:secret@{place}"):
                pass
        server.ask("ACL", "SETUSER", "deaf", "&dwell:*")
        async with dwell.open(f"redis://deaf:secret@{place}") as queue:
            await queue.put("t", "x")
        async with dwell.open(server.url) as queue:
            await queue.put("t", "x")
            server.ask("ACL", "SETUSER", "default", "-fcall")
            with within(0, 1), pytest.raises(dwell.AccessDenied):
                await queue.put("t", "x")


async def test_a_wrong_password_is_refused_at_once_by_a_cluster_and_sentinels():
    with redis_cluster(1, requirepass="opensesame") as cluster:
        url = cluster.url.replace(":opensesame@", ":wrongpass@")
        with within(0, 2), pytest.raises(dwell.AccessDenied):
            async with dwell.open(url):
                pass
        async with dwell.open(cluster.url) as queue:
            await queue.put("t", "x")
    with redis_sentinel() as watched:
        watched.master().ask("CONFIG", "SET", "requirepass", "opensesame")
        with within(0, 2), pytest.raises(dwell.AccessDenied):
            async with dwell.open(watched.url.replace("://", "://:wrongpass@")):
                pass


async def fill(queue: dwell.Queue, size: int, body: bytes) -> int:
    """Put until the engine is full; return how many were put."""
    put = 0

    async def put_all() -> None:
        nonlocal put
        for at in range(10_000):
            await queue.put_many("t", [body] * size, ids=[f"{at}-{of}" for of in range(size)])
            put += size

    # What was to be put is not for logs.
    clear = r"redis://[\d.:]+: command not allowed .* \(OOM: .* nothing was put$"
    with pytest.raises(dwell.StoreFull, match=clear):
        await put_all()
    return put


@pytest.mark.parametrize(("size", "body"), [(1, b"x" * 5000), (50, b"x" * 100), (50, b"x" * 2000)])
async def test_a_full_memory_refuses_puts_and_lets_takes_and_acks_make_room(size, body):
    with redis_server(maxmemory="6mb", maxmemory_policy="noeviction") as server:
        async with dwell.open(server.url) as queue:
            put = await fill(queue, size, body)
            assert put > 0
            done = 0
            while taken := await queue.take("t", 200):
                assert set(await queue.ack(taken)) == {Result.ACKED}
                done += len(taken)
            assert done == put, "a put that was refused is there, or one that was not is gone"
            await queue.put_many("t", [body] * size)
            assert await whole(queue) == counts(ready=size)


async def test_a_put_in_parts_says_how_many_were_put_before_the_memory_was_full():
    """Messages that expire lie in no blocks, so 1,000 of them are not put in one call."""

    with redis_server(maxmemory="6mb", maxmemory_policy="noeviction") as server:
        async with dwell.open(server.url) as queue:
            there, told = 0, ""
            while "all the same" not in told:
                try:
                    there += len(await queue.put_many("t", ["x" * 100] * 1000, ttl="1h"))
                except dwell.StoreFull as error:
                    told = str(error)
                    if "all the same" not in told:
                        # It was the first part that was too much: now there is room for it.
                        there -= len(await queue.ack(await queue.take("t", 450)))
            before = int(told.split("; ")[-1].split()[0])
            assert before in (200, 400, 600, 800)
            assert await whole(queue) == counts(ready=there + before)


async def test_a_full_memory_lets_everybody_look():
    with redis_server(maxmemory="6mb", maxmemory_policy="noeviction") as server:
        async with dwell.open(server.url) as queue:
            put = await fill(queue, 1, b"x" * 5000)
            server.ask("CONFIG", "SET", "maxmemory", "3mb")
            assert await whole(queue) == counts(ready=put)
            assert (await queue.get("t", ["0-0"]))[0].id == "0-0"
            assert len(await queue.peek("t", 3)) == 3
            assert len((await queue.scan("t", State.READY, limit=3)).messages) == 3
            assert (await queue.events(0, 3)).events
            taken = await queue.take("t", 10, owner="me")
            assert len(await queue.held("me")) == 10
            assert set(await queue.bury(taken[:5])) == {Result.BURIED}
            assert set(await queue.touch(taken[5:], "10s")) == {Result.TOUCHED}
            assert set(await queue.release(taken[5:])) == {Result.RELEASED}
            assert await queue.cancel("t", "50-0") is Result.CANCELLED


async def test_a_worker_can_start_while_the_memory_is_full():
    with redis_server(maxmemory="6mb", maxmemory_policy="noeviction") as server:
        async with dwell.open(server.url) as queue:
            await fill(queue, 1, b"x" * 5000)
        server.ask("CONFIG", "SET", "maxmemory", "3mb")
        async with dwell.open(server.url) as queue:
            taken = await queue.take("t", 10)
            assert set(await queue.ack(taken)) == {Result.ACKED}


async def test_an_engine_that_would_drop_messages_is_refused():
    with redis_server(maxmemory="100mb", maxmemory_policy="allkeys-lru") as server:
        policy = r"maxmemory-policy: got allkeys-lru, expected noeviction"
        with pytest.raises(dwell.InvalidInput, match=policy):
            async with dwell.open(server.url):
                pass
        server.ask("CONFIG", "SET", "maxmemory", 0)
        async with dwell.open(server.url) as queue:
            await queue.put("t", "x")


@pytest.mark.parametrize("version", ["6.2.14", "5.0.0", "2.8.4"])
def test_an_engine_that_is_too_old_is_refused(version):
    with pytest.raises(dwell.StoreError, match=f"Redis {version}: expected 7.0 or later"):
        check_facts([{"redis_version": "7.2.4"}, {"redis_version": version}])


def test_engines_that_can_keep_a_store_are_not_refused():
    facts = {"redis_version": "7.0.15", "maxmemory": 0, "maxmemory_policy": "allkeys-lru"}
    check_facts([facts, {"redis_version": "10.0.0", "maxmemory": 5}])


async def test_a_certificate_that_is_not_trusted_is_said(tmp_path):
    cert, key = make_certificate(tmp_path)
    with redis_server(tls=(cert, key)) as server:
        async with dwell.open(server.url, ca=str(cert)) as queue:
            await queue.put("t", "x")
            assert await whole(queue) == counts(ready=1)
        with pytest.raises(dwell.ServerUnreachable, match="certificate verify failed"):
            async with dwell.open(server.url, timeout=4):
                pass
        plain = server.url.replace("rediss", "redis")
        with pytest.raises(dwell.ServerUnreachable):
            async with dwell.open(plain, timeout=0.5):
                pass


# --- replicas -------------------------------------------------------------------------------------


async def test_without_the_replicas_that_were_asked_for_no_verb_is_answered_as_done():
    few = r"0 replicas .* min_replicas is 1"
    refused = pytest.raises(dwell.ServerUnreachable, match=few)
    with redis_server() as server, within(0, 3), refused:
        async with dwell.open(f"{server.url}?min_replicas=1&timeout=1"):
            pass


async def test_a_replica_that_hangs_holds_up_the_answers():
    with redis_sentinel() as watched:
        master, replica = watched.servers
        async with dwell.open(f"{master.url}?min_replicas=1", timeout=3) as queue:
            assert (await queue.put("t", "a", id="a")).result is Result.CREATED
            replica.stop()
            with within(2, 4), pytest.raises(dwell.ServerUnreachable, match="0 replicas"):
                await queue.put("t", "b", id="b")
            waiting = asyncio.create_task(queue.put("t", "c", id="c"))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            replica.cont()
            assert (await waiting).result is Result.CREATED
            # It may have been done, and was; to ask for it again is safe.
            assert (await queue.put("t", "b", id="b")).result is Result.KEPT
            assert await whole(queue) == counts(ready=3)
            assert replica.ask("HLEN", "dwell:{0}:ids:t") == 3


# --- neighbours -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "dwell:{0}:store", "somebody else's"),
        ("SET", "dwell:{0}:store", ""),
        ("RPUSH", "dwell:{0}:store", "somebody else's"),
        ("SET", "dwell:{0}:meta", "somebody else's"),
    ],
)
async def test_a_key_of_another_program_is_left_alone(command):
    with redis_server() as server:
        server.ask(*command)
        with server.client() as client:
            before = client.dump(command[1])
        with within(0, 1), pytest.raises(dwell.StoreError) as caught:
            async with dwell.open(server.url):
                pass
        assert not isinstance(caught.value, dwell.ServerUnreachable)
        with server.client() as client:
            assert client.dump(command[1]) == before
        assert "dwell:{0}" in str(caught.value) or "wrong kind of value" in str(caught.value)


async def test_two_prefixes_are_two_stores():
    with redis_server() as server:
        ours, theirs = (dwell.open(f"{server.url}?prefix={name}") for name in ("a", "a:b"))
        async with ours as one, theirs as other:
            await one.put("t", "x", id="x")
            await one.configure("t", max_attempts=3)
            assert (await other.get("t", ["x"])) == [None]
            assert len(await other.take("t")) == 0
            assert (await other.settings("t")).max_attempts == 16
            taken = await one.take("t")
            with pytest.raises(dwell.ForeignReceipt):
                await other.ack(taken)
            assert await whole(one) == counts(leased=1)
            assert await whole(other) == counts()
        keys = server.ask("KEYS", "*")
        assert all(key.startswith(("a:{0}:", "a:b:{0}:")) for key in keys)


async def test_two_databases_are_two_stores():
    with redis_server() as server:
        other_url = server.url.removesuffix("0") + "5"
        async with dwell.open(server.url) as one, dwell.open(other_url) as other:
            await one.put("t", "x", id="x")
            assert len(await other.take("t", wait=0.1)) == 0
            assert await whole(one) == counts(ready=1)


async def test_the_number_of_shards_stays():
    with redis_server() as server:
        async with dwell.open(f"{server.url}?shards=3") as queue:
            await queue.put("t", "x")
        shards = "shards: got 2, and the store has 3"
        with pytest.raises(dwell.InvalidInput, match=shards):
            async with dwell.open(f"{server.url}?shards=2"):
                pass
        for url in (server.url, f"{server.url}?shards=3"):
            async with dwell.open(url) as queue:
                assert len(await queue.sizes("t")) == 3


async def test_receipts_of_a_store_that_was_emptied_are_foreign():
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            await queue.put("t", "x")
            taken = await queue.take("t")
        server.ask("FLUSHALL")
        async with dwell.open(server.url) as queue:
            with pytest.raises(dwell.ForeignReceipt):
                await queue.ack(taken)
            made = np.array([[taken.receipts[0, 0], 2**63]], np.uint64)
            with pytest.raises(dwell.ForeignReceipt):
                await queue.ack(made)


async def test_a_debt_whose_payer_is_cancelled_frees_its_place_once():
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            engine = queue.store.shards.engine
            await queue.put_many("t", ["x"] * 4)
            server.client().execute_command("CLIENT", "PAUSE", 1500, "ALL")
            take = asyncio.create_task(queue.take("t", 1))
            await asyncio.sleep(0.1)
            others = asyncio.all_tasks() - {asyncio.current_task(), take}
            # A callback of the loop cuts the take itself off, which is owed from then on.
            for task in others:
                asyncio.get_running_loop().call_soon(task.cancel)
            for _ in range(3):
                await asyncio.sleep(0.3)
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
            while (await queue.stats()).topics["t"].leased:
                await asyncio.sleep(0.02)
            assert len(set(engine._slots)) == len(engine._slots)
