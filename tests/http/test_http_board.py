"""The board over HTTP: what it shows to whom, at what cost, and how far a search goes."""

import asyncio
import contextlib
import json

import pytest

import dwell
from dwell.clock import RealClock
from dwell.message import State
from dwell.queue import lookback
from dwell.server import largest, window
from dwell.server.board import board, fairlock, shared
from dwell.server.board.board import Board, Look
from dwell.server.http import filters, histories, paging, watch
from dwell.server.http.api import ENDPOINTS
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from tests.console.browser import tokens_in
from tests.http.served import served
from tests.http.test_http_api import calling
from tests.waiting import PATIENCE_S, until_async

ORDERS = '[anonymous]\nadmin = ["orders."]\nput = ["orders."]\n'


async def test_who_may_administer_some_topics_sees_only_those(tmp_path):
    async with calling(tokens=tokens_in(tmp_path, ORDERS)) as caller:
        queue = caller.server.queue
        for topic in ("orders.a", "secret.b"):
            await queue.put_many(topic, ["x"] * 3)
            await queue.put_many(topic, ["x"] * 5, delay="10s")
            await queue.take(topic, 2, owner="me", lease="1h")
        found = await caller.get("/v1/overview")
        assert [row["name"] for row in found["topics"]] == ["orders.a"]
        sums = found["sums"]
        assert (sums["topics"], sums["delayed"], sums["ready"], sums["leased"]) == (1, 5, 1, 2)
        assert list((await caller.get("/v1/oldest"))["topics"]) == ["orders.a"]
        (held,) = (await caller.get("/v1/holders"))["holders"]
        assert (held["owner"], held["topic"], held["messages"]) == ("me", "orders.a", 2)
        spans = {"start_ms": queue.clock.now_ms(), "span_ms": 60_000, "count": 2}
        assert (await caller.post("/v1/load", spans))["counts"] == [5, 0]
        rights = await caller.get("/v1/rights")
        assert (rights["has_tokens"], rights["admin"], rights["take"]) == (True, ["orders."], [])
        for method, path, body in (
            ("POST", "/v1/load", {**spans, "topics": ["secret.b"]}),
            ("GET", "/v1/health", None),
            ("GET", "/v1/topics/secret.b/history/x", None),
            ("GET", "/v1/topics/secret.b/reasons", None),
            ("POST", "/v1/watch", {"health": True}),
            ("POST", "/v1/watch", {"load": {**spans, "topics": ["secret.b"]}}),
        ):
            await caller.ask(method, path, body)
            assert caller.status == 401, (path, caller.data)


async def test_rates_and_lateness_are_of_what_happened_lately():
    async with calling() as caller:
        queue = caller.server.queue
        await queue.put_many("t", ["x"] * 60)
        await queue.ack(await queue.take("t", 30))
        await queue.put("u", "x")
        rows = {row["name"]: row for row in (await caller.get("/v1/overview"))["topics"]}
        assert (rows["t"]["put_rate"], rows["t"]["take_rate"], rows["t"]["ack_rate"]) == (2, 1, 1)
        assert 0 <= rows["t"]["late_p50_ms"] <= rows["t"]["late_p99_ms"] < 60_000
        assert rows["u"]["late_p50_ms"] is None


async def test_of_very_much_the_newest_part_says_the_rates():
    async with calling() as caller:
        queue = caller.server.queue
        for _ in range(3):
            await queue.put_many("t", ["x"] * 10_000)
        (row,) = (await caller.get("/v1/overview"))["topics"]
        assert row["put_rate"] >= 10_000 / 30


async def test_topics_come_in_an_order_and_page_by_page():
    async with calling() as caller:
        for at in range(7):
            await caller.server.queue.put_many(f"t{at}", ["x"] * (at + 1), delay="1h")
        found = await caller.get("/v1/overview?sort=delayed&limit=3&offset=2")
        assert [row["name"] for row in found["topics"]] == ["t4", "t3", "t2"]
        assert (found["next"], found["sums"]["delayed"]) == (5, 28)
        found = await caller.get("/v1/overview?match=6")
        assert [row["name"] for row in found["topics"]] == ["t6"]
        for query in ("sort=no", "limit=201", "offset=-1", "limit=x"):
            await caller.get(f"/v1/overview?{query}")
            assert caller.status == 400


