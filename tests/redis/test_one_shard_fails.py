"""One shard fails while others go on: nothing that was leased is dropped, and the others give."""

import asyncio
import contextlib
import itertools
import zlib

import numpy as np
import pytest

import dwell
from dwell import Result
from dwell.errors import InvalidInput, ServerUnreachable
from dwell.store.redis import RedisStore, shards
from dwell.store.redis.engine import Engine
from dwell.store.redis.putting import shard_for
from tests.http.between import Between, between
from tests.redis.calls import call_of
from tests.redis.servers import redis_cluster, redis_server
from tests.waiting import until_async

pytestmark = pytest.mark.campaign

SHARDS = 4
#: Where those that answer must be waited for, on a busy machine too: a tenth of it each.
PATIENT_S = 5
_prefixes = itertools.count()


def ids_of(shard: int, count: int) -> list[str]:
    """Return ids that belong to a shard."""
    found = (f"id-{at}" for at in itertools.count())
    return list(itertools.islice((i for i in found if zlib.crc32(i.encode()) % 4 == shard), count))


def only(shard: int, part: str = "") -> bytes:
    """Return what every request to a shard holds."""
    return b"{%d}" % shard + part.encode()


class Case:
    """Four shards on one real Redis, behind a wire that fails for one of them."""

    def __init__(self, wire: Between, queue: dwell.Queue, sure: dwell.Queue) -> None:
        self.wire = wire
        self.queue = queue
        self.sure = sure

    @property
    def store(self) -> RedisStore:
        return self.queue.store

    async def put(self, shards=range(SHARDS), count: int = 5) -> set[str]:
        """Put messages into some shards."""
        ids = [id_ for shard in shards for id_ in ids_of(shard, count)]
        await self.sure.put_many("t", ["x"] * len(ids), ids=ids, lease="1h")
        return set(ids)

    async def until_given_back(self) -> None:
        """Wait until nothing is leased."""
        while (await self.sure.stats()).topics["t"].leased:
            await asyncio.sleep(0.01)

    async def attempts(self) -> set[int]:
        """Return the attempts of all messages that are there."""
        ids = [id_ for shard in range(SHARDS) for id_ in ids_of(shard, 5)]
        return {message.attempt for message in await self.sure.get("t", ids) if message}


@contextlib.asynccontextmanager
async def opened(**options):
    """Give a store over a wire that is whole, and one that fails as the test says."""
    given = {"shards": SHARDS, "timeout": 1, **options}
    with redis_server() as server:
        async with (
            asyncio.timeout(60),
            between(server.url) as wire,
            dwell.open(wire.url, **given) as queue,
            dwell.open(server.url, **given) as sure,
        ):
            yield Case(wire, queue, sure)


#: Blocks of one, blocks as they are usual, and loose messages.
each_form = pytest.mark.parametrize("packed", [1, 8, 1000])


@each_form
@pytest.mark.parametrize("how", ["cut", "mute"])
@pytest.mark.parametrize("fails", range(SHARDS))
async def test_what_the_others_gave_is_handed_out(packed, how, fails):
    async with opened(packed=packed, timeout=PATIENT_S) as case:
        await case.put()
        case.wire.break_(how, None, only(fails))
        taken = await case.queue.take("t", 100, lease="10m")
        others = [id_ for shard in range(SHARDS) if shard != fails for id_ in ids_of(shard, 5)]
        assert sorted(taken.ids) == sorted(others)
        assert set(await case.sure.ack(taken)) == {Result.ACKED}
        # What it leased where no answer came from is given back when it can be reached.
        case.wire.break_("pass")
        await case.until_given_back()
        again = await case.queue.take("t", 100)
        assert sorted(again.ids) == sorted(ids_of(fails, 5))
        assert set(again.attempt.tolist()) == {1}


