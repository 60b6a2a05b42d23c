"""Bounds: what comes in is measured before it is unpacked, what goes out before it is made."""

import asyncio
import gc
import json
import struct
import tracemalloc

import msgspec
import pyarrow as pa
import pytest

from dwell.clock import RealClock
from dwell.errors import InvalidInput
from dwell.given import values
from dwell.message import MAX_BATCH_BYTES, MAX_BODY_BYTES
from dwell.queue import Queue
from dwell.server import inflight, largest, window
from dwell.server.http import call, encoding, metrics, watch
from dwell.server.http.paging import MOST_TOPICS
from dwell.server.inflight import InFlight
from dwell.store.memory import MemoryStore
from dwell.wire.problems import MOST_DETAIL_CHARS, problem_of
from tests.http.served import served
from tests.http.test_http_api import ARROW, MSGPACK, NDJSON, calling
from tests.http.wire import Wire, request
from tests.waiting import until_async

PUT = "/v1/topics/t/messages"
#: A sign that JSON writes in six.
SIGN = "\x01"


# --- in ---------------------------------------------------------------------------------------


async def test_what_is_too_large_is_not_unpacked():
    size = 20_000_000
    array = b"\xdd" + struct.pack(">I", size) + b"\x80" * size
    async with calling() as caller:
        tracemalloc.start()
        try:
            await caller.post(PUT, b"\x81\xa4body" + array, content=MSGPACK)
            assert caller.status in (400, 413)
            head = b"\x84\xa7command\xa3add\xa5topic\xa1t\xa2id\xa1a\xa4body"
            small = b"\xdd" + struct.pack(">I", size // 4) + b"\x80" * (size // 4)
            answer = await caller.post("/command", head + small, content=MSGPACK)
            assert answer["success"] is False
            # Objects would be twenty times as large as what came.
            assert tracemalloc.get_traced_memory()[1] < 8 * size
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "value", [[1.5] * 100_000, ["é" * 1000] * 300, {"a": [0] * 500_000}, "x" * MAX_BODY_BYTES]
)
async def test_what_fits_in_json_fits_in_messagepack(value):
    async with calling() as caller:
        await caller.post(PUT, msgspec.msgpack.encode({"body": value, "id": "a"}), content=MSGPACK)
        assert caller.status == 200, caller.data
        answer = await caller.get(f"{PUT}/a")
        assert answer["body"] == (
            value
            if isinstance(value, str)
            else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        )


async def test_a_body_that_json_writes_in_six_is_taken():
    async with calling() as caller:
        body = SIGN * MAX_BODY_BYTES
        await caller.post(PUT, {"body": body, "id": "a"})
        assert caller.status == 200, caller.data
        assert (await caller.get(f"{PUT}/a"))["body"] == body


@pytest.mark.parametrize("form", ["application/json", MSGPACK, NDJSON])
async def test_long_names_of_fields_are_cut_in_errors(form):
    row = {"x" * 5_000_000: 1, "body": "b"}
    data = msgspec.msgpack.encode(row) if form == MSGPACK else json.dumps(row).encode()
    async with calling() as caller:
        answer = await caller.post(PUT, data if form != "application/json" else row, content=form)
        assert caller.status == 400
        assert len(caller.data) < 10_000
        assert "expected body" in answer["detail"]


def test_long_names_of_any_kind_are_cut():
    problem = problem_of(InvalidInput("x" * 1_000_000))
    assert len(problem.detail) < MOST_DETAIL_CHARS + 100
    assert problem.detail.endswith("(1000000 characters)")
    assert problem_of(InvalidInput("y" * MOST_DETAIL_CHARS)).detail == "y" * MOST_DETAIL_CHARS


async def test_long_names_of_columns_are_refused():
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array([1])], names=["x" * 3_000_000])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    async with calling() as caller:
        answer = await caller.post(PUT, sink.getvalue().to_pybytes(), content=ARROW)
        assert caller.status == 400
        assert "describe the columns" in answer["detail"]
        assert len(caller.data) < 10_000


async def test_a_span_is_remembered_only_if_it_can_be_one():
    async with calling() as caller:
        values._span_ms.cache_clear()
        for size in (10, 64, 65, 1_000_000):
            answer = await caller.post(PUT, {"body": 1, "delay": "z" * size})
            assert caller.status == 400, answer
        assert values._span_ms.cache_info().currsize == 2


