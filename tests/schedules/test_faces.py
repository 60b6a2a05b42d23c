"""Schedules over HTTP, on the command line, and in the code of a worker."""

import asyncio
import functools

import pytest

import dwell
from dwell.message import Result
from dwell.queue.schedules import TOPIC
from dwell.server.tokens import Tokens, hash_of
from dwell.worker import Worker
from tests.http.test_http_api import calling
from tests.waiting import PATIENCE_S, until_async
from tests.worker.serving import serving


async def test_the_life_of_a_schedule_over_http():
    async with calling() as caller:
        path = "/v1/schedules/report"
        ask = {"topic": "jobs", "body": {"a": 1}, "cron": "0 9 * * mon-fri", "zone": "Asia/Tokyo"}
        assert await caller.ask("PUT", path, {**ask, "jitter": "5s"}) == {"result": "created"}
        assert await caller.ask("PUT", path, {**ask, "jitter_ms": 5000}) == {"result": "kept"}
        found = await caller.get(f"{path}?runs=2")
        assert (found["body"], found["cron"], found["jitter_ms"]) == ('{"a": 1}', ask["cron"], 5000)
        assert all(run.endswith("T09:00:00+09:00") for run in found["runs"])
        assert len(found["runs"]) == 2
        assert await caller.post(f"{path}/pause", None) == {"result": "replaced"}
        (listed,) = (await caller.get("/v1/schedules"))["schedules"]
        assert (listed["name"], listed["paused"]) == ("report", True)
        assert "next_ms" not in listed
        assert await caller.post(f"{path}/resume", None) == {"result": "replaced"}
        ran = await caller.post(f"{path}/run", None)
        assert ran["result"] == "created"
        assert (await caller.server.queue.get("jobs", ran["id"])).body == b'{"a": 1}'
        ask = {"topic": "jobs", "body": {"a": 1}, "cron": "0 0 9 ? * 2-6", "dialect": "quartz"}
        assert await caller.ask("PUT", path, ask) == {"result": "replaced"}
        assert (await caller.get(path))["cron"] == "0 0 9 * * 1-5"
        await caller.ask("PUT", path, {**ask, "dialect": "hangfire"})
        assert caller.status == 400
        assert await caller.ask("DELETE", path) == {"result": "cancelled"}
        assert await caller.ask("DELETE", path) == {"result": "unknown"}
        for ask in (caller.get(path), caller.post(f"{path}/run", None)):
            await ask
            assert caller.status == 404


async def test_a_dead_schedule_has_no_runs_over_http():
    async with calling() as caller:
        queue = caller.server.queue
        await queue.schedules.put("report", "jobs", b"x", every="1h")
        await queue.reschedule(TOPIC, "report", delay=0)
        await queue.bury(await queue.take(TOPIC), "not reckoned")
        found = await caller.get("/v1/schedules/report?runs=2")
        assert (found["state"], found["problem"]) == ("dead", "not reckoned")
        assert not found.get("runs")


async def test_a_change_over_http_leaves_what_it_does_not_name():
    async with calling() as caller:
        path = "/v1/schedules/report"
        await caller.ask("PATCH", path, {"ttl": "1h"})
        assert caller.data == b'{"result":"unknown"}'
        ask = {"topic": "jobs", "body": {"a": 1}, "cron": "0 9 * * *", "zone": "Asia/Tokyo"}
        await caller.ask("PUT", path, {**ask, "ttl": "10m", "jitter_ms": 5000, "key": "k"})
        change = {"cron": "0 10 * * *", "jitter": "2s", "key": None}
        assert await caller.ask("PATCH", path, change) == {"result": "replaced"}
        assert await caller.ask("PATCH", path, change) == {"result": "kept"}
        found = await caller.get(path)
        assert (found["cron"], found["zone"]) == ("0 10 * * *", "Asia/Tokyo")
        assert (found["ttl_ms"], found["jitter_ms"], "key" in found) == (600_000, 2000, False)
        assert found["body"] == '{"a": 1}'
        assert await caller.ask("PATCH", path, {"body": "new", "ttl_ms": None}) == {
            "result": "replaced"
        }
        found = await caller.get(path)
        assert (found["body"], "ttl_ms" in found) == ("new", False)
        for bad in ({"ttl": "1h", "ttl_ms": 1}, {"colour": 1}, {"cron": "nonsense"}):
            await caller.ask("PATCH", path, bad)
            assert caller.status == 400


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        ({"topic": "t", "body": "x"}, b"got none"),
        ({"topic": "t", "body": "x", "cron": "0 0 30 2 *"}, b"cron: got"),
        ({"topic": "t", "body": "x", "every": "1s", "every_ms": 5}, b"together"),
        ({"topic": "a b", "body": "x", "every": "1s"}, b"topic"),
        ({"topic": "t", "every": "1s"}, b"body"),
        ({"topic": "t", "body": "x", "every": "1s", "colour": 1}, b"colour"),
    ],
)
async def test_bad_schedules_over_http(ask, told):
    async with calling() as caller:
        await caller.ask("PUT", "/v1/schedules/s", ask)
        assert caller.status == 400
        assert told in caller.data
        assert (await caller.get("/v1/schedules"))["schedules"] == []