@each_form
@pytest.mark.parametrize("how", ["cut", "mute"])
async def test_what_is_taken_by_id_is_handed_out(packed, how):
    async with opened(packed=packed, timeout=PATIENT_S) as case:
        ids = sorted(await case.put())
        case.wire.break_(how, None, only(2))
        taken = await case.queue.take_ids("t", ids, lease="10m")
        assert list(taken.ids) == [id_ for id_ in ids if id_ not in ids_of(2, 5)]
        await case.sure.ack(taken)
        case.wire.break_("pass")
        await case.until_given_back()
        again = await case.queue.take_ids("t", ids)
        assert sorted(again.ids) == sorted(ids_of(2, 5))
        assert set(again.attempt.tolist()) == {1}


async def test_a_taker_is_told_when_the_others_have_nothing():
    async with opened() as case:
        case.wire.break_("cut", None, only(2))
        with pytest.raises(ServerUnreachable):
            await case.queue.take("t", 100)


async def test_blocks_that_could_not_be_read_are_given_back():
    async with opened(packed=1) as case:
        await case.put([1])
        case.wire.break_("cut", None, only(1, ":block"))
        taken = []
        # What is given back is no block any more: a round that still has the time finds it.
        with contextlib.suppress(ServerUnreachable):
            taken = await case.queue.take("t", 100, lease="10m")
        assert case.wire.faults
        case.wire.break_("pass")
        if not taken:
            await case.until_given_back()
            assert await case.attempts() == {0}
            taken = await case.queue.take("t", 100)
        assert sorted(taken.ids) == sorted(ids_of(1, 5))
        assert set(taken.attempt.tolist()) == {1}


@each_form
@pytest.mark.parametrize("verb", ["take", "take_ids"])
@pytest.mark.parametrize("how", ["late", "held"])
async def test_a_take_whose_caller_has_gone_leases_nothing(packed, verb, how):
    async with opened(packed=packed) as case:
        ids = [id_.encode() for id_ in sorted(await case.put())]
        # The first time, connections are made.
        warm = case.store.take_ids("warm", ids, 0, ""), case.store.take(["warm"], 1, 0, "")
        await asyncio.gather(*warm)
        # The verb itself, not a tick: its name, and how many keys there are.
        request = call_of(verb) + b"$1\r\n2\r\n$9\r\ndwell:" + only(2)
        case.wire.break_(how, 1, request)
        ask = {
            "take": lambda: case.store.take(["t"], 100, 600_000, ""),
            "take_ids": lambda: case.store.take_ids("t", ids, 600_000, ""),
        }
        taking = asyncio.create_task(ask[verb]())
        await until_async(lambda: case.wire.how == "pass")
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await case.until_given_back()
        # What the network had held back comes now, and nobody waits for it.
        case.wire.let_go.set()
        await case.queue.stats()
        await case.until_given_back()
        assert await case.attempts() == {0}


async def test_messages_do_not_die_for_a_shard_that_fails():
    """The case in which it was found: a node of a cluster is killed, and nobody sees a message."""

    with redis_cluster(2, **{"cluster-require-full-coverage": "no"}) as cluster:
        owners = [cluster.owner(f"dwell:{{{shard}}}:meta") for shard in range(SHARDS)]
        down = next(shard for shard in range(SHARDS) if owners[shard] is not owners[0])
        async with dwell.open(cluster.url, shards=SHARDS, timeout=1) as queue:
            await queue.put_many("t", ["x"] * 5, ids=ids_of(0, 5))
            owners[down].kill()
            taken = await queue.take("t", 10, lease="10m")
            assert sorted(taken.ids) == sorted(ids_of(0, 5))


async def test_the_other_shards_tick():
    async with opened(timeout=30) as case:
        woken: list[str] = []
        case.store.wake = lambda topic, count: woken.append(topic)
        case.wire.break_("cut", None, only(0))
        for shard in (1, 2, 3):
            await case.sure.put(f"t{shard}", "x", id=ids_of(shard, 1)[0], delay=0.05)
        # Ticks of the queue beside these find it, too: both are those of this store.
        while {"t1", "t2", "t3"} - set(woken):
            case.store.waiting = lambda: ("t1", "t2", "t3")
            assert await case.store.tick(0)
        case.wire.break_("pass")