async def test_many_who_look_are_one_to_the_store():
    class Counting(MemoryStore):
        asked = 0

        async def oldest_ready(self):
            self.asked += 1
            await asyncio.sleep(0.01)
            return await super().oldest_ready()

    store = Counting(RealClock())
    async with dwell.Queue(store) as queue:
        board = Board(queue)
        look = Look(("",))
        await asyncio.gather(*(board.overview(look) for _ in range(50)))
        assert store.asked == 1
        await board.overview(look)
        assert store.asked == 1


class Failing(MemoryStore):
    """A store that cannot say who holds what, until it is mended."""

    is_broken = True

    async def holders(self, limit, prefixes):
        if self.is_broken:
            raise dwell.StoreError("broken")
        return await super().holders(limit, prefixes)


async def test_what_failed_is_found_out_again():
    store = Failing(RealClock())
    async with dwell.Queue(store) as queue:
        board = Board(queue)
        with pytest.raises(dwell.StoreError):
            await board.holders(("",))
        store.is_broken = False
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(dwell.StoreError):
                    assert json.loads(bytes(await board.holders(("",))))["holders"] == []
                    break
                await asyncio.sleep(0.05)


async def test_what_is_found_out_for_many_is_found_out_one_after_the_other():
    at_once = most = 0

    async def find(key):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return key

    answers = shared.SharedBy(find, 60.0)
    assert await asyncio.gather(*(answers.get(at % 5) for at in range(20))) == [*range(5)] * 4
    assert most == 1


async def test_many_questions_leave_most_of_the_time_to_others():
    loop, took = asyncio.get_running_loop(), []

    async def find(key):
        start = loop.time()
        await asyncio.sleep(0.005)
        took.append(loop.time() - start)

    answers, start = shared.SharedBy(find, 60.0), loop.time()
    await asyncio.gather(*map(answers.get, range(20)))
    assert loop.time() - start > 2 * sum(took)


async def test_nobody_waits_for_all_questions_of_another():
    order, begun = [], asyncio.Event()

    async def find(key):
        order.append(key)
        begun.set()
        await asyncio.sleep(0)

    answers = shared.SharedBy(find, 60.0)
    foreign = [asyncio.ensure_future(answers.get(("foreign", at), "foreign")) for at in range(20)]
    await begun.wait()
    await asyncio.gather(*foreign, *(answers.get(("own", at), "own") for at in range(3)))
    assert [order.index(("own", at)) for at in (0, 1, 2)] == [2, 4, 6]
    assert len(order) == 23


async def test_a_lock_whose_holder_and_next_are_cancelled_is_free():
    lock, tasks = fairlock.FairLock(), []

    async def hold(group):
        async with lock.held(group):
            await asyncio.sleep(0)

    for at in range(30):
        tasks.append(asyncio.ensure_future(hold(at % 3)))
        if at % 4 == 0:
            await asyncio.sleep(0)
        tasks[at * 7 % (at + 1)].cancel()
    await asyncio.wait(tasks, timeout=PATIENCE_S)
    await asyncio.wait_for(hold("last"), PATIENCE_S)


async def test_the_settings_of_all_topics_of_a_view_are_kept(monkeypatch):
    monkeypatch.setattr(board, "_SETTINGS_S", 60.0)
    asked = []
    async with dwell.Queue(MemoryStore(RealClock())) as queue:
        for at in range(100):
            await queue.put(f"t:{at}", "x")
        settings = queue.settings

        async def noted(topic):
            asked.append(topic)
            return await settings(topic)

        queue.settings = noted
        shown = Board(queue)
        for limit in (100, 99, 98):
            assert len((await shown.overview(Look(("",), limit=limit))).topics) == limit
    assert len(asked) == 100