_ALL = {
    "cron": "0 9 * * *",
    "zone": "Asia/Tokyo",
    "start": 1_900_000_000_000,
    "end": 2_900_000_000_000,
    "days_off": ["sat"],
    "when_off": "after",
    "jitter": "5s",
    "misfire": "all",
    "overlap": "skip",
    "grace": "2m",
    "key": "k",
    "headers": {"a": "1"},
    "priority": 3,
    "lease": "10s",
    "max_attempts": 4,
    "ttl": "10m",
}


@pytest.mark.parametrize("name", [*_ALL, "topic", "body", "every"])
async def test_a_change_of_one_field_leaves_all_others(name):
    changes = {"cron": "0 8 * * *", "every": "1h", "days_off": ["sun"], "headers": {"b": "2"}}
    changes |= {"start": 1_900_000_000_001, "end": 2_900_000_000_001, "priority": 9}
    changes |= {"zone": "UTC", "when_off": "before", "misfire": "once", "overlap": "queue"}
    value = changes.get(name, 7 if name == "max_attempts" else "7s")
    async with calling() as caller:
        path, words = "/v1/schedules/report", dict(_ALL)
        if name == "every":
            # A span has no days off.
            del words["days_off"], words["when_off"]
        await caller.ask("PUT", path, {"topic": "jobs", "body": "x", **words})
        before = await caller.get(path)
        assert await caller.ask("PATCH", path, {name: value}) == {"result": "replaced"}
        after = await caller.get(path)
        moved = {"next_ms", "runs"}
        changed = {one for one in {*before, *after} - moved if before.get(one) != after.get(one)}
        assert changed == {
            "every": {"every_ms", "cron"},
            **{one: {f"{one}_ms"} for one in ("start", "end", "jitter", "grace", "lease", "ttl")},
        }.get(name, {name})


async def test_the_client_of_a_server_has_the_same_schedules():
    async with calling() as caller, dwell.open(caller.server.url) as queue:
        assert await queue.schedules.put("s", "t", b"x", every="1h") is Result.CREATED
        assert [p.schedule.name async for p in queue.schedules.each()] == ["s"]
        assert (await caller.get("/v1/schedules/s"))["every_ms"] == 3_600_000
        assert await queue.schedules.remove("s") is Result.CANCELLED


async def test_a_worker_declares_schedules_and_takes_back_what_its_code_no_longer_has():
    clock = dwell.SimulatedClock(1_800_000_000_000)
    async with dwell.Queue(dwell.store.memory.MemoryStore(clock)) as queue:
        await queue.schedules.put("by-hand", "t", b"", every="1h")
        done = []

        def worker_of(**schedules):
            worker = Worker(queue, app="shop")
            for name, words in schedules.items():
                worker.every(name=name, **words)(lambda message: done.append(message.id))
            worker.on("other")(lambda message: None)
            return worker

        async with serving(worker_of(tick={"span": "1m"}, nightly={"cron": "0 3 * * *"})):
            await until_async(lambda: TOPIC in queue.waiting)
            clock.advance(60_000)
            await until_async(lambda: done)
        assert done == ["tick@2027-01-15T08:01:00Z"]

        async def left():
            return {p.schedule.name: p.schedule.every_ms async for p in queue.schedules.each()}

        async def are_taken_back():
            clock.advance(30_000)
            return await left() == {"by-hand": 3_600_000, "tick": 120_000}

        async with serving(worker_of(tick={"span": "2m"})):
            await until_async(lambda: TOPIC in queue.waiting)
            assert (await left()).keys() == {"by-hand", "tick", "nightly"}
            await until_async(are_taken_back)


async def test_a_worker_does_not_take_the_schedule_of_another():
    async with dwell.open("memory:") as queue:
        await queue.schedules.put("s", "t", b"", every="1h", app="bank")
        worker = Worker(queue, app="shop")
        worker.every("1m", name="s")(lambda message: None)
        with pytest.raises(dwell.InvalidSchedule, match="belongs to bank, expected shop"):
            await worker.serve()
        with pytest.raises(dwell.InvalidInput, match="has no name"):
            Worker(queue).every("1m")
        with pytest.raises(dwell.InvalidInput, match="got 'colour', expected one of dialect"):
            worker.every("1m", colour="red")


async def test_a_worker_starts_without_a_schedule_that_somebody_has_put_by_hand(caplog):
    async with dwell.open("memory:") as queue:
        await queue.schedules.put("s", "t", b"", every="1h")
        await queue.put("mails", "x", id="1")
        worker = Worker(queue, app="shop")
        worker.every("1m", name="s")(lambda message: None)
        worker.on("mails")(lambda message: None)
        async with serving(worker):
            assert (await queue.result("mails", "1", wait=PATIENCE_S)).state == "done"
        found = (await queue.schedules.get("s")).schedule
        assert (found.every_ms, found.app) == (3_600_000, "")
        assert "schedule s was not put: schedule s: belongs to nobody's code" in caplog.text


