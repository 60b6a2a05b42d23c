"""Messages move from one store of Dwell's own into another, while both are at work."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import redis

import dwell
from dwell.batch.stats import TopicStats
from dwell.clock import RealClock
from dwell.errors import InvalidBody, InvalidSettings, InvalidUrl
from dwell.message import State
from dwell.queue import Queue
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.queue.schedules.schedule import moment_text
from dwell.store.memory import MemoryStore
from dwell.takeover import house
from dwell.takeover.house import HousePlace
from dwell.takeover.process import run
from dwell.takeover.takeover import Takeover
from dwell.worker.declared import TOPIC as CODE_TOPIC
from tests.redis.servers import redis_server
from tests.relay.conftest import redis_url  # noqa: F401 - a fixture
from tests.spark.conftest import ServerProcess
from tests.takeover.sources import beside

MESSAGES = 2_500


@pytest.fixture(params=["folder", "http"])
def old(request, tmp_path):
    """The address of a store that messages leave."""
    if request.param == "folder":
        yield str(tmp_path / "old")
        return
    server = ServerProcess(tmp_path)
    yield server.url
    server.stop()


@pytest.fixture
def new(tmp_path):
    return str(tmp_path / "new")


def moved(new, old, **how):
    return run(new, old, tell=lambda report: None, **how)


def everything(queue, topic):
    return [m for s in (State.DELAYED, State.READY) for page in queue.pages(topic, s) for m in page]


def test_all_that_waits_moves_as_it_is(old, new):
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    with dwell.open(old) as queue:
        queue.configure("orders", max_attempts=3, lease_ms="7s")
        for first in range(0, MESSAGES, 500):
            at = range(first, first + 500)
            queue.put_many(
                "orders",
                [b"%d" % i for i in at],
                due=[due_ms + i if i % 2 else i for i in at],
                ids=[f"order-{i}" for i in at] if first % 1000 else None,
                priority=[i % 5 for i in at],
                key=[f"k{i % 7}" for i in at],
                headers=[{"n": str(i)} for i in at],
                lease=[1 + i % 9 for i in at],
                max_attempts=[1 + i % 3 for i in at],
                expires=[due_ms + 10_000_000 + i for i in at],
            )
        queue.put("mails", b"", delay="1h")
    report = moved(new, old)
    assert (report.moved, report.put["created"]) == (MESSAGES + 1, MESSAGES + 1)
    assert report.balances
    assert report.is_whole
    assert report.left.here == 0
    with dwell.open(new) as queue:
        found = everything(queue, "orders")
        assert queue.settings("orders").max_attempts == 3
        assert len(everything(queue, "mails")) == 1
    assert sorted(int(m.body) for m in found) == list(range(MESSAGES))
    for m in found:
        at = int(m.body)
        assert m.due_ms == (due_ms + at if at % 2 else at)
        assert (m.priority, m.key, m.headers) == (at % 5, f"k{at % 7}", {"n": str(at)})
        assert (m.lease_ms, m.max_attempts) == (1000 * (1 + at % 9), 1 + at % 3)
        assert m.expires_ms == due_ms + 10_000_000 + at
        assert (m.id == f"order-{at}") == bool(at // 500 * 500 % 1000)


async def test_settings_that_are_made_here_meanwhile_stay(monkeypatch):
    async with dwell.open("memory:") as there, dwell.open("memory:") as here:
        await there.configure("t", max_attempts=3)
        await there.put("t", b"x")
        look = here.settings

        async def between(topic):
            found = await look(topic)
            await here.configure(topic, lease_ms=77_000)
            return found

        monkeypatch.setattr(here, "settings", between)
        await Takeover(HousePlace(there), here, lambda report: None).run()
        found = await look("t")
    assert (found.max_attempts, found.lease_ms) == (3, 77_000)


def test_what_is_held_or_dead_stays(old, new):
    with dwell.open(old) as queue:
        queue.put_many("orders", [b"held", b"dead", b"waits"])
        _, dead = queue.take("orders", 2, lease="1h")
        queue.bury(dead.receipt, "no")
    report = moved(new, old)
    assert report.moved == 1
    assert (report.left.leased, report.left.dead) == (1, 1)
    assert report.balances


@pytest.mark.parametrize("topics", [(), ("mails", "texts")])
def test_ids_of_two_topics_stay_apart_in_one(old, new, topics):
    with dwell.open(old) as queue:
        for topic in ("mails", "texts"):
            queue.put(topic, b"to ann", id="ann", due=4_102_444_800_000)
    for _ in range(2):
        report = moved(new, old, topics=topics, into="all")
        assert report.balances
    with dwell.open(new) as queue:
        assert {m.id for m in everything(queue, "all")} == {"mails/ann", "texts/ann"}


def test_ids_of_two_topics_stay_apart_in_two_runs(old, new):
    long = "x" * 256
    with dwell.open(old) as queue:
        for topic in ("mails", "texts"):
            queue.put_many(topic, [b"to ann"] * 2, ids=["ann", long], delay="1h")
    for topic in ("mails", "texts"):
        assert moved(new, old, topics=[topic], into="all").moved == 2
    with dwell.open(new) as queue:
        ids = {m.id for m in everything(queue, "all")}
    assert {"mails/ann", "texts/ann"} < ids
    assert len(ids) == 4


@pytest.mark.parametrize("on_full", ["refuse", "drop"])
def test_a_full_topic_holds_up_no_other(old, new, on_full):
    with dwell.open(new) as queue:
        queue.configure("b", max_pending=2, on_full=on_full)
    with dwell.open(old) as queue:
        for topic in ("a", "b", "c"):
            queue.put_many(topic, [b"%d" % at for at in range(5)], delay="1h")
            queue.put_many(topic, [b"%d" % at for at in range(5)])
    report = moved(new, old)
    assert report.balances
    assert report.refused > 0
    assert ("full" if on_full == "drop" else "max_pending is 2") in report.reason
    with dwell.open(new) as queue, dwell.open(old) as there:
        counts = {topic: len(everything(queue, topic)) for topic in ("a", "b", "c")}
        left = len(everything(there, "b"))
    assert (counts["a"], counts["c"]) == (10, 10)
    # Nothing of it is in both, or in neither.
    assert counts["b"] + left == 10
    assert counts["b"] == 2


def test_another_due_is_another_message_though_the_one_here_was_tried(old, new):
    with dwell.open(new) as queue:
        queue.put("mails", b"to ann", id="ann")
        queue.release(queue.take("mails"), delay="1h")
    with dwell.open(old) as queue:
        queue.put("mails", b"to ann", id="ann", due=4_102_444_800_000)
    report = moved(new, old)
    assert (report.moved, report.others) == (0, 1)
    with dwell.open(old) as queue:
        assert queue.get("mails", "ann").due_ms == 4_102_444_800_000


def test_some_topics_into_one(old, new):
    with dwell.open(old) as queue:
        for topic in ("a", "b", "c"):
            queue.put_many(topic, [b"1", b"2"], delay="1h")
    assert moved(new, old, topics=["a", "c"], into="all").moved == 4
    with dwell.open(new) as queue:
        assert set(queue.stats().topics) == {"all"}
    with dwell.open(old) as queue:
        assert len(everything(queue, "b")) == 2


def test_schedules_into_one_topic_stay_schedules(old, new):
    with dwell.open(old) as queue:
        queue.schedules.put("nightly", "jobs", b"x", every="1h")
        queue.put("jobs", b"1", delay="1h")
        next_ms = queue.schedules.get("nightly").next_ms
        # What the code of a worker declares is no message of anybody's.
        queue.put(CODE_TOPIC, b"{}", id="app", delay="1h")
    assert moved(new, old, into="all").moved == 3
    with dwell.open(new) as queue:
        planned = queue.schedules.get("nightly")
        assert (planned.schedule.topic, planned.next_ms) == ("jobs", next_ms)
        assert [m.body for m in everything(queue, "all")] == [b"1"]
        assert [m.id for m in everything(queue, CODE_TOPIC)] == ["app"]


@pytest.mark.parametrize(("says", "last"), [("fired up to", True), ("fires after", False)])
def test_schedules_go_on_from_where_they_say(tmp_path, new, says, last):
    """What a schedule says stands in its last error, which no put can have."""
    told_ms = 1_000 * (time.time_ns() // 10**9 - 7)
    old = str(tmp_path / "old")
    with dwell.open(old) as queue:
        queue.schedules.put("s", "jobs", b"x", every="1h", misfire="all", start=told_ms)
        queue.reschedule(SCHEDULES, "s", delay=0)
        (taken,) = queue.take(SCHEDULES)
        queue.release(taken.receipt, "1h", error=f"{says} {moment_text(told_ms)}")
    assert moved(new, old).moved == 1
    with dwell.open(new) as queue:
        planned = queue.schedules.get("s")
        assert planned.last_ms == (told_ms if last else None)
        # Its due there may be that of the next try.
        assert planned.next_ms == told_ms + 1


def test_what_falls_due_soon_is_waited_for(old, new):
    with dwell.open(old) as queue:
        queue.put("orders", b"soon", delay="1s")
    assert moved(new, old).moved == 1
    with dwell.open(new) as queue:
        assert [m.body for m in queue.take("orders", 2)] == [b"soon"]


async def test_what_falls_due_between_two_looks_is_moved():
    """Between the take, which does not see it, and the scan, which does not any more."""
    clock = dwell.SimulatedClock(1_000_000)

    class Moving(HousePlace):
        async def _take(self, topic, limit):
            taken = await super()._take(topic, limit)
            if clock.now_ms() == 1_000_000:
                clock.advance(30_000)
            return taken

    async with dwell.open("memory:", clock=clock) as there, dwell.open("memory:") as here:
        await there.put("orders", b"x", delay="30s")
        report = await Takeover(Moving(there), here, lambda report: None).run()
    assert report.moved == 1


def test_a_dry_run_moves_nothing(old, new):
    with dwell.open(old) as queue:
        queue.put_many("orders", [b"1", b"2"], delay=["0s", "1h"])
    report = moved(new, old, dry_run=True)
    assert (report.found.delayed, report.found.ready, report.moved) == (1, 1, 0)


@pytest.mark.parametrize("dry_run", [False, True])
def test_where_no_store_is_none_is_made(tmp_path, new, redis_url, dry_run):  # noqa: F811
    address = f"{redis_url}?prefix=none{dry_run}"
    for old in (str(tmp_path / "none"), address):
        with pytest.raises(InvalidUrl, match="no store of Dwell's"):
            moved(new, old, dry_run=dry_run)
    assert not (tmp_path / "none").exists()
    assert not redis.Redis.from_url(redis_url).keys(f"none{dry_run}*")


class Choosy(MemoryStore):
    """A store that refuses some bodies, as one with smaller bounds does."""

    async def put(self, puts, on_conflict):
        if any(body.startswith(b"bad") for body in puts.bodies):
            raise InvalidBody("body: got one that is bad, expected none")
        return await super().put(puts, on_conflict)


async def test_what_the_queue_refuses_stays_and_holds_up_no_other():
    bodies = [b"bad" if at % 7 == 3 else b"%d" % at for at in range(40)]
    async with dwell.open("memory:") as there, Queue(Choosy(RealClock())) as here:
        await there.put_many("t", bodies[:20])
        await there.put_many("t", bodies[20:], delay="1h")
        place = HousePlace(there)
        report = await Takeover(place, here, lambda report: None).run()
        stay = bodies.count(b"bad")
        assert (report.moved, report.refused) == (40 - stay, stay)
        assert report.is_whole
        assert report.balances
        assert "expected none" in report.reason
        found = (await there.stats()).topics["t"]
        assert found.ready + found.delayed == stay


def test_what_is_paused_there_stays_if_it_is_due(old, new):
    with dwell.open(old) as queue:
        queue.put_many("orders", [b"1", b"2"], delay=["0s", "1h"])
        queue.configure("orders", paused=True)
    report = moved(new, old)
    assert report.moved == 1
    assert report.left.ready == 1
    assert report.balances


def test_a_rate_there_is_waited_for(old, new):
    with dwell.open(old) as queue:
        queue.configure("orders", rate=2)
        queue.put_many("orders", [b"x"] * 5)
    report = moved(new, old)
    assert (report.moved, report.left.here) == (5, 0)
    assert report.is_whole


def test_what_the_settings_there_hold_back_is_counted(old, new, monkeypatch):
    monkeypatch.setattr(house, "_PATIENCE_S", 0.0)
    with dwell.open(old) as queue:
        queue.put_many("orders", [b"1", b"2", b"3"], delay=["0s", "0s", "1h"])
        queue.configure("orders", most_leased=1)
        queue.take("orders", lease="1h", owner="worker")
    report = moved(new, old)
    assert (report.moved, report.held_back, report.left.ready) == (1, 1, 1)
    assert not report.is_whole
    assert report.balances


@pytest.mark.parametrize("on_full", ["refuse", "drop"])
def test_what_a_full_topic_refuses_goes_back(old, new, on_full):
    with dwell.open(old) as queue:
        queue.put_many("orders", [b"x"] * 100, delay=["0s", "1h"] * 50)
    with dwell.open(new) as queue:
        queue.configure("orders", max_pending=60, on_full=on_full)
    report = moved(new, old)
    assert report.balances
    with dwell.open(old) as queue:
        there = everything(queue, "orders")
        assert all(m.attempt == 0 for m in there)
    with dwell.open(new) as queue:
        here = everything(queue, "orders")
    assert (len(there), len(here), report.refused) == (40, 60, 40)
    with dwell.open(new) as queue:
        queue.configure("orders", max_pending=0)
    assert moved(new, old).moved == 40


def test_it_does_not_move_into_itself(old):
    with pytest.raises(InvalidSettings, match="expected another place than --store"):
        moved(old, old)


@pytest.mark.parametrize("kind", ["server", "redis"])
@pytest.mark.parametrize("dry_run", [False, True], ids=["moves", "counts"])
def test_it_does_not_move_into_itself_by_another_name(kind, dry_run, tmp_path):
    """Each message would be put, be known already, and be let go of: all of them would be gone."""
    with contextlib.ExitStack() as stack:
        if kind == "server":
            server = ServerProcess(tmp_path)
            stack.callback(server.stop)
            names = server.url, server.url.replace("127.0.0.1", "localhost")
        else:
            url = stack.enter_context(redis_server()).url
            names = url, url.replace("127.0.0.1", "localhost") + "?prefix=dwell"
        with dwell.open(names[0]) as queue:
            queue.put("orders", b"1", id="own")
            queue.put("orders", b"2", id="later", delay="1h")
        with pytest.raises(InvalidSettings, match="by another name"):
            moved(*names, dry_run=dry_run)
        with dwell.open(names[0]) as queue:
            assert sorted(m.body for m in everything(queue, "orders")) == [b"1", b"2"]


def test_a_backup_is_another_store(tmp_path):
    """It has the number of the one that it is of, and messages of its own."""
    with dwell.open(tmp_path / "old") as queue:
        queue.put("orders", b"1", delay="1h")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    with dwell.open(tmp_path / "old") as queue:
        queue.put("orders", b"2", delay="1h", id="two")
    assert moved(str(tmp_path / "new"), str(tmp_path / "old")).moved == 2
    with dwell.open(tmp_path / "new") as queue:
        assert {b"1", b"2"} == {m.body for m in everything(queue, "orders")}
        assert not everything(queue, "takeover-probe")


@pytest.mark.timeout(120)
def test_what_has_the_id_of_another_message_stays(old, new):
    """Two stores may both have an order-1; that of the second is not that of the first."""
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    delayed = [f"later-{at}" for at in range(1_100)]
    with dwell.open(new) as queue:
        queue.put("orders", b"mine", id="ready")
        queue.put("orders", b"same", id="same", due=due_ms)
        queue.put("orders", b"body", id="other-due", due=due_ms)
        queue.put_many("orders", [b"mine"] * 1_100, ids=delayed, due=due_ms)
    with dwell.open(old) as queue:
        queue.put("orders", b"yours", id="ready")
        queue.put("orders", b"same", id="same", due=due_ms)
        queue.put("orders", b"body", id="other-due", due=due_ms + 1)
        queue.put_many("orders", [b"yours"] * 1_100, ids=delayed, due=due_ms)
        queue.put_many("orders", [b"1", b"2"], due=[0, due_ms + 2])
    report = moved(new, old)
    assert (report.moved, report.others) == (3, 1_102)
    assert report.balances
    assert report.is_whole
    with dwell.open(old) as queue:
        there = everything(queue, "orders")
        assert {m.id for m in there} == {"ready", "other-due", *delayed}
        assert {m.attempt for m in there} == {0}
        assert queue.stats().topics["orders"].leased == 0
    with dwell.open(new) as queue:
        assert Counter(m.body for m in everything(queue, "orders"))[b"mine"] == 1_101


def test_a_second_run_puts_nothing_twice(old, new):
    """The first one dies after its put; the second knows the store by another name."""

    class Dying(HousePlace):
        async def let_go(self, load, places):
            raise KeyboardInterrupt

    async def die():
        async with dwell.open(old) as there, dwell.open(new) as here:
            await Takeover(Dying(there), here, lambda report: None).run()

    with dwell.open(old) as queue:
        queue.put_many("orders", [b"%d" % at for at in range(100)], delay="1h")
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(die())
    other = old.replace("127.0.0.1", "localhost") if "http" in old else f"{old}/../{Path(old).name}"
    report = moved(new, other)
    assert (report.moved, report.put["kept"]) == (100, 100)
    assert report.balances


def test_what_one_that_died_had_taken_is_moved_by_the_next(old, new):
    async def number():
        async with dwell.open(new) as queue:
            return queue.store.number

    mine = house.owner_into(asyncio.run(number()))
    with dwell.open(old) as queue:
        queue.put_many("orders", [b"%d" % at for at in range(1_500)])
        queue.take("orders", 1_200, lease="1h", owner=mine)
        queue.put_many("other", [b""] * 2)
        for owner in ("takeover", house.owner_into(1)):
            queue.take("other", lease="1h", owner=owner)
    report = moved(new, old)
    # What a worker of that name holds, or a takeover into another store, stays.
    assert (report.moved, report.left.here) == (1_500, 2)
    assert report.balances


@pytest.mark.parametrize("tried", [0, 2])
def test_one_that_is_killed_leaves_last_attempts_to_the_next(old, new, tried):
    with dwell.open(old) as queue:
        queue.configure("orders", max_attempts=tried + 1)
        queue.put("orders", b"a", id="a")
        queue.put("orders", b"b", id="b", max_attempts=tried + 2)
        queue.put("orders", b"c", id="c", max_attempts=tried + 1)
        for _ in range(tried):
            queue.release(queue.take("orders", 3), 0)

    def killed():
        Takeover._put = lambda self, *given: os.kill(os.getpid(), signal.SIGKILL)
        moved(new, old)

    process = beside(killed)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    with dwell.open(old) as queue:
        held = queue.get("orders", ["a", "b", "c"])
    minutes = [(one.lease_until_ms - time.time() * 1000) / 60_000 for one in held]
    # That of a message that may be tried again ends soon, for the workers there.
    assert minutes[1] < 1
    assert min(minutes[0], minutes[2]) > 23 * 60
    report = moved(new, old)
    assert (report.moved, report.left.here, report.balances) == (3, 0, True)


async def test_a_last_attempt_that_the_queue_refuses_is_held_as_long():
    class Looking(HousePlace):
        async def leave(self, load, places):
            await super().leave(load, places)
            leases.append(await there.get("t", "1"))

    leases = []
    async with dwell.open("memory:") as there, dwell.open("memory:") as here:
        await there.put_many("t", [b"0", b"1"], ids=["0", "1"], max_attempts=1)
        await here.configure("t", max_pending=1)
        report = await Takeover(Looking(there), here, lambda report: None).run()
        assert (report.moved, report.refused) == (1, 1)
        back = await there.get("t", "1")
    assert leases[0].lease_until_ms > (time.time() + 23 * 3600) * 1000
    assert (back.state, back.attempt) == (State.READY, 0)


def test_two_at_once_lose_nothing(tmp_path, new):
    """What one of them finds gone may be the other's doing, and is not a worker's."""

    async def both():
        async with dwell.open(tmp_path / "old") as there, dwell.open(new) as here:
            delays = ["1h" if at % 2 else "0s" for at in range(MESSAGES)]
            bodies = [b"%d" % at for at in range(MESSAGES)]
            await there.put_many("orders", bodies, delay=delays)
            places = [HousePlace(there) for _ in range(2)]
            runs = [Takeover(place, here, lambda report: None).run() for place in places]
            await asyncio.gather(*runs)
            assert (await there.stats()).topics.get("orders", TopicStats()).ready == 0
            return (await here.stats()).topics["orders"]

    counts = asyncio.run(both())
    assert (counts.delayed, counts.ready) == (MESSAGES // 2, MESSAGES // 2)


async def test_what_changes_there_while_it_moves_is_moved_as_it_is_then(tmp_path):
    """A producer replaces one message and moves another between the put here and the cancel."""
    clock = dwell.SimulatedClock(1_000_000)
    later_ms = 1_000_000 + 7_200_000

    class Changing(HousePlace):
        async def let_go(self, load, places):
            if not changed:
                changed.append(
                    await there.put("t", b"v2", id="a", due=later_ms, on_conflict="replace")
                )
                changed.append(await there.reschedule("t", "b", due=later_ms))
                changed.append(await there.cancel("t", "c"))
            return await super().let_go(load, places)

    changed: list[object] = []
    async with (
        dwell.open(tmp_path / "old", clock=clock) as there,
        dwell.open(tmp_path / "new", clock=clock) as here,
    ):
        await there.put_many(
            "t", [b"v1"] * 300, ids=["a", "b", "c", *map(str, range(297))], delay="1h"
        )
        report = await Takeover(Changing(there), here, lambda report: None).run()
        assert [str(one) for one in changed[1:]] == ["moved", "cancelled"]
        assert (report.moved, report.elsewhere, report.gone) == (299, 1, 1)
        assert report.balances
        assert report.is_whole
        assert (await there.stats()).topics["t"] == TopicStats()
        moved_a, moved_b = await here.get("t", ["a", "b"])
    assert (moved_a.body, moved_a.due_ms) == (b"v2", later_ms)
    assert (moved_b.body, moved_b.due_ms) == (b"v1", later_ms)


@pytest.mark.parametrize("change", ["take", "replace"])
async def test_a_copy_that_is_taken_or_changed_here_is_not_cancelled(change, tmp_path):
    """The message there has changed as well; it stays there, as another one of the same id."""
    clock = dwell.SimulatedClock(1_000_000)

    class Changing(HousePlace):
        async def let_go(self, load, places):
            await there.put("t", b"v2", id="a", delay="2h", on_conflict="replace")
            if change == "take":
                clock.advance(3_600_000)
                assert len(await here.take("t", lease="1h")) == 1
            else:
                await here.put(
                    "t", b"mine", id="a", due=int(load.puts.due_ms[0]), on_conflict="replace"
                )
            return await super().let_go(load, places)

    async with (
        dwell.open(tmp_path / "old", clock=clock) as there,
        dwell.open(tmp_path / "new", clock=clock) as here,
    ):
        await there.put("t", b"v1", id="a", delay="1h")
        report = await Takeover(Changing(there), here, lambda report: None).run()
        assert (report.elsewhere, report.others) == (1, 1)
        assert (await here.get("t", "a")).body == (b"mine" if change == "replace" else b"v1")
        assert (await there.get("t", "a")).body == b"v2"


async def test_what_changes_all_the_time_stays_and_is_counted(tmp_path):
    class Changing(HousePlace):
        async def let_go(self, load, places):
            await there.reschedule("t", "a", delay="1h")
            return await super().let_go(load, places)

    async with dwell.open(tmp_path / "old") as there, dwell.open(tmp_path / "new") as here:
        await there.put_many("t", [b"1", b"2"], ids=["a", "b"], delay="1h")
        report = await Takeover(Changing(there), here, lambda report: None).run()
        assert (report.moved, report.held_back, report.is_whole) == (1, 1, False)
        assert await there.get("t", "a") is not None
        assert await here.get("t", "a") is None


@pytest.mark.campaign
def test_workers_there_and_here_do_each_message_once(tmp_path, new):
    done: list[int] = []

    async def work(queue, stop):
        while not stop.is_set():
            batch = await queue.take("orders", 20, wait="100ms")
            results = await queue.ack(batch) if len(batch) else []
            assert all(str(result) == "acked" for result in results)
            done.extend(int(body) for body in batch.bodies)
            await asyncio.sleep(0)

    async def all_at_once():
        stop = asyncio.Event()
        async with dwell.open(tmp_path / "old") as there, dwell.open(new) as here:
            bodies = [b"%d" % at for at in range(MESSAGES)]
            delays = [f"{at * 7 % 6_500}ms" for at in range(MESSAGES)]
            await there.put_many("orders", bodies, delay=delays)
            workers = [asyncio.create_task(work(queue, stop)) for queue in (there, here)]
            place = HousePlace(there)
            report = await Takeover(place, here, lambda report: None).run()
            while len(done) < MESSAGES:
                await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*workers)
        return report

    report = asyncio.run(asyncio.wait_for(all_at_once(), 60))
    assert sorted(done) == list(range(MESSAGES))
    assert report.balances
    assert report.is_whole


@pytest.mark.campaign
def test_the_newest_version_of_each_message_is_in_one_of_both(tmp_path):
    """A producer there puts, replaces, moves and cancels at random while a takeover runs."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    newest: dict[str, tuple[bytes, int]] = {}
    start_ms = time.time_ns() // 1_000_000 + 3_600_000

    async def change(there):
        id_, due_ms = f"{chance.randrange(800)}", start_ms + chance.randrange(1_000)
        what = chance.choice(["put", "replace", "move", "cancel"])
        if what in ("put", "replace"):
            body, conflict = b"%d" % chance.randrange(10**9), "keep" if what == "put" else "replace"
            done = await there.put("t", body, id=id_, due=due_ms, on_conflict=conflict)
            # One that has moved is put anew there; then another of its id is here.
            if str(done.result) in ("created", "replaced"):
                newest[id_] = body, due_ms
        elif what == "move":
            if str(await there.reschedule("t", id_, due=due_ms)) == "moved":
                newest[id_] = newest[id_][0], due_ms
        elif str(await there.cancel("t", id_)) == "cancelled":
            del newest[id_]

    async def both():
        async with dwell.open(tmp_path / "old") as there, dwell.open(new_folder) as here:
            for _ in range(1_000):
                await change(there)
            moving = asyncio.create_task(
                Takeover(HousePlace(there), here, lambda report: None).run()
            )
            for _ in range(500):
                await change(there)
            assert (await moving).balances
            for id_, told in newest.items():
                found = [await queue.get("t", id_) for queue in (there, here)]
                assert told in [(m.body, m.due_ms) for m in found if m is not None], (seed, id_)

    new_folder = tmp_path / "new"
    asyncio.run(asyncio.wait_for(both(), 60))