async def test_a_stream_keeps_nothing_of_its_body():
    async with served() as server:
        wire = await Wire.open(server)
        body = b'{"topics":"t"' + b" " * 1_000_000 + b"}"
        await wire.send(request("POST", "/v1/push", body))
        await wire.reader.readuntil(b"event: stream")
        assert server.service.in_flight.size_bytes == inflight.WAITING_TOPIC_BYTES
        calls = [one for one in gc.get_objects() if type(one) is call.Call]
        # Those of other tests may be garbage that is not collected yet.
        (kept,) = [one for one in calls if one.service is server.service]
        assert kept.endpoint.name == "push"
        assert kept._body.size_bytes == 0


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
async def test_a_stream_keeps_no_event_that_was_sent(version, monkeypatch):
    gone = []

    class Event(bytes):
        def __del__(self):
            gone.append(len(self))

    event_of = watch.event_of
    monkeypatch.setattr(watch, "event_of", lambda *told: Event(event_of(*told)))
    monkeypatch.setattr(watch, "_SILENCE_S", 600.0)
    async with served() as server:
        wire = await Wire.open(server)
        ask = request("POST", "/v1/watch", {"overview": {}})
        await wire.send(ask.replace(b"HTTP/1.1", version))
        await wire.reader.readuntil(b"event: overview")
        await until_async(lambda: gone)
        assert server.service.board.watchers == 1


async def test_a_wait_counts_what_it_keeps_for_each_topic():
    async with served() as server:
        wire = await Wire.open(server)
        topics = [f"t{n}" for n in range(1000)]
        await wire.send(request("POST", "/v1/take", {"topics": topics, "wait_ms": 60_000}))
        await until_async(lambda: len(server.port.waits) == 1)
        kept = server.service.in_flight.size_bytes
        assert kept >= 1000 * inflight.WAITING_TOPIC_BYTES
        wire.close()
        await until_async(lambda: not server.service.in_flight.size_bytes)
        other = await Wire.open(server)
        ask = {"topics": [*topics, "more"], "wait_ms": 60_000}
        answer = await other.ask(request("POST", "/v1/take", ask))
        assert answer.status == 400
        assert "expected at most 1000" in answer.value["detail"]
        ask["wait_ms"] = 0
        assert (await other.ask(request("POST", "/v1/take", ask))).status == 200


async def test_a_stream_of_the_board_goes_on_while_others_hold_too_much():
    async with served() as server:
        in_flight, wire = server.service.in_flight, await Wire.open(server)
        in_flight.hold(in_flight.most_bytes + 1)
        await wire.send(request("POST", "/v1/watch", {"overview": {}}))
        await wire.reader.readuntil(b"event: overview")
        in_flight.hold(-in_flight.most_bytes - 1)


async def test_a_stream_counts_what_it_keeps_for_each_topic():
    async with served() as server:
        wire, in_flight = await Wire.open(server), server.service.in_flight
        ask = request("POST", "/v1/push", {"topics": [f"t{n}" for n in range(1000)], "credit": 1})
        await wire.send(ask)
        await wire.reader.readuntil(b"event: stream")
        kept_bytes = in_flight.size_bytes
        assert kept_bytes >= 1000 * inflight.WAITING_TOPIC_BYTES
        in_flight.most_bytes = 2 * kept_bytes - 1
        assert (await (await Wire.open(server)).ask(ask)).status == 429
        wire.close()
        await until_async(lambda: not in_flight.size_bytes)


# --- out --------------------------------------------------------------------------------------