def test_a_schedule_is_named_by_its_app_and_function():
    worker = Worker("memory:", app="shop")

    @worker.every(cron="0 9 * * *", zone="Europe/Berlin")
    def report(message):
        """Nothing."""

    assert worker.described == "serving shop:report (1 at once) at memory:"


def test_each_schedule_of_a_worker_has_a_name_of_its_own():
    """Under one name the last rule would be put, and both functions get its messages."""

    def report(message):
        """Nothing."""

    def logged(function):
        def wrapper(message):
            return function(message)

        return wrapper

    worker = Worker("memory:", app="shop")
    worker.every("1h")(report)
    worker.every("1h")(logged(report))
    for function in (report, logged(report)):
        with pytest.raises(dwell.InvalidInput, match="is declared already, expected every"):
            worker.every("2h")(function)
    with pytest.raises(dwell.InvalidInput, match="name: 'shop:report' is declared already"):
        worker.every("2h", name="shop:report", topic="other")(print)
    with pytest.raises(dwell.InvalidInput, match="has none, expected every"):
        worker.every("2h")(functools.partial(report, None))
    worker.every("2h", name="evening")(report)
    expected = "shop:report (1 at once); shop:wrapper (1 at once); evening (1 at once)"
    assert worker.described == f"serving {expected} at memory:"


def test_each_topic_of_a_schedule_has_one_handler():
    """Each of two would get the messages of both, and not know it."""
    worker = Worker("memory:", app="shop")
    worker.every("1h", name="invoices", topic="jobs")(print)
    worker.on("mails")(print)
    refused = pytest.raises(dwell.InvalidInput, match=r"topic: (jobs|mails) has a handler already")
    with refused:
        worker.every("1h", name="cleanup", topic="jobs")(repr)
    with refused:
        worker.every("1h", name="cleanup", topic="mails")(repr)
    with refused:
        worker.on(["other", "jobs"])(repr)
    worker.every("1h", name="cleanup")(repr)
    worker.on("mails")(repr)
    # One function may have two rules.
    worker.every("2h", name="evening", topic="jobs")(print)
    assert worker.described.count("at once") == 5


async def test_fire_ends_with_its_queue():
    async with dwell.open("memory:") as queue:
        firing = asyncio.create_task(queue.schedules.fire())
        await until_async(lambda: TOPIC in queue.waiting)
    await asyncio.wait_for(firing, 10)


@pytest.mark.parametrize(
    ("rights", "status"),
    [
        ({"put": ["t"], "take": ["t"], "admin": ["t"]}, 403),
        ({"put": ["other"], "admin": [TOPIC]}, 403),
        ({"put": ["t"], "admin": [TOPIC]}, 200),
        ({"put": ["t", "other"], "admin": [TOPIC]}, 200),
    ],
)
async def test_schedules_are_for_those_who_may_administer_them(tmp_path, rights, status):
    lines = "\n".join(f"{right} = {topics}" for right, topics in rights.items())
    file = tmp_path / "tokens.toml"
    file.write_text(f'[[token]]\nname = "tenant"\nsha256 = "{hash_of("secret")}"\n{lines}\n')
    async with calling(tokens=Tokens.load(file)) as caller:
        await caller.server.queue.schedules.put("theirs", "t", b"", every="1h")
        mine = {"authorization": "Bearer secret"}
        ask = {"topic": "t", "body": "x", "every": "1m"}
        await caller.ask("PUT", "/v1/schedules/mine", ask, **mine)
        assert caller.status == status
        await caller.post("/v1/schedules/theirs/run", None, **mine)
        assert caller.status == status
        for change, topics in (
            ({}, {"t"}),
            ({"body": "x"}, {"t"}),
            ({"topic": "other"}, {"t", "other"}),
        ):
            await caller.ask("PATCH", "/v1/schedules/theirs", change, **mine)
            may_change = TOPIC in rights["admin"] and topics <= set(rights["put"])
            assert caller.status == (200 if may_change else 403)
        may_look = 200 if TOPIC in rights["admin"] else 403
        await caller.get("/v1/schedules", **mine)
        assert caller.status == may_look
        await caller.post("/v1/schedules/theirs/pause", None, **mine)
        assert caller.status == may_look
        await caller.get("/v1/schedules")
        assert caller.status == 401


async def test_runs_of_one_millisecond_each_put_a_message():
    async with calling() as caller:
        await caller.ask("PUT", "/v1/schedules/n", {"topic": "t", "body": "x", "every": "1h"})
        runs = [caller.post("/v1/schedules/n/run", None) for _ in range(30)]
        answers = await asyncio.gather(*runs)
        assert [one["result"] for one in answers] == ["created"] * 30
        assert len({one["id"] for one in answers}) == 30