async def test_what_others_hold_takes_no_place_of_ones_own(tmp_path):
    async with calling(tokens=tokens_in(tmp_path, ORDERS)) as caller:
        queue = caller.server.queue
        for topic, count in (("secret.a", 9), ("secret.b", 8), ("orders.a", 1)):
            await queue.put_many(topic, ["x"] * count)
            await queue.take(topic, count, lease="1h")
        for path in ("/v1/holders?limit=1", "/v1/holders"):
            assert [one["topic"] for one in (await caller.get(path))["holders"]] == ["orders.a"]
        for prefixes, topics in (
            ("orders.a,x", ["orders.a"]),
            ("o", ["orders.a"]),
            ("secret.", []),
        ):
            found = await caller.get(f"/v1/holders?prefixes={prefixes}")
            assert [one["topic"] for one in found["holders"]] == topics
        shown = caller.server.service.board
        (held,) = json.loads(bytes(await shown.holders(("orders.",))))["holders"]
        assert (held["topic"], held["messages"]) == ("orders.a", 1)


async def test_the_load_of_all_that_one_may_see_is_that_of_now(tmp_path):
    async with calling(tokens=tokens_in(tmp_path, ORDERS)) as caller:
        queue = caller.server.queue
        await queue.put("secret.a", "x", delay="30s")
        spans = {"start_ms": queue.clock.now_ms(), "span_ms": 60_000, "count": 1}
        for count in range(3):
            assert (await caller.post("/v1/load", spans))["counts"] == [count]
            await queue.put(f"orders.{count}", "x", delay="30s")


async def test_since_when_they_wait_is_said_part_by_part(monkeypatch):
    monkeypatch.setattr(paging, "MOST_TOPICS", 2)
    async with calling() as caller, dwell.open(caller.server.url) as queue:
        for at in range(5):
            await caller.server.queue.put(f"t:{at}", "x")
        found = await caller.get("/v1/oldest")
        assert (list(found["topics"]), found["next"]) == (["t:0", "t:1"], "t:1")
        assert list(await queue.oldest_ready()) == [f"t:{at}" for at in range(5)]


async def test_topics_are_counted_page_by_page(monkeypatch):
    async with calling() as caller, dwell.open(caller.server.url) as queue:
        for at in range(5):
            await queue.put_many(f"t:{at}", ["x"] * (at + 1))
        whole = await queue.stats()
        for most in range(1, 7):
            monkeypatch.setattr(paging, "MOST_TOPICS", most)
            assert await queue.stats() == whole
            assert [whole.topics[f"t:{at}"].ready for at in range(5)] == [1, 2, 3, 4, 5]
        monkeypatch.setattr(paging, "MOST_TOPICS", 2)
        for path in ("/v1/stats", "/v1/topics"):
            names, after = [], ""
            while after is not None:
                page = await caller.get(f"{path}?after={after}")
                assert 0 < len(page["topics"]) <= 2
                names += page["topics"]
                after = page["next"]
            assert names == [f"t:{at}" for at in range(5)]


async def test_an_origin_that_is_none_is_refused():
    async with calling() as caller:
        await caller.ask("GET", "/v1/stats", None, origin="http://[")
        assert caller.status == 403


# --- streams ----------------------------------------------------------------------------------


async def _next(stream):
    """Return the kind and the data of the next event."""
    kind = (await stream.content.readline()).decode().removeprefix("event: ").strip()
    data = (await stream.content.readline()).decode().removeprefix("data: ")
    await stream.content.readline()
    return kind, json.loads(data)


async def test_a_stream_sends_what_has_changed():
    async with calling() as caller:
        ask = {"overview": {}, "holders": True, "health": True}
        async with caller.session.post(caller.server.url + "/v1/watch", json=ask) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert [(await _next(stream))[0] for _ in ask] == list(ask)
            await caller.server.queue.put("t", "x")
            while True:
                kind, data = await _next(stream)
                if kind == "overview" and data["topics"]:
                    break
            assert data["topics"][0]["ready"] == 1
            assert caller.server.service.board.watchers == 1
        await until_async(lambda: caller.server.service.board.watchers == 0)
        assert not caller.server.port.waits.streams


