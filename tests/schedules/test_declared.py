"""Schedules that the code of an app declares: several versions and modules side by side."""

import asyncio
import contextlib
import logging
from datetime import timedelta

import msgspec
import pytest

import dwell
from dwell.given.values import Millis
from dwell.message import Result
from dwell.queue.schedules import TOPIC as SCHEDULES
from dwell.queue.schedules.changing import Changing
from dwell.server.tokens import Tokens, hash_of
from dwell.store.memory import MemoryStore
from dwell.worker import Worker
from dwell.worker.declared import TOPIC, Code, Declared, Declaring
from tests.http.grants import tokens_of
from tests.http.served import served
from tests.http.test_http_api import calling
from tests.schedules.test_schedules import NINE_MS
from tests.waiting import PATIENCE_S, until_async
from tests.worker.serving import queue_of, serving

KEEP_MS, BEAT_MS = 300_000, 30_000
HOUR_MS = 3_600_000
#: More beats than a schedule that nobody declares is kept.
MANY = 15


@contextlib.asynccontextmanager
async def opened():
    clock = dwell.SimulatedClock(NINE_MS)
    async with dwell.Queue(MemoryStore(clock)) as queue:
        yield queue, clock


async def started(queue, **hours):
    """Start code of the app that declares schedules, each of every so many hours."""
    declared = [Declared(name, name, b"", {"every": f"{span}h"}) for name, span in hours.items()]
    code = Declaring(queue, "shop", declared, KEEP_MS)
    await code.start()
    return code


async def goes_on(clock, *running, beats=MANY):
    for _ in range(beats):
        clock.advance(BEAT_MS)
        for code in running:
            await code.beat()


async def hours(queue):
    return {p.schedule.name: p.schedule.every_ms // HOUR_MS async for p in queue.schedules.each()}


async def test_what_running_code_declares_stays_and_what_none_declares_is_removed_and_logged(
    caplog,
):
    async with opened() as (queue, clock):
        await queue.schedules.put("by-hand", "t", b"", every="1h")
        await queue.schedules.put("other", "t", b"", every="1h", app="another")
        mails, reports = await started(queue, mail=2), await started(queue, report=3)
        await goes_on(clock, mails, reports)
        stays = {"by-hand": 1, "other": 1, "report": 3}
        assert await hours(queue) == {**stays, "mail": 2}
        await goes_on(clock, reports, beats=9)
        assert await hours(queue) == {**stays, "mail": 2}
        assert not caplog.records
        await goes_on(clock, reports, beats=2)
        assert await hours(queue) == stays
        (record,) = caplog.records
        assert record.getMessage() == (
            "schedule mail: removed, as no running worker of shop has declared it for 300 s"
        )
        mails = await started(queue, mail=2)
        await goes_on(clock, mails, reports)
        assert await hours(queue) == {**stays, "mail": 2}


@pytest.mark.parametrize("is_old_first", [True, False])
async def test_a_rolling_deploy_ends_with_the_schedules_of_the_new_code(is_old_first):
    async with opened() as (queue, clock):
        versions = [{"tidy": 1, "gone": 1}, {"tidy": 2, "new": 2}]
        first, second = [
            await started(queue, **said) for said in (versions if is_old_first else versions[::-1])
        ]
        await goes_on(clock, first, second)
        assert (await hours(queue)).keys() == {"tidy", "gone", "new"}
        await goes_on(clock, second if is_old_first else first)
        assert await hours(queue) == versions[1]


async def test_an_old_replica_that_starts_again_changes_nothing_while_newer_code_runs(caplog):
    async with opened() as (queue, clock):
        old = await started(queue, tidy=1, gone=1)
        new = await started(queue, tidy=2, new=2)
        for _ in range(3):
            old = await started(queue, tidy=1, gone=1)
            await goes_on(clock, new, old, beats=2)
            assert await hours(queue) == {"tidy": 2, "gone": 1, "new": 2}
        await goes_on(clock, new)
        assert await hours(queue) == {"tidy": 2, "new": 2}
        caplog.clear()
        for _ in range(3):
            old = await started(queue, tidy=1, gone=1)
            await goes_on(clock, new, old, beats=2)
            assert await hours(queue) == {"tidy": 2, "new": 2}
        assert "gone: not put yet, as newer code of shop runs without it" in caplog.text
        # A rollback: only the old code is left.
        await goes_on(clock, old)
        assert await hours(queue) == {"tidy": 1, "gone": 1}


async def test_a_schedule_that_somebody_removes_by_hand_is_put_again_by_the_next_start_only():
    async with opened() as (queue, clock):
        code = await started(queue, tidy=1)
        assert await queue.schedules.remove("tidy") is Result.CANCELLED
        await goes_on(clock, code)
        assert await hours(queue) == {}
        await started(queue, tidy=1)
        assert await hours(queue) == {"tidy": 1}


@pytest.mark.parametrize("is_cleared", [True, False])
async def test_code_that_could_not_renew_its_record_puts_its_schedules_again(is_cleared):
    async with opened() as (queue, clock):
        mails, reports = await started(queue, mail=2), await started(queue, report=3)
        await goes_on(clock, reports)
        assert await hours(queue) == {"report": 3}
        if is_cleared:
            await queue.clear(TOPIC)
        await goes_on(clock, mails, reports)
        assert await hours(queue) == {"mail": 2, "report": 3}


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 400 * 24 * HOUR_MS])
async def test_a_step_of_the_clock_removes_nothing(step_ms):
    """Records of all are out of date at once, or of the future, until they are renewed."""
    async with opened() as (queue, clock):
        both = [await started(queue, mail=2), await started(queue, report=3)]
        await goes_on(clock, *both)
        clock.advance(step_ms)
        await goes_on(clock, *both)
        assert await hours(queue) == {"mail": 2, "report": 3}