async def signs(caller, count=8, size=MAX_BODY_BYTES // 2):
    """Put messages that are six times as large in JSON, due one after the other."""
    ids = [f"m{n}" for n in range(count)]
    for at, id_ in enumerate(ids):
        await caller.post(PUT, {"body": SIGN * size, "id": id_, "due_ms": at + 1})
        assert caller.status == 200, caller.data
    return ids


async def pages_of(caller, path, form):
    """Return the ids of all pages of a list, none of which is larger than an answer may be."""
    ids, cursor, pages = [], None, 0
    while cursor is not None or not pages:
        more = "" if cursor is None else f"&cursor={cursor}"
        answer = await caller.get(f"{path}{more}", accept=form)
        assert caller.status == 200, caller.data
        assert len(caller.data) <= encoding.MOST_PAGE_BYTES + 7 * MAX_BODY_BYTES
        cursor, pages = caller.headers.get("dwell-cursor"), pages + 1
        if form == ARROW:
            ids += pa.ipc.open_stream(caller.data).read_all()["id"].to_pylist()
        elif form == NDJSON:
            ids += [json.loads(line)["id"] for line in caller.data.splitlines()]
        else:
            found = answer if form != MSGPACK else msgspec.msgpack.decode(caller.data)
            ids += [row["id"] for row in found["messages"]]
            cursor = found["cursor"]
    return ids


@pytest.mark.parametrize("form", ["application/json", MSGPACK, NDJSON, ARROW])
async def test_an_answer_is_bounded_as_it_is_escaped(form, monkeypatch):
    monkeypatch.setattr(encoding, "_TURN_BYTES", 100_000)
    async with calling() as caller:
        ids = await signs(caller)
        assert await pages_of(caller, f"{PUT}?state=ready&limit=100", form) == ids


async def test_what_has_no_room_in_a_take_is_given_back():
    async with calling() as caller:
        ids = await signs(caller, count=12)
        answer = await caller.post("/v1/take", {"topics": "t", "limit": 12, "lease": "1h"})
        assert len(caller.data) <= MAX_BATCH_BYTES + 7 * MAX_BODY_BYTES
        taken = [row["id"] for row in answer["messages"]]
        assert taken == ids[: len(taken)] != ids
        await until_async(lambda: counts(caller, {"ready": 12 - len(taken), "leased": len(taken)}))
        rest = []
        while some := (await caller.post("/v1/take", {"topics": "t", "limit": 12}))["messages"]:
            assert {row["attempt"] for row in some} == {1}
            rest += [row["id"] for row in some]
            await until_async(lambda: counts(caller, {"leased": len(taken) + len(rest)}))  # noqa: B023
        assert taken + rest == ids


async def counts(caller, expected):
    """Tell whether a topic has so many messages in some states."""
    found = (await caller.get("/v1/stats"))["topics"]["t"]
    return all(found[state] == count for state, count in expected.items())


async def test_unread_answers_leave_room_when_they_are_sent(monkeypatch):
    monkeypatch.setattr(window, "PATIENCE_S", 0.2)
    ask = request("GET", f"{PUT}?state=ready&limit=100")
    async with served() as server:
        server.service.in_flight.answers.most_bytes = 20_000_000
        await server.queue.put_many("t", ["x" * 1_000_000] * 10)
        slow = await Wire.open(server, 4096)
        slow.reader._transport.pause_reading()
        await slow.send(ask)
        await until_async(lambda: any(one._is_paused for one in server.port.connections))
        assert server.service.in_flight.answers.size_bytes > 5_000_000
        other = await Wire.open(server)
        busy = await other.ask(ask)
        assert (busy.status, busy.value["error"]) == (429, "ServerBusy")
        # What is small waits for nobody.
        assert (await other.ask(request("POST", "/v1/take", {"topics": "none"}))).status == 200
        slow.reader._transport.resume_reading()
        assert (await slow.answer()).status == 200
        await until_async(lambda: not server.service.in_flight.answers.size_bytes)
        assert (await other.ask(ask)).status == 200


async def test_who_waits_for_answers_that_are_not_read_lets_others_look():
    async with served() as server:
        server.service.in_flight.answers.most_bytes = 20_000_000
        await server.queue.put_many("t", ["x" * 1_000_000] * 10)
        ask = request("GET", f"{PUT}?state=ready&limit=100")
        slow = await Wire.open(server, 4096)
        slow.reader._transport.pause_reading()
        await slow.send(ask)
        await until_async(lambda: any(one._is_paused for one in server.port.connections))
        waiting = [await Wire.open(server) for _ in range(2 * inflight.MOST_LOOKS)]
        for wire in waiting:
            await wire.send(ask)
        other = await Wire.open(server)
        # They wait for ten seconds, and this one for none of them.
        async with asyncio.timeout(window.PATIENCE_S / 2):
            assert (await other.ask(request("GET", "/v1/topics"))).status == 200
        slow.reader._transport.resume_reading()
        assert (await slow.answer()).status == 200
        for wire in waiting:
            assert (await wire.answer()).status == 200
        assert not server.service.in_flight.answers.size_bytes
        assert server.service.in_flight.looks._value == inflight.MOST_LOOKS


async def test_metrics_name_the_largest_topics_and_sum_the_others(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_TOPICS", 3)
    async with served() as server:
        for at in range(6):
            await server.queue.put_many(f"t{at}", ["x"] * (at + 1))
        wire = await Wire.open(server)
        told = (await wire.ask(request("GET", "/metrics"))).data.decode()
        ready = {
            line.split('topic="')[1].split('"')[0]: float(line.split()[-1])
            for line in told.splitlines()
            if line.startswith("dwell_messages{") and 'state="ready"' in line
        }
        assert ready == {"t5": 6, "t4": 5, "t3": 4, "(others)": 6}
        assert told.count("# TYPE dwell_messages gauge") == 1


async def test_metrics_name_the_topics_that_wait_longest_and_the_oldest_of_the_others(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_TOPICS", 2)
    async with served() as server:
        now_ms = server.queue.clock.now_ms()
        for at, age_s in enumerate((3000, 1000, 2000, 4000)):
            await server.queue.put(f"t{at}", "x", due=now_ms - 1000 * age_s)
        told = (await (await Wire.open(server)).ask(request("GET", "/metrics"))).data.decode()
        ages = {
            line.split('"')[1]: float(line.split()[-1])
            for line in told.splitlines()
            if line.startswith("dwell_oldest_ready_seconds{")
        }
        assert {name: round(age, -3) for name, age in ages.items()} == {
            "t3": 4000,
            "t0": 3000,
            "(others)": 2000,
        }


async def test_metrics_are_written_some_lines_at_a_time(monkeypatch):
    async with served() as server:
        for at in range(20):
            await server.queue.put_many(f"t{at}", ["x"] * (at + 1))
        wire, texts, lines = await Wire.open(server), [], metrics._LINES
        generate = metrics.generate_latest
        monkeypatch.setattr(metrics, "generate_latest", lambda one: written(generate(one)))
        written_lines = []

        def written(text):
            written_lines.append(text.count(b"\n"))
            return text

        for most in (lines, 7):
            monkeypatch.setattr(metrics, "_LINES", most)
            written_lines.clear()
            text = (await wire.ask(request("GET", "/metrics"))).data.decode()
            assert max(written_lines) == (82 if most == lines else 9)
            texts.append([line for line in text.splitlines() if "dwell_messages" in line])
        assert texts[0] == texts[1]


async def test_metrics_name_the_topics_with_most_takers_and_sum_the_others(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_TOPICS", 2)
    monkeypatch.setattr(largest, "_AT_ONCE", 1)
    async with served() as server:
        names = [*["a"] * 3, *["b"] * 2, "c", "d"]
        takes = [asyncio.ensure_future(server.queue.take(name, wait=60)) for name in names]
        await until_async(lambda: sum(server.queue.waiting.values()) == len(names))
        text = (await (await Wire.open(server)).ask(request("GET", "/metrics"))).data.decode()
        found = [line for line in text.splitlines() if line.startswith("dwell_waiting_takers{")]
        assert sorted(found) == [
            f'dwell_waiting_takers{{topic="{name}"}} {count}'
            for name, count in (("(others)", 2.0), ("a", 3.0), ("b", 2.0))
        ]
        for take in takes:
            take.cancel()


async def test_lists_of_topics_come_page_by_page_in_order():
    async with calling(store=MemoryStore(RealClock())) as caller:
        names = sorted(f"t{n * 7919 % 25_000}" for n in range(25_000))
        for name in names:
            await caller.server.queue.configure(name, paused=True)
        found, after = [], ""
        while after is not None:
            answer = await caller.get(f"/v1/topics?after={after}")
            assert len(answer["topics"]) <= MOST_TOPICS
            found += answer["topics"]
            after = answer["next"]
        assert found == names


# --- ends -------------------------------------------------------------------------------------


async def test_a_half_closed_client_is_answered():
    async with served() as server:
        wire = await Wire.open(server)
        puts = [request("POST", PUT, {"body": "x", "id": f"a{n}"}) for n in range(3)]
        await wire.send(b"".join(puts))
        wire.writer.write_eof()
        said = await wire.ended()
        assert said.count(b"HTTP/1.1 200") == 3
        assert said.count(b"created") == 3
        assert len(await server.queue.get("t", ["a0", "a1", "a2"])) == 3


async def test_a_half_closed_take_is_handed_what_there_is_and_waits_for_nothing():
    async with served() as server:
        await server.queue.put("t", "x", id="a")
        for expected in (1, 0):
            wire = await Wire.open(server)
            await wire.send(request("POST", "/v1/take", {"topics": "t", "wait_ms": 60_000}))
            wire.writer.write_eof()
            said = await wire.ended()
            assert said.startswith(b"HTTP/1.1 200")
            assert said.count(b'"receipt":"') == expected
        assert (await server.queue.stats()).topics["t"].leased == 1


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/stats", "/openapi.json"])
async def test_head_is_answered_as_get_is_without_the_body(path):
    async with served() as server:
        got = await (await Wire.open(server)).ask(request("GET", path))
        wire = await Wire.open(server)
        await wire.send(request("HEAD", path))
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        if path != "/metrics":
            assert b"content-length: %d\r\n" % len(got.data) in head
        # Nothing follows but the next answer.
        assert (await wire.ask(request("GET", "/healthz"))).data == b"ok\n"


async def test_many_large_uploads_are_each_answered_once_and_in_order():
    async with served() as server:

        async def upload(name):
            wire = await Wire.open(server)
            rows = [
                [{"body": "x" * 50_000, "id": f"{name}.{n}.{at}"} for at in range(10)]
                for n in range(5)
            ]
            await wire.send(b"".join(request("POST", PUT, some) for some in rows))
            return [await wire.answer() for _ in rows]

        told = await asyncio.gather(*(upload(f"c{n}") for n in range(12)))
        for name, answers in enumerate(told):
            for n, answer in enumerate(answers):
                ids = [one["id"] for one in answer.value["results"]]
                assert ids == [f"c{name}.{n}.{at}" for at in range(10)]
        assert (await server.queue.stats()).topics["t"].ready == 600


# --- many at once -----------------------------------------------------------------------------


async def test_few_look_through_much_at_a_time(monkeypatch):
    busy, most, go_on = 0, 0, asyncio.Event()
    stats = Queue.stats

    async def slowly(self):
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await go_on.wait()
        busy -= 1
        return await stats(self)

    async with served() as server:
        monkeypatch.setattr(Queue, "stats", slowly)
        wires = [await Wire.open(server) for _ in range(20)]
        for wire in wires:
            await wire.send(request("GET", "/v1/topics"))
        await until_async(lambda: busy >= inflight.MOST_LOOKS)
        # Those that look through little wait for none of them.
        other = await Wire.open(server)
        assert (await other.ask(request("POST", PUT, {"body": "x"}))).status == 200
        wires.pop().close()
        go_on.set()
        for wire in wires:
            assert (await wire.answer()).status == 200
        assert most == inflight.MOST_LOOKS


async def test_waits_on_topics_are_refused_when_they_keep_too_much():
    async with served(in_flight=InFlight(100, 300_000)) as server:
        ask = {"topics": [f"t{n}" for n in range(500)], "wait_ms": 60_000}
        wires = [await Wire.open(server) for _ in range(2)]
        await wires[0].send(request("POST", "/v1/take", ask))
        await until_async(lambda: len(server.port.waits) == 1)
        answer = await wires[1].ask(request("POST", "/v1/take", ask))
        assert (answer.status, answer.value["error"]) == (429, "ServerBusy")
        wires[0].close()
        await until_async(lambda: not server.service.in_flight.size_bytes)


@pytest.mark.parametrize("path", ["held", "sweep"])
async def test_a_page_of_rows_ends_where_the_store_gives_more_than_it_is_asked_for(path):
    store = MemoryStore(RealClock())
    page, sweep = store.held_page, store.sweep

    async def held_page(owner, after, limit):
        return await page(owner, after, max(limit, 12))

    async def swept(wanted, start, stop, limit):
        return await sweep(wanted, start, stop, max(limit, 12))

    store.held_page, store.sweep = held_page, swept
    async with calling(store=store) as caller:
        ids = await signs(caller, count=12)
        taken = 0
        while some := (await caller.post("/v1/take", {"topics": "t", "owner": "me"}))["messages"]:
            taken += len(some)
        assert taken == len(ids)
        found, cursor = [], None
        while path == "held" and (cursor is not None or not found):
            more = "" if cursor is None else f"&cursor={cursor}"
            answer = await caller.get(f"/v1/held?owner=me{more}")
            found, cursor = found + [row["id"] for row in answer["messages"]], answer["cursor"]
        start = 0
        while path == "sweep" and start is not None:
            answer = await caller.post("/v1/sweep", {"start": start, "limit": 12})
            found, start = found + [row["id"] for row in answer["messages"]], answer["next_place"]
        assert sorted(found) == sorted(ids)