async def test_a_stream_of_the_board_ends_with_its_rights(tmp_path):
    tokens = tokens_in(tmp_path, ORDERS)
    async with calling(tokens=tokens) as caller:
        async with caller.session.post(
            caller.server.url + "/v1/watch", json={"overview": {}}
        ) as stream:
            await _next(stream)
            tokens.path.write_text('[anonymous]\nput = [""]\n')
            tokens.reload()
            async with asyncio.timeout(20):
                assert b"event" not in await stream.content.read()
        assert caller.server.service.board.watchers == 0


async def test_only_so_many_watch(monkeypatch):
    monkeypatch.setattr(watch, "MOST_WATCHERS", 1)
    async with calling() as caller:
        url = caller.server.url + "/v1/watch"
        async with caller.session.post(url, json={"holders": True}) as stream:
            await _next(stream)
            await caller.post("/v1/watch", {"holders": True})
            assert caller.status == 429


async def test_one_token_watches_in_a_part_of_the_streams(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "MOST_WATCHERS", 4)
    two = "".join(f'[[token]]\nname = "{name}"\nadmin = [""]\n' for name in ("ann", "bob"))
    async with (
        calling(tokens=tokens_in(tmp_path, two)) as caller,
        contextlib.AsyncExitStack() as on,
    ):
        caller.server.service.token_percent = 50
        statuses = []
        for name in ("ann", "ann", "ann", "bob"):
            stream = await on.enter_async_context(
                caller.session.post(
                    caller.server.url + "/v1/watch",
                    json={"holders": True},
                    headers={"authorization": f"Bearer {name}"},
                )
            )
            statuses.append(stream.status)
            if stream.status == 200:
                await _next(stream)
        assert statuses == [200, 200, 429, 200]


async def test_a_stream_says_when_the_store_fails_and_goes_on():
    store = Failing(RealClock())
    async with (
        served(store) as server,
        calling() as caller,
        caller.session.post(server.url + "/v1/watch", json={"holders": True}) as stream,
    ):
        kind, data = await _next(stream)
        assert (kind, data["detail"]) == ("problem", "broken")
        store.is_broken = False
        assert (await _next(stream))[0] == "holders"


# --- histories and reasons --------------------------------------------------------------------


async def test_a_long_history_comes_part_by_part(monkeypatch):
    monkeypatch.setattr(histories, "_MOST_EVENTS", 4)
    async with calling() as caller:
        queue = caller.server.queue
        await queue.put("t", "x", id="x")
        for _ in range(5):
            await queue.release(await queue.take("t"), counted=False)
        found, before = [], ""
        while before is not None:
            part = await caller.get(f"/v1/topics/t/history/x{before and f'?before={before}'}")
            assert len(part["events"]) <= 4
            found, before = part["events"] + found, part["before"]
        assert part["is_whole"]
        assert [event["kind"] for event in found] == ["put", *["take", "release"] * 5]


async def test_the_history_of_a_message_begins_with_its_put():
    async with calling() as caller:
        queue = caller.server.queue
        await queue.put("t", "x", id="a/b?c")
        await queue.cancel("t", "a/b?c")
        await queue.put("t", "x", id="a/b?c")
        await queue.put("u", "x", id="a/b?c")
        await queue.release(await queue.take("t"))
        found = await caller.get("/v1/topics/t/history/a%2Fb%3Fc")
        assert [event["kind"] for event in found["events"]] == ["put", "take", "release"]
        assert (found["is_whole"], found["before"], found["looked"]) == (True, None, 6)
        found = await caller.get("/v1/topics/t/history/none")
        assert (found["events"], found["is_whole"], found["before"]) == ([], False, None)