async def test_bad_records_stop_nobody(caplog):
    async with opened() as (queue, clock):
        await started(queue, tidy=1, gone=1)
        bodies = [b"", b"[" * 5000, b"{}", b"\xff", b'{"app":"shop","generation":"x"}']
        for number, body in enumerate(bodies):
            await queue.put(TOPIC, body, id=f"bad-{number}", delay="1h")
        future = Code(app="shop", generation=99, valid_ms=1000, names=["tidy", "gone"])
        await queue.put(TOPIC, msgspec.json.encode(future), id="future", delay="10d")
        new = await started(queue, tidy=2)
        await goes_on(clock, new)
        assert await hours(queue) == {"tidy": 2}
        told = [r.getMessage() for r in caplog.records if "bad-" in r.getMessage()]
        # Each worker says it once.
        assert len(told) <= 2 * len(bodies)
        assert {f"bad-{n}" for n in range(5)} == {text.split()[1] for text in told}


async def test_records_are_forgotten_after_a_day():
    async with opened() as (queue, clock):
        for number in range(1, 4):
            await started(queue, tidy=number)
        code = await started(queue, tidy=4)
        clock.advance(26 * HOUR_MS)
        await goes_on(clock, code, beats=2)
        assert len([m async for batch in queue.pages(TOPIC) for m in batch]) == 1
        assert await hours(queue) == {"tidy": 4}


async def test_one_schedule_that_cannot_be_put_does_not_stop_the_others_later_on(caplog):
    async with opened() as (queue, clock):
        code = await started(queue, tidy=1, report=2)
        await queue.clear(TOPIC)
        await queue.schedules.remove("tidy")
        await queue.schedules.put("tidy", "t", b"", every="5h")
        await queue.schedules.remove("report")
        await goes_on(clock, code, beats=1)
        assert await hours(queue) == {"tidy": 5, "report": 2}
        assert "schedule tidy was not put: schedule tidy: belongs to nobody's code" in caplog.text
        await queue.schedules.remove("tidy")
        await goes_on(clock, code, beats=1)
        assert await hours(queue) == {"tidy": 1, "report": 2}