async def test_a_taker_gets_what_comes_while_a_shard_is_down():
    async with opened(timeout=30) as case:
        case.wire.break_("cut", None, only(0))
        for shard in (1, 2, 3):
            (id_,) = ids_of(shard, 1)
            before = case.wire.faults
            waiting = asyncio.create_task(case.queue.take("t", wait=30))
            await until_async(lambda before=before: case.wire.faults > before)
            await case.sure.put("t", "x", id=id_, delay=0.05)
            assert list((await waiting).ids) == [id_]
            await case.sure.ack(waiting.result())
        case.wire.break_("pass")


async def test_no_shard_ticks():
    async with opened() as case:
        case.wire.break_("cut")
        with pytest.raises(ServerUnreachable):
            await case.store.tick(0)
        case.wire.break_("pass")
        assert await case.store.tick(0)


async def test_verbs_are_done_on_the_shards_that_are_there():
    async with opened() as case:
        await case.sure.configure("t", remember_ms=0)
        ids = sorted(await case.put())
        others = [id_ for id_ in ids if id_ not in ids_of(1, 5)]
        taken = await case.queue.take("t", 100, lease="10m")
        case.wire.break_("cut", None, only(1))
        with pytest.raises(ServerUnreachable):
            await case.queue.ack(taken)
        found = await case.sure.get("t", ids)
        assert sorted(message.id for message in found if message) == sorted(ids_of(1, 5))
        case.wire.break_("pass")
        await case.sure.release(taken)
        await case.put()
        for verb in ("reschedule", "cancel"):
            case.wire.break_("cut", None, only(1))
            beside = {"due": 2**42} if verb == "reschedule" else {}
            with pytest.raises(ServerUnreachable):
                await getattr(case.queue, verb)("t", ids, **beside)
            case.wire.break_("pass")
            found = await case.sure.get("t", others)
            assert {message and message.due_ms for message in found} == (
                {2**42} if verb == "reschedule" else {None}
            )


async def test_a_put_tells_each_caller_what_became_of_its_own():
    async with opened() as case:
        ids = [id_ for shard in range(SHARDS) for id_ in ids_of(shard, 3)]
        case.wire.break_("cut", None, only(1))
        puts = (case.queue.put("t", "x", id=id_) for id_ in ids)
        answers = await asyncio.gather(*puts, return_exceptions=True)
        for id_, answer in zip(ids, answers, strict=True):
            if id_ in ids_of(1, 3):
                assert isinstance(answer, ServerUnreachable)
            else:
                assert answer.result is Result.CREATED
        # In a batch of one caller, the error says that some were put.
        with pytest.raises(ServerUnreachable, match="9 of the batch were put all the same"):
            await case.queue.put_many("t", ["x"] * 12, ids=[f"{id_}" for id_ in ids])


#: What each verb answers, and its further arguments.
BY_RECEIPT = {
    "ack": (Result.ACKED, {}),
    "release": (Result.RELEASED, {"delay": "1h"}),
    "touch": (Result.TOUCHED, {"lease": "1h"}),
    "bury": (Result.BURIED, {}),
}
BY_ID = {
    "cancel": (Result.CANCELLED, {}),
    "reschedule": (Result.MOVED, {"due": 2**42}),
    "kick": (Result.KICKED, {"delay": "1h"}),
}
VERBS = {**BY_RECEIPT, **BY_ID}


async def askers(case: Case):
    """Put messages for each verb; return functions that run it on one or many of their ids."""
    found = {}
    ids = [id_ for shard in range(SHARDS) for id_ in ids_of(shard, 5)]
    for verb, (_, beside) in VERBS.items():
        await case.sure.put_many(verb, ["x"] * len(ids), ids=ids)
        taken: dict[str, dwell.Message] = {}
        while len(taken) < len(ids) and verb in (*BY_RECEIPT, "kick"):
            # A shard that is slow gives its own to a later take.
            taken |= {one.id: one for one in await case.sure.take(verb, 100, lease="10m")}
        if verb == "kick":
            await case.sure.bury(list(taken.values()))

        def ask(of, verb=verb, taken=taken, beside=beside):
            own = getattr(case.queue, verb)
            if verb in BY_ID:
                return own(verb, of, **beside)
            return own(taken[of] if isinstance(of, str) else [taken[id_] for id_ in of], **beside)

        found[verb] = ask
    return ids, found