async def test_a_long_search_says_how_far_it_came(monkeypatch):
    monkeypatch.setattr(histories, "MOST_LOOK_S", 0)
    monkeypatch.setattr(lookback, "PAGE", 10)
    monkeypatch.setattr(histories, "_SWEPT", 10)
    async with calling() as caller:
        queue = caller.server.queue
        await queue.put("t", "x", id="one")
        await queue.put_many("t", ["x"] * 35)
        before, looked = None, []
        while before is not None or not looked:
            query = "" if before is None else f"?before={before}"
            found = await caller.get(f"/v1/topics/t/history/one{query}")
            before = found["before"]
            looked.append(found["looked"])
        assert looked == [10, 10, 10, 6]
        assert [event["kind"] for event in found["events"]] == ["put"]
        batch = list(await queue.take("t", 36))
        await queue.bury(batch[:20], reason="a")
        await queue.bury(batch[20:])
        place, counts, asked = 0, {}, 0
        while place is not None:
            found = await caller.get(f"/v1/topics/t/reasons?place={place}")
            for row in found["reasons"]:
                counts[row["reason"]] = counts.get(row["reason"], 0) + row["messages"]
            place, asked = found["next_place"], asked + 1
        assert counts == {"a": 20, "": 16}
        assert asked > 2


async def test_a_search_takes_so_long_and_the_client_goes_on(monkeypatch):
    monkeypatch.setattr(filters, "MOST_LOOK_S", 0)
    async with calling() as caller, dwell.open(caller.server.url) as queue:
        await caller.server.queue.put_many("t", [{"n": at} for at in range(9_000)])
        ask = {"where": "n == `8999`", "limit": 10}
        found = await caller.post("/v1/topics/t/find", ask)
        assert (found["messages"], found["cursor"] is None) == ([], False)
        assert len(await queue.find("t", "n == `8999`")) == 1
        done = await queue.cancel_where("t", "n >= `8000`", dry_run=True)
        assert (done.matched, done.is_complete) == (1000, True)
        done = await queue.cancel_where("t", "n >= `8000`")
        assert (done.matched, done.is_complete) == (1000, True)
        # What is moved would be met again, so it is done in one request however long it takes.
        done = await queue.reschedule_where("t", "n < `100`", delay="1h")
        assert (done.matched, done.is_complete) == (100, True)


async def test_what_is_kicked_with_a_pace_falls_due_bit_by_bit(monkeypatch):
    monkeypatch.setattr(filters, "MOST_LOOK_S", 0)
    async with calling() as caller, dwell.open(caller.server.url) as queue:
        own = caller.server.queue
        await own.put_many("t", ["x"] * 4_000)
        await own.bury(await own.take("t", 4_000))
        done = await queue.kick_where("t", dwell.select(), pace=300, delay="1h")
        assert (done.matched, done.results[dwell.Result.KICKED]) == (4_000, 4_000)
        dues = (await own.scan("t", "delayed", limit=10_000)).messages.due_ms
        assert len(dues) == 4_000
        # Any 301 of them in a row need a second, also where one request ends and the next begins.
        assert (dues[300:] - dues[:-300]).min() >= 1000
        await caller.post("/v1/topics/t/kick", {"ids": ["x"], "pace": 1})
        assert caller.status == 400
        assert "pace" in caller.data.decode()


async def test_no_second_has_more_than_the_pace():
    async with dwell.open("memory:", clock=dwell.SimulatedClock()) as queue:
        for _ in range(2):
            await queue.put_many("t", ["x"] * 10_000)
            await queue.bury(await queue.take("t", 10_000))
        done = await queue.kick_where("t", dwell.select(), pace=700)
        assert done.results[dwell.Result.KICKED] == 20_000
        dues_ms = []
        for state in (State.READY, State.DELAYED):
            async for page in queue.pages("t", state):
                dues_ms += page.due_ms.tolist()
        dues_ms.sort()
    # Any 701 of them in a row need more than a second.
    assert min(b - a for a, b in zip(dues_ms, dues_ms[700:], strict=False)) >= 1000


# --- health, and what a GET may do ------------------------------------------------------------


async def test_health_says_how_the_store_is(tmp_path):
    async with served(EmbeddedStore(tmp_path / "s")) as server, calling() as caller:
        await server.queue.put_many("t", ["x"] * 1000)
        async with caller.session.get(server.url + "/v1/health") as answer:
            found = await answer.json()
        assert found["problem"] is None
        assert found["store"]["events"] == 1000
        assert found["store"]["disk_free_bytes"] > 0
        assert found["store"]["journal_bytes"] >= found["store"]["since_snapshot_bytes"] > 0
        assert found["timings"]["fsync"]["count"] >= 1
        server.queue.store.core.journal.fail(OSError("the disk is gone"))
        async with caller.session.get(server.url + "/v1/health") as answer:
            found = await answer.json()
        assert "the disk is gone" in found["problem"]