async def test_a_declared_schedule_that_is_put_by_hand_stays(caplog):
    async with opened() as (queue, clock):
        code = await started(queue, tidy=1, report=2)
        assert await queue.schedules.put("tidy", "t", b"", every="5h") is Result.REPLACED
        await goes_on(clock, code)
        # Neither code that declares it nor code that does not replaces or removes it.
        for declared in ({"tidy": 1, "report": 2}, {"report": 2}):
            code = await started(queue, **declared)
            await goes_on(clock, code)
            assert await hours(queue) == {"tidy": 5, "report": 2}
        assert "schedule tidy was not put" in caplog.text


async def test_a_schedule_that_is_leased_for_long_keeps_no_worker_from_starting(
    monkeypatch, caplog
):
    monkeypatch.setattr("dwell.worker.declared._PATIENCE_S", 0.1)
    async with opened() as (queue, clock):
        await started(queue, first=1, gone=1)
        await queue.reschedule(SCHEDULES, ["first", "gone"], delay=0)
        held = await queue.take_ids(SCHEDULES, ["first", "gone"], lease="1d")
        assert len(held) == 2
        code = await started(queue, first=2, second=2)
        assert (await queue.schedules.get("second")).schedule.every_ms == 2 * HOUR_MS
        assert "schedule first was not put: schedule first: somebody has fired" in caplog.text
        await goes_on(clock, code, beats=12)
        assert "schedule gone was not removed: " in caplog.text
        await queue.release(held, counted=False)
        await goes_on(clock, code, beats=1)
        assert await hours(queue) == {"first": 2, "second": 2}


async def test_of_two_apps_that_start_together_one_is_told_that_the_name_is_taken(
    caplog, monkeypatch
):
    put, both = Changing.put, asyncio.Barrier(2)

    async def together(changing, *args, **words):
        # Each has seen by now that the name is free.
        await both.wait()
        return await put(changing, *args, **words)

    monkeypatch.setattr(Changing, "put", together)
    async with opened() as (queue, _clock):
        apps = {
            app: Declaring(queue, app, [Declared("report", app, b"", {"every": "1h"})], 300_000)
            for app in ("shop", "bank")
        }
        await asyncio.gather(*(code.start() for code in apps.values()))
        found = await queue.schedules.get("report")
        assert found.schedule.topic == found.schedule.app
        (loser,) = apps.keys() - {found.schedule.app}
        assert f"belongs to {found.schedule.app}, expected {loser}" in caplog.text


async def test_a_worker_starts_whose_schedule_has_ended(caplog):
    """The schedule is left out with a line in the log, also where an older rule still fires."""
    caplog.set_level(logging.INFO)
    async with opened() as (queue, clock):
        await queue.schedules.put("promo", "promo", b"", every="1h", app="shop")
        done = []
        worker = Worker(queue, app="shop")
        worker.on("orders")(lambda message: done.append(message.id))
        end = clock.now_ms() - HOUR_MS
        worker.every("1s", name="promo", start=end - HOUR_MS, end=end)(done.append)
        rule = "FREQ=DAILY;UNTIL=20200101T000000Z"
        worker.every(rrule=rule, name="sale")(done.append)
        worker.every("2h", name="tidy")(done.append)
        await queue.put("orders", b"", id="first")
        async with serving(worker):
            await until_async(lambda: done)
        assert done == ["first"]
        assert await hours(queue) == {"tidy": 2}
        for name in ("promo", "sale"):
            assert f"schedule {name}: not put, as it fires no more from now on" in caplog.text