async def test_who_calls_for_one_message_is_told_of_it_alone():
    """Calls of many callers are joined, and one of their shards is away."""
    async with opened(timeout=PATIENT_S) as case:
        ids, asks = await askers(case)
        case.wire.break_("cut", None, only(1))
        calls = [(verb, id_) for verb in VERBS for id_ in ids]
        asked = [asks[verb](id_) for verb, id_ in calls]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for (verb, id_), answer in zip(calls, answers, strict=True):
            if id_ in ids_of(1, 5):
                assert isinstance(answer, ServerUnreachable)
            else:
                assert answer is VERBS[verb][0]


async def test_who_calls_for_one_message_does_not_wait_for_a_shard_that_is_late(monkeypatch):
    async with opened(timeout=25) as case:
        ids, asks = await askers(case)
        monkeypatch.setattr(shards, "_LATE", 0.001)
        case.wire.break_("cut", None, only(1))
        # Calls that come before it is late may be joined with others, and wait.
        first = asyncio.ensure_future(case.queue.cancel("none", ids_of(1, 1)[0]))
        await until_async(lambda: 1 in case.store.shards.away)
        calls = {
            (verb, id_): asyncio.ensure_future(asks[verb](id_)) for verb in VERBS for id_ in ids
        }
        away = [task for (_, id_), task in calls.items() if id_ in ids_of(1, 5)]
        await asyncio.gather(*(task for task in calls.values() if task not in away))
        assert not any(task.done() for task in away)
        monkeypatch.setattr(shards, "_LATE", 1)
        case.wire.break_("pass")
        await asyncio.gather(first, *away)
        assert all(task.result() is VERBS[verb][0] for (verb, _), task in calls.items())
        await until_async(lambda: not case.store.shards.away)


async def test_who_calls_for_many_messages_is_told_of_them_alone():
    there, away = ids_of(0, 5) + ids_of(2, 3), ids_of(1, 2)
    mixed = ids_of(1, 5)[2:] + ids_of(2, 5)[3:] + ids_of(3, 5)
    async with opened(timeout=PATIENT_S) as case:
        _, asks = await askers(case)
        case.wire.break_("cut", None, only(1))
        asked = [asks[verb](many) for verb in VERBS for many in (there, away, mixed)]
        answers = iter(await asyncio.gather(*asked, return_exceptions=True))
        for (result, _), first, second, third in zip(
            VERBS.values(), answers, answers, answers, strict=True
        ):
            assert list(first) == [result] * 8
            assert (type(second), second.is_partly) == (ServerUnreachable, False)
            assert (type(third), third.is_partly) == (ServerUnreachable, True)
            assert "; 7 of the batch were done all the same" in str(third)
            results = [one for one in third.each if not isinstance(one, ServerUnreachable)]
            assert results == [result] * 7


@pytest.mark.parametrize("is_one", [True, False])
async def test_what_a_shard_refuses_for_one_caller_is_not_refused_of_others(monkeypatch, is_one):
    """The others with messages in that shard are run again."""
    run = Engine.run

    async def refusing(self, shard, name, *own, **large):
        if bad.encode() in own:
            raise InvalidInput("refused")
        return await run(self, shard, name, *own, **large)

    async with opened(timeout=PATIENT_S) as case:
        good, (bad, *others) = ids_of(0, 2), ids_of(1, 4)
        await case.sure.put_many("t", ["x"] * 6, ids=[*good, bad, *others], delay="1h")
        monkeypatch.setattr(Engine, "run", refusing)
        many = [good, [bad], others[:1], others[1:]]
        asked = [case.queue.cancel("t", ids[0] if is_one else ids) for ids in many]
        first, second, *rest = await asyncio.gather(*asked, return_exceptions=True)
        assert (type(second), second.is_partly) == (InvalidInput, False)
        for ids, answer in zip((many[0], *many[2:]), (first, *rest), strict=True):
            assert answer == (Result.CANCELLED if is_one else [Result.CANCELLED] * len(ids))