async def test_no_get_changes_anything():
    async with calling() as caller:
        queue = caller.server.queue
        await queue.put("t", "x", id="one")
        await queue.take("t", owner="me", lease="1h")
        await queue.schedules.put("s", "t", b"x", every="1h")
        words = {"{topic}": "t", "{id:path}": "one", "{name}": "s"}
        before = (await queue.events(0, 1)).end_position, await queue.settings("t")
        for endpoint in ENDPOINTS:
            if endpoint.method == "GET" and endpoint.path != "/v1/backup":
                path = endpoint.path
                for name, word in words.items():
                    path = path.replace(name, word)
                await caller.get(path + ("?owner=me" if path == "/v1/held" else ""))
                assert caller.status == 200, path
        assert ((await queue.events(0, 1)).end_position, await queue.settings("t")) == before


async def test_what_took_long_to_find_out_is_found_out_again_soon(monkeypatch):
    monkeypatch.setattr(shared, "_MOST_S", 0.01)
    found = 0

    async def find():
        nonlocal found
        found += 1
        await asyncio.sleep(0.7)
        return found

    answer = shared.Shared(find, 0.001)
    assert await answer.get() == 1

    async def is_new():
        return await answer.get() == 2

    await until_async(is_new)


# --- takers that wait -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _waiting(queue, counts):
    """Let as many takers wait on each topic as is said."""
    tasks = [
        asyncio.ensure_future(queue.take(topic, wait=60))
        for topic, count in counts.items()
        for _ in range(count)
    ]
    await until_async(lambda: queue.waiting == counts)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_the_topics_with_most_takers_are_named_and_the_others_summed(monkeypatch):
    monkeypatch.setattr(board, "MOST_WAITING", 2)
    monkeypatch.setattr(largest, "_AT_ONCE", 1)
    counts = {"t.a": 1, "t.b": 3, "t.c": 1, "t.d": 2, "u": 4}
    async with calling() as caller, _waiting(caller.server.queue, counts):
        found = await caller.get("/v1/holders?prefixes=t.")
        assert (found["waiting"], found["waiting_others"]) == ({"t.b": 3, "t.d": 2}, 2)
        async with caller.session.post(
            caller.server.url + "/v1/watch", json={"holders": True}
        ) as stream:
            kind, data = await _next(stream)
        assert (kind, data["waiting"], data["waiting_others"]) == ("holders", {"u": 4, "t.b": 3}, 4)


async def test_who_holds_what_is_written_once_for_all_who_watch(monkeypatch):
    monkeypatch.setattr(board, "_WAITING_S", 0)
    async with served() as server:
        shown = Board(server.queue)
        async with _waiting(server.queue, {"t": 1}):
            first, seen = await shown.holders(("",)), await shown.waiting(("",))
            while await shown.waiting(("",)) is seen:
                await asyncio.sleep(0.001)
            assert await shown.holders(("",)) is first


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/holders"),
        ("GET", "/v1/events?position=0"),
        ("GET", "/v1/topics/t/results/unknown"),
        ("GET", "/v1/schedules/s"),
        ("GET", "/v1/schedules/s/runs"),
        ("POST", "/v1/schedules/s/run"),
    ],
)
async def test_what_may_be_long_counts_among_answers_that_are_not_sent(method, path, monkeypatch):
    monkeypatch.setattr(window, "PATIENCE_S", 0.05)
    async with calling() as caller:
        await caller.server.queue.schedules.put("s", "t", b"", every="1m")
        answers = caller.server.service.in_flight.answers
        await answers.enter(answers.most_bytes)
        await caller.ask(method, path, {} if method != "GET" else None)
        assert caller.status == 429
        answers.leave(answers.most_bytes)
        await caller.ask(method, path, {} if method != "GET" else None)
        assert (caller.status, answers.size_bytes) == (200, 0)