@contextlib.asynccontextmanager
async def remote(tmp_path):
    """Give a queue of a server, by a token that may change schedules and no more of the queue's."""
    rights = f'put = ["{SCHEDULES}"]\nadmin = ["{SCHEDULES}"]\ntake = ["mail", "report"]\n'
    file = tmp_path / "tokens.toml"
    file.write_text(f'[[token]]\nname = "worker"\nsha256 = "{hash_of("secret")}"\n{rights}')
    async with (
        calling(tokens=Tokens.load(file)) as caller,
        dwell.open(caller.server.url, token="secret") as queue,
    ):
        yield queue


@pytest.mark.parametrize("is_remote", [False, True])
async def test_workers_renew_their_records_while_they_run(is_remote, tmp_path):
    async with remote(tmp_path) if is_remote else dwell.open("memory:") as queue:
        workers = []
        for name in ("mail", "report"):
            worker = Worker(queue, app="shop", keep_schedules="200ms")
            worker.every("1h", name=name)(lambda message: None)
            workers.append(worker)
        async with serving(workers[1]):
            async with serving(workers[0]):
                await until_async(lambda: queue.schedules.get("mail"))
                found = await queue.schedules.get("mail")
                await asyncio.sleep(0.5)
                assert await queue.schedules.get("mail") == found
            await until_async(lambda: is_gone(queue, "mail"))
            assert await queue.schedules.get("report")


@pytest.mark.parametrize("quota", [None, "quota = {pending = 2}"])
async def test_a_worker_empties_a_store_that_takes_nothing_new(
    quota, tmp_path, monkeypatch, caplog
):
    """It drains, or a quota is used up: what is not declared at the start is declared later."""
    monkeypatch.setattr("dwell.worker.app._DECLARING_SECONDS", 0.1)
    rights = 'put = [""]\ntake = [""]\nread = [""]\nadmin = [""]\n'
    tokens = tokens_of(tmp_path, {"shop": rights + (quota or "")})
    async with served(tokens=tokens) as server, dwell.open(server.url, token="shop") as queue:
        worker = Worker(queue, app="shop", keep_schedules="500ms")
        worker.on("mails")(lambda message: None)
        worker.every("1h", name="report")(lambda message: None)
        await queue.put_many("mails", ["x"] * 2, ids=["1", "2"])
        server.service.is_draining = quota is None
        async with serving(worker):
            for id_ in "12":
                assert (await queue.result("mails", id_, wait=PATIENCE_S)).state == "done"
            server.service.is_draining = False
            await until_async(lambda: queue.schedules.get("report"))
        trouble = "not declared yet" if quota is None else "could not be declared"
        assert trouble in caplog.text


async def test_a_worker_that_declares_heeds_a_stop(monkeypatch):
    """Also while the server that it asks takes nothing new, for however long."""
    monkeypatch.setattr("dwell.worker.app._DECLARING_SECONDS", 3600)
    async with served() as server:
        server.service.is_draining = True
        worker = Worker(server.url, app="shop")
        worker.on("mails")(lambda message: None)
        serve = asyncio.create_task(worker.serve())
        await queue_of(worker)
        worker.stop()
        await asyncio.wait_for(serve, PATIENCE_S)


async def test_a_worker_without_the_right_to_declare_ends(tmp_path):
    tokens = tokens_of(tmp_path, {"shop": 'put = ["mails"]\ntake = ["mails"]'})
    async with served(tokens=tokens) as server, dwell.open(server.url, token="shop") as queue:
        worker = Worker(queue, app="shop")
        worker.on("mails")(lambda message: None)
        with pytest.raises(dwell.errors.Forbidden):
            await asyncio.wait_for(worker.serve(), PATIENCE_S)


async def is_gone(queue, name):
    return await queue.schedules.get(name) is None


def test_a_span_that_is_none_is_refused():
    with pytest.raises(dwell.InvalidInput, match="keep_schedules"):
        Worker("memory:", app="shop", keep_schedules="soon")
    assert Worker("memory:", keep_schedules=timedelta(minutes=1))
    assert Worker("memory:", keep_schedules=Millis(5))