async def test_an_id_that_may_be_in_a_shard_that_is_away_is_not_unknown():
    """Messages with keys are in the shards of their keys; a shard that failed is asked once."""
    async with opened(timeout=PATIENT_S) as case:
        keys = {shard_for(b"", f"k{n}", SHARDS): f"k{n}" for n in range(40)}
        ids = ids_of(0, 4)
        here, there, away, none = ids
        for id_, key in ((here, keys[0]), (there, keys[2]), (away, keys[1])):
            await case.sure.put("t", "x", id=id_, key=key, delay="1h")
        case.wire.break_("cut", None, only(1))
        asked = [case.queue.cancel("t", id_) for id_ in ids]
        answers = dict(zip(ids, await asyncio.gather(*asked, return_exceptions=True), strict=True))
        assert answers[here] is Result.CANCELLED
        # It might have been in the shard that is away, under another key.
        assert [type(answers[id_]) for id_ in (there, away, none)] == [ServerUnreachable] * 3
        case.wire.break_("pass")
        left = {id_ for id_ in ids if await case.sure.get("t", id_)}
        assert left == {there, away}


async def test_settings_reach_the_shards_that_are_there():
    async with opened() as case:
        case.wire.break_("cut", None, only(1))
        with pytest.raises(ServerUnreachable):
            await case.queue.configure("t", max_attempts=3)
        client = case.sure.store.shards.engine

        async def found() -> list[bool]:
            """Return which shards have the settings."""
            keys = [client.keys(shard).topics for shard in range(SHARDS)]
            return [bool(await client.ask("HEXISTS", key, "t")) for key in keys]

        assert [has for shard, has in enumerate(await found()) if shard != 1] == [True] * 3
        case.wire.break_("pass")

        async def all_have() -> bool:
            return all(await found())

        await until_async(all_have, "the shard that was away has no settings")


async def test_a_shard_that_was_down_is_found_again():
    async with opened() as case:
        await case.sure.configure("t", remember_ms=0)
        for _ in range(3):
            await case.put([3])
            case.wire.break_("mute", None, only(3))
            with pytest.raises(ServerUnreachable):
                await case.queue.take("t", 2, lease="10m")
            case.wire.break_("pass")
            taken = await case.queue.take("t", 100)
            assert sorted(taken.ids) == sorted(ids_of(3, 5))
            assert set(await case.queue.ack(taken)) == {Result.ACKED}


async def test_receipts_of_a_message_that_was_taken_very_often():
    """The number of a take has 32 bits and begins anew after them; nothing else is touched."""
    with redis_server() as server:
        async with dwell.open(server.url) as queue:
            await queue.put("t", "x", id="x", max_attempts=65_535)
            ((name, text),) = server.client().hgetall("dwell:{0}:messages").items()
            words = []
            for take in (2**24 - 1, 2**24, 2**32 - 1):
                made = text[:3] + take.to_bytes(4, "big") + text[7:]
                server.client().hset("dwell:{0}:messages", name, made)
                taken = await queue.take("t")
                words.append(int(taken.receipts[0, 0]) & 0xFFFF_FFFF)
                message = (await queue.get("t", ["x"]))[0]
                assert (message.body, message.attempt) == (b"x", 1)
                stale = np.array(taken.receipts)
                stale[0, 0] -= np.uint64(1) if words[-1] else np.uint64(0)
                assert await queue.release(taken, counted=False) == [Result.RELEASED]
                text = server.client().hget("dwell:{0}:messages", name)
                assert await queue.ack(stale) == [Result.STALE]
            step = int(server.client().hget("dwell:{0}:meta", "step"))
            assert words == [(take + step) % 2**32 for take in (2**24 - 1, 2**24, 2**32 - 1)]
