"""The HTTP API, as a caller in any language sees it."""

import asyncio
import contextlib
import hashlib
import io
import json
from base64 import b64encode
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from dwell.clock import RealClock, SimulatedClock
from dwell.server.http import filters
from dwell.server.http.openapi import document
from dwell.server.http.port import HttpPort
from dwell.server.inflight import InFlight
from dwell.store.memory import MemoryStore
from tests.http.served import served
from tests.http.wire import Wire, request
from tests.waiting import until_async

MSGPACK = "application/msgpack"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


class Caller:
    """Asks a server, and remembers the last answer."""

    def __init__(self, server, session):
        self.server, self.session = server, session

    async def ask(self, method, path, body=None, *, content="application/json", **headers):
        data = json.dumps(body).encode() if content == "application/json" else body
        if isinstance(data, bytes) and len(data) > 1 << 20:
            data = io.BytesIO(data)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent["content-type"] = content
        url = self.server.url + path
        async with self.session.request(method, url, data=data, headers=sent) as answer:
            self.status, self.headers = answer.status, answer.headers
            self.data = await answer.read()
        is_json = self.headers.get("content-type", "").endswith(("/json", "+json"))
        return json.loads(self.data) if is_json else self.data

    async def post(self, path, body, **options):
        return await self.ask("POST", path, body, **options)

    async def get(self, path, **headers):
        return await self.ask("GET", path, **headers)

    async def take(self, topics="t", limit=100, **more):
        answer = await self.post("/v1/take", {"topics": topics, "limit": limit, **more})
        return answer["messages"]


@contextlib.asynccontextmanager
async def calling(**options):
    """Give a caller of a server over a store in memory."""
    async with (
        asyncio.timeout(60),
        served(**options) as server,
        aiohttp.ClientSession() as session,
    ):
        yield Caller(server, session)


# --- forms ------------------------------------------------------------------------------------


async def test_json_bodies_come_back_as_text():
    async with calling() as caller:
        rows = [{"body": "text"}, {"body": {"a": [1, None]}}, {"body_base64": "/w=="}]
        results = (await caller.post("/v1/topics/t/messages", rows))["results"]
        assert [row["result"] for row in results] == ["created"] * 3
        found = await caller.take()
        assert [m["id"] for m in found] == [row["id"] for row in results]
        assert [m["number"] for m in found] == [row["number"] for row in results]
        assert [m.get("body") for m in found] == ["text", '{"a": [1, null]}', None]
        assert found[2]["body_base64"] == "/w=="


async def test_all_that_a_message_may_say():
    async with calling() as caller:
        row = {
            "body": "x",
            "id": "one",
            "due_ms": 1000,
            "priority": 7,
            "lease": "5s",
            "max_attempts": 3,
            "ttl": "1h",
            "key": "k",
            "headers": {"h": "v"},
        }
        await caller.post("/v1/topics/t/messages", row)
        (m,) = await caller.take()
        assert (m["id"], m["due_ms"], m["priority"], m["max_attempts"]) == ("one", 1000, 7, 3)
        assert (m["key"], m["headers"], m["attempt"], m["state"]) == ("k", {"h": "v"}, 1, "leased")
        assert m["lease_ms"] == 5_000
        assert m["expires_ms"] > 3_600_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("due", "2030-01-31T09:00:00Z"),
        ("due_ms", 1_896_080_400_000),
        ("due", 1_896_080_400_000),
    ],
)
async def test_the_ways_to_say_a_moment(field, value):
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", {"body": "x", field: value})
        page = await caller.get("/v1/topics/t/messages?state=delayed")
        due_ms = int(datetime(2030, 1, 31, 9, tzinfo=UTC).timestamp() * 1000)
        assert [m["due_ms"] for m in page["messages"]] == [due_ms]


async def test_msgpack_both_ways():
    async with calling() as caller:
        rows = [{"body": b"\xff\x00"}, {"body": "text"}, {"body": {"a": 1}}]
        rows = msgspec.msgpack.encode(rows)
        answer = await caller.post("/v1/topics/t/messages", rows, content=MSGPACK, accept=MSGPACK)
        assert [r["result"] for r in msgspec.msgpack.decode(answer)["results"]] == ["created"] * 3
        ask = msgspec.msgpack.encode({"topics": "t", "limit": 9})
        found = msgspec.msgpack.decode(
            await caller.post("/v1/take", ask, content=MSGPACK, accept=MSGPACK)
        )
        assert [m["body"] for m in found["messages"]] == [
            b"\xff\x00",
            b"text",
            b'{"a":1}',
        ]


async def test_ndjson_both_ways():
    async with calling() as caller:
        lines = b'{"body":"a","id":"1"}\n\n{"body":"b","id":"2"}\n'
        await caller.post("/v1/topics/t/messages", lines, content=NDJSON)
        listed = await caller.get("/v1/topics/t/messages?state=ready&limit=1", accept=NDJSON)
        assert [json.loads(line)["id"] for line in listed.splitlines()] == ["1"]
        cursor = caller.headers["dwell-cursor"]
        rest = await caller.get(f"/v1/topics/t/messages?state=ready&cursor={cursor}", accept=NDJSON)
        assert [json.loads(line)["id"] for line in rest.splitlines()] == ["2"]
        events = await caller.get("/v1/events", accept=NDJSON)
        assert [json.loads(line)["kind"] for line in events.splitlines()] == ["put", "put"]
        assert caller.headers["dwell-next-position"] == "2"


def stream_of(**columns):
    table = pa.table(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


async def test_arrow_put_list_and_events():
    async with calling() as caller:
        data = stream_of(
            id=pa.array(["a", "b"]),
            body=pa.array([b"1", b"2"]),
            due=pa.array([datetime(2030, 1, 1), datetime(2030, 1, 2)], pa.timestamp("us")),
            priority=pa.array([1, 2], pa.int32()),
            key=pa.array(["k", None]),
            headers=pa.array([[("h", "v")], None], pa.map_(pa.string(), pa.string())),
            lease_ms=pa.array([1000, None], pa.int64()),
        )
        await caller.post("/v1/topics/t/messages", data, content=ARROW)
        assert caller.status == 200, caller.data
        listed = await caller.get("/v1/topics/t/messages", accept=ARROW)
        rows = pa.ipc.open_stream(listed).read_all().to_pylist()
        assert [(r["id"], r["body"], r["priority"], r["key"]) for r in rows] == [
            ("a", b"1", 1, "k"),
            ("b", b"2", 2, None),
        ]
        assert rows[0]["due_ms"] == int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000)
        assert rows[0]["headers"] == [("h", "v")]
        assert [r["lease_ms"] for r in rows] == [1000, 0]
        events = pa.ipc.open_stream(await caller.get("/v1/events", accept=ARROW)).read_all()
        assert events.column("kind").to_pylist() == ["put", "put"]


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "data", "word"),
    [
        ("application/json", b"{", "Input data was truncated"),
        ("application/json", b'{"body": "x", "bod": 1}', "bod"),
        ("application/json", b'{"body": "x", "priority": "high"}', "priority"),
        ("application/json", b'{"body": "\xff"}', ""),
        ("application/json", b"[" * 100_000, ""),
        (MSGPACK, b"\xc1", ""),
        (MSGPACK, b"\x81\xa4body", "truncated"),
        (NDJSON, b'{"body":"a"}\n{"body":\n', "line 2"),
        (ARROW, b"not arrow", "arrow"),
        (ARROW, b"", "arrow"),
        (ARROW, stream_of(id=["a"]), "body"),
        (ARROW, stream_of(body=["a"], colour=["red"]), "colour"),
        (ARROW, stream_of(body=["a"])[:-40], ""),
        ("application/vnd.dwell.columns", b"\x80", "missing"),
    ],
)
async def test_bodies_that_are_broken(content, data, word):
    async with calling() as caller:
        async with caller.session.post(
            caller.server.url + "/v1/topics/t/messages",
            data=data,
            headers={"content-type": content},
        ) as answer:
            problem = await answer.json(content_type="application/problem+json")
        assert answer.status == problem["status"] == 400
        assert word in problem["detail"]
        assert (await caller.get("/v1/stats"))["totals"].get("put", 0) == 0


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"body": "x", "delay": "soon"}, "InvalidTime"),
        ({"body": "x", "delay": "9" * 5000}, "InvalidTime"),
        ({"body": "x", "due": "9" * 5000}, "InvalidTime"),
        ({"body": "x", "delay": 1, "due_ms": 5}, "InvalidTime"),
        ({"body": "x", "due": 1, "due_ms": 5}, "InvalidTime"),
        ({"body": "x", "ttl": 1, "expires_ms": 5}, "InvalidTime"),
        ({"body": "x", "ttl_ms": 1, "expires": 5}, "InvalidTime"),
        ({"body": "x", "expires": 1, "expires_ms": 5}, "InvalidTime"),
        ({"body": "x", "expires": "soon"}, "InvalidTime"),
        ({"body": "x", "delay": "1h", "ttl": "1m"}, "InvalidTime"),
        ({"body": "x", "expires_ms": 0}, "InvalidTime"),
        ({"body": "x", "delay": 1, "delay_level": 1}, "InvalidTime"),
        ({"body": "x", "lease_ms": 0}, "InvalidTime"),
        ({"body": "x", "id": "~1"}, "InvalidId"),
        ({"body": "x", "id": ""}, "InvalidId"),
        ({"body": "x", "priority": -1}, "InvalidPriority"),
        ({"body": "x", "key": ""}, "InvalidKey"),
        ({"delay": 1}, "InvalidBody"),
        ({"body": "x", "body_base64": "eA=="}, "InvalidBody"),
        ({"body_base64": "!"}, "InvalidBody"),
        ({"body": "x" * (1 << 20 | 1)}, "InvalidBody"),
        ({"body": "x", "delay_level": 99}, "InvalidTime"),
        ({"body": "x", "lease": "5s", "lease_ms": 5}, "InvalidInput"),
    ],
)
@pytest.mark.parametrize("many", [False, True])
async def test_values_that_are_refused(row, error, many):
    async with calling() as caller:
        good = {"body": "good", "id": "good"} if "id" in row else {"body": "good"}
        problem = await caller.post("/v1/topics/t/messages", [good, row] if many else row)
        assert (caller.status, problem["error"]) == (400, error)
        assert caller.headers["content-type"] == "application/problem+json"
        assert (await caller.get("/v1/stats"))["totals"].get("put", 0) == 0


async def test_a_garbled_receipt_is_refused_as_one():
    async with calling() as caller:
        problem = await caller.post("/v1/ack", {"receipts": ["0" * 32, "z" * 32]})
        assert (caller.status, problem["error"]) == (400, "InvalidReceipt")
        assert problem["detail"].startswith("receipts[1]: got str 'zz")


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"delay": "90m", "ttl": "2h"},
        {"delay": "5"},
        {"delay_level": 3, "priority": 7},
        {"due_ms": 2_000_000_000_000, "lease_ms": 1500, "max_attempts": 3},
        {"due": "2033-05-18T03:33:20Z", "expires_ms": 2_000_000_000_001},
        {"delay": 5, "expires": "2033-05-18T03:33:20Z"},
        {"lease": "5s", "key": "k", "headers": {"a": "b"}, "priority": 0},
    ],
)
async def test_a_row_among_others_says_what_it_says_alone(row):
    async with calling() as caller:
        path = "/v1/topics/t/messages"
        await caller.post(path, {"body": "x", "id": "alone", **row})
        rows = [{"body": "x", "id": "other"}, {"body": "x", "id": "among", **row}]
        await caller.post(path, rows)
        alone, among = [await caller.get(f"{path}/{id_}") for id_ in ("alone", "among")]
        for name in ("due_ms", "expires_ms"):
            assert 0 <= among.pop(name) - alone.pop(name) < 30_000
        for one in (alone, among):
            del one["id"], one["number"]
        assert alone == among


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("GET", "/v1/take", None, 405),
        ("GET", "/v1/topics/t/messages/unknown", None, 404),
        ("GET", "/v1/topics/a%20b/peek", None, 400),
        ("GET", "/v1/topics/t/messages?limit=0", None, 400),
        ("GET", "/v1/topics/t/messages?limit=1&limit=2", None, 400),
        ("GET", "/v1/topics/t/messages?colour=red", None, 400),
        ("GET", "/v1/topics/t/messages?cursor=x", None, 400),
        ("GET", "/v1/topics/t/messages?state=gone", None, 400),
        ("POST", "/v1/ack", {"receipts": ["xyz"]}, 400),
        ("POST", "/v1/ack", {"receipts": ["0" * 32]}, 400),
        ("POST", "/v1/topics/t/cancel", {}, 400),
        ("POST", "/v1/topics/t/cancel", {"ids": ["a"], "filter": {}}, 400),
        ("POST", "/v1/topics/t/reschedule", {"ids": ["a"]}, 400),
        ("POST", "/v1/topics/t/reschedule", {"ids": ["a"], "shift_ms": 5}, 400),
        ("POST", "/v1/push/none/credit", {"credit": 1}, 404),
        ("PATCH", "/v1/topics/t/settings", {"colour": 1}, 400),
        ("PATCH", "/v1/topics/t/settings", {"lease_ms": 0}, 400),
        ("PATCH", "/v1/topics/t/settings", {"lease_ms": "soon"}, 400),
        ("PATCH", "/v1/topics/t/settings", {"lease_ms": 5.5}, 400),
        ("PATCH", "/v1/topics/t/settings", {"delay_levels_ms": ["1s", "soon"]}, 400),
    ],
)
async def test_requests_that_are_refused(method, path, body, status):
    async with calling() as caller:
        await caller.ask(method, path, body)
        assert caller.status == status, caller.data
        assert caller.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/v1/topics/t/messages/%ff", "/v1/topics?after=%ff"])
async def test_a_target_that_is_no_text_is_refused(path):
    """Otherwise several ids would look like one."""
    async with served(MemoryStore(RealClock())) as server:
        answer = await (await Wire.open(server)).ask(request("GET", path))
        assert answer.status == 400
        assert "can't decode byte 0xff" in answer.value["detail"]


async def test_forms_that_are_refused():
    async with calling() as caller:
        for content in ("text/plain", "application/x-www-form-urlencoded", "x/y"):
            await caller.post("/v1/topics/t/messages", b'{"body":"x"}', content=content)
            assert caller.status == 415
        await caller.get("/v1/stats", accept="text/html")
        assert caller.status == 406


async def test_too_much_at_once():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", [{"body": ""}] * 10_001)
        assert caller.status == 413
        problem = await caller.post("/v1/topics/t/messages", b" " * (33 << 20), content=NDJSON)
        assert (caller.status, problem["error"]) == (413, "BatchTooLarge")


async def test_over_the_bound_comes_429():
    async def _hold(caller):
        async def slowly():
            yield b"["
            await asyncio.sleep(30)

        await caller.session.post(
            caller.server.url + "/v1/topics/t/messages",
            data=slowly(),
            headers={"content-type": "application/json"},
        )

    async with calling(in_flight=InFlight(2, 1 << 20)) as caller:
        waits = [asyncio.ensure_future(_hold(caller)) for _ in range(2)]
        await until_async(lambda: caller.server.service.in_flight.requests >= 2)
        problem = await caller.get("/v1/stats")
        assert (caller.status, problem["error"]) == (429, "ServerBusy")
        assert int(caller.headers["retry-after"]) > 0
        for wait in waits:
            wait.cancel()


async def test_a_draining_server_takes_no_new_messages():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", {"body": "x"})
        caller.server.service.is_draining = True
        problem = await caller.post("/v1/topics/t/messages", {"body": "x"})
        assert (caller.status, problem["error"]) == (503, "ServerDraining")
        daily = {"topic": "t", "every": "1d"}
        problem = await caller.ask("PUT", "/v1/schedules/daily", daily)
        assert (caller.status, problem["error"]) == (503, "ServerDraining")
        await caller.get("/readyz")
        assert caller.status == 503
        await caller.get("/healthz")
        assert caller.status == 200
        assert len(await caller.take()) == 1


# --- filters ----------------------------------------------------------------------------------


async def _fill(caller):
    rows = [
        {
            "body": "x",
            "id": f"m{n:04}",
            "due_ms": 4_000_000_000_000 + n,
            "key": f"k{n % 3}",
            "headers": {"half": str(n % 2)},
        }
        for n in range(2_500)
    ]
    await caller.post("/v1/topics/t/messages", rows)


async def test_list_by_due_key_and_header():
    async with calling() as caller:
        await _fill(caller)
        seen, cursor = [], ""
        while cursor is not None:
            path = "/v1/topics/t/messages?limit=100&key=k1&header=half:1"
            path += "&due_from_ms=4000000000010&due_to_ms=4000000001500"
            page = await caller.get(path + (f"&cursor={cursor}" if cursor else ""))
            seen += [m["id"] for m in page["messages"]]
            cursor = page["cursor"]
        expected = [f"m{n:04}" for n in range(10, 1_500) if n % 3 == 1 and n % 2 == 1]
        assert seen == expected


async def test_cancel_shift_and_kick_by_filter():
    async with calling() as caller:
        await _fill(caller)
        last = (await caller.server.queue.get("t", "m1499")).number
        answer = await caller.post("/v1/topics/t/cancel", {"filter": {"key": "k0"}, "limit": 500})
        # There are more of them, from the one after the last that was looked at.
        assert answer == {
            "matched": 500,
            "results": {"cancelled": 500},
            "is_complete": False,
            "cursor": f"delayed.4000000001500.{last}",
        }
        answer = await caller.post("/v1/topics/t/cancel", {"filter": {"key": "k0"}})
        assert answer == {
            "matched": 334,
            "results": {"cancelled": 334},
            "is_complete": True,
            "cursor": None,
        }
        answer = await caller.post(
            "/v1/topics/t/reschedule", {"filter": {"headers": {"half": "0"}}, "shift_ms": 60_000}
        )
        assert answer["results"] == {"moved": 833}
        (found,) = (await caller.post("/v1/topics/t/get", {"ids": ["m0002"]}))["messages"]
        assert found["due_ms"] == 4_000_000_060_002
        answer = await caller.post(
            "/v1/topics/t/reschedule", {"filter": {"key": "k1"}, "due_ms": 1000}
        )
        assert answer["results"] == {"moved": 833}
        taken = await caller.take(limit=1000)
        receipts = [m["receipt"] for m in taken]
        await caller.post("/v1/bury", {"receipts": receipts, "reason": "no"})
        answer = await caller.post("/v1/topics/t/kick", {"filter": {"headers": {"half": "1"}}})
        assert answer["results"] == {"kicked": sum(m["headers"]["half"] == "1" for m in taken)}


# --- verbs ------------------------------------------------------------------------------------


async def test_each_message_is_given_back_with_its_own_delay_and_error():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", [{"body": "x"}] * 3)
        receipts = [m["receipt"] for m in await caller.take()]
        own = {"delay_ms": [3_600_000, 0, 7_200_000], "error": ["one", None, "three"]}
        for name, column in own.items():
            await caller.post("/v1/release", {"receipts": receipts, name: column[:2]})
            assert caller.status == 400
            assert b"got 2 values, expected 3" in caller.data
        await caller.post("/v1/release", {"receipts": receipts, "delay": 1, **own})
        assert caller.status == 400
        answer = await caller.post("/v1/release", {"receipts": receipts, **own})
        assert answer["results"] == ["released"] * 3
        (again,) = await caller.take()
        assert again["last_error"] is None
        listed = await caller.get("/v1/topics/t/messages?state=delayed")
        first, last = listed["messages"]
        assert [first["last_error"], last["last_error"]] == ["one", "three"]
        assert 3_500_000 < last["due_ms"] - first["due_ms"] < 3_700_000


async def test_one_message_may_be_given_back_in_lists_of_one():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", [{"body": "x"}])
        (message,) = await caller.take()
        ask = {"receipts": [message["receipt"]], "delay_ms": [0], "error": ["again"]}
        assert (await caller.post("/v1/release", ask))["results"] == ["released"]
        (again,) = await caller.take()
        assert again["last_error"] == "again"


async def test_receipts_are_good_once():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", [{"body": "x"}] * 4)
        receipts = [m["receipt"] for m in await caller.take()]
        assert (await caller.post("/v1/touch", {"receipts": receipts, "lease": "1m"}))[
            "results"
        ] == ["touched"] * 4
        assert (await caller.post("/v1/ack", {"receipts": receipts[:1] * 2}))["results"] == [
            "acked",
            "stale",
        ]
        ask = {"receipts": receipts[:2], "delay": 0, "priority": 1, "error": "again"}
        assert (await caller.post("/v1/release", ask))["results"] == ["stale", "released"]
        ask = {"receipts": receipts[2:], "reason": "no"}
        assert (await caller.post("/v1/bury", ask))["results"] == ["buried"] * 2
        (again,) = await caller.take()
        assert (again["attempt"], again["priority"], again["last_error"]) == (2, 1, "again")


async def test_ids_with_every_sign():
    async with calling() as caller:
        for id_ in ("a/b", "ä €", "x?y=1&z", "%2F", "."):
            await caller.post("/v1/topics/t/messages", {"body": "x", "id": id_})
            path = f"/v1/topics/t/messages/{quote(id_, safe='')}"
            url = URL(caller.server.url + path, encoded=True)
            async with caller.session.get(url) as answer:
                assert (await answer.json())["id"] == id_
            async with caller.session.delete(url) as answer:
                assert (await answer.json())["results"] == ["cancelled"]


async def test_a_take_waits_for_a_message():
    async with calling() as caller:
        wait = asyncio.ensure_future(caller.take(wait_ms=20_000))
        other = Caller(caller.server, caller.session)
        await until_async(lambda: caller.server.queue.waiting == {"t": 1})
        await other.post("/v1/topics/t/messages", {"body": "x", "delay": "50ms"})
        assert [m["body"] for m in await wait] == ["x"]
        assert await caller.take(wait_ms=50) == []


async def test_the_waiting_of_a_take_can_be_ended():
    async with calling() as caller:
        wait = asyncio.ensure_future(caller.take(wait_ms=20_000, poll="mine"))
        other = Caller(caller.server, caller.session)
        while not (await other.post("/v1/polls/mine/end", {}))["ended"]:
            await asyncio.sleep(0.01)
        assert await wait == []
        assert not (await other.post("/v1/polls/mine/end", {}))["ended"]


async def test_a_taker_that_vanishes_takes_nothing():
    async with calling() as caller:
        wait = asyncio.ensure_future(caller.take(wait_ms=20_000))
        await until_async(lambda: caller.server.queue.waiting)
        wait.cancel()
        await until_async(lambda: not caller.server.queue.waiting)
        other = Caller(caller.server, caller.session)
        await other.post("/v1/topics/t/messages", {"body": "x"})
        assert (await other.get("/v1/stats"))["topics"]["t"]["ready"] == 1


async def test_stopping_answers_those_who_wait():
    async with calling() as caller:
        wait = asyncio.ensure_future(caller.take(wait_ms=20_000))
        await until_async(lambda: caller.server.queue.waiting)
        await caller.server.port.stop()
        assert await wait == []


# --- push -------------------------------------------------------------------------------------


async def _next_event(stream):
    kind = data = None
    async for line in stream.content:
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            kind = text[7:]
        elif text.startswith("data: "):
            data = json.loads(text[6:])
        elif not text and kind:
            return kind, data
    return None


async def test_push_sends_as_much_as_there_is_credit():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", [{"body": str(n)} for n in range(5)])
        ask = {"topics": ["t", "u"], "credit": 3, "owner": "me"}
        async with caller.session.post(caller.server.url + "/v1/push", json=ask) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            kind, first = await _next_event(stream)
            assert kind == "stream"
            seen = []
            while len(seen) < 3:
                kind, data = await _next_event(stream)
                seen += data["messages"]
            assert [m["body"] for m in seen] == ["0", "1", "2"]
            assert data["credit"] == 0
            assert (await caller.get("/v1/stats"))["topics"]["t"]["ready"] == 2
            path = f"/v1/push/{first['stream']}/credit"
            assert (await caller.post(path, {"credit": 10}))["credit"] >= 8
            kind, data = await _next_event(stream)
            assert [m["body"] for m in data["messages"]] == ["3", "4"]
            await caller.post("/v1/topics/u/messages", {"body": "late", "delay": "50ms"})
            kind, data = await _next_event(stream)
            assert [m["body"] for m in data["messages"]] == ["late"]
        await until_async(lambda: not caller.server.port.waits.streams)
        await caller.post("/v1/topics/t/messages", {"body": "after"})
        assert len(await caller.take()) == 1


async def test_push_refuses_before_it_begins():
    async with calling() as caller:
        for topics in ("a b", [], ["a", ""], None):
            await caller.post("/v1/push", {"topics": topics})
            assert caller.status == 400
        await caller.post("/v1/push", {})
        assert caller.status == 400


async def test_nothing_is_pushed_to_who_only_gets():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", {"body": "x"})
        await caller.get("/v1/push?topics=t&credit=1")
        assert (caller.status, caller.headers["allow"]) == (405, "POST")
        await caller.post("/v1/push?topics=t", b'{"topics": "t"}', content="text/plain")
        assert caller.status == 415
        assert (await caller.get("/v1/stats"))["topics"]["t"]["ready"] == 1


# --- the job protocol ---------------------------------------------------------------------------


async def test_the_job_protocol():
    async with calling() as caller:

        async def command(**words):
            return await caller.post("/command", words)

        add = {"command": "add", "topic": "close", "id": "close-1", "delay": 60, "TTR": 60}
        assert await command(**add, body={"order": 1}) == {"success": True, "id": "close-1"}
        assert await command(command="pop", topic="close") == {"success": True}
        await caller.server.queue.reschedule("close", "close-1", delay=0)
        popped = await command(command="pop", topic="close")
        assert (popped["success"], popped["id"]) == (True, "close-1")
        assert json.loads(popped["value"]) == {"order": 1}
        answer = await command(command="delete", id="close-1")
        assert not answer["success"]
        caller.server.port.waits.receipts.clear()
        assert (await command(command="finish", id="close-1"))["success"]
        assert not (await command(command="finish", id="close-1"))["success"]
        # An id that is there or was finished is a new job, unless a consumer has popped it.
        add = {**add, "delay": 0}
        assert (await command(**add, body="again"))["success"]
        assert (await command(**add, body="other"))["success"]
        assert (await command(command="pop", topic="close"))["value"] == "other"
        refused = await command(**add, body="late")
        assert not refused["success"]
        assert "popped" in refused["error"]
        assert (await command(command="finish", id="close-1"))["success"]
        await caller.server.queue.put("close", b"\xff\x00", id="close-0")
        assert (await command(command="pop", topic="close"))["value_base64"] == "/wA="
        await command(**{**add, "id": "close-2", "delay": 60}, body="x")
        assert (await command(command="delete", id="close-2"))["success"]
        assert not (await command(command="delete", id="close-2"))["success"]
        await command(**{**add, "id": "close-3", "delay": 60}, body="x")
        assert (await command(command="delete", id="close-3", topic="close"))["success"]


async def test_a_slash_too_many_is_not_found():
    async with calling() as caller:
        problem = await caller.post("/v1/take/", {"topics": "t"})
        assert (caller.status, problem["status"]) == (404, 404)
        assert caller.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("form", ["due", "due_ms", "text", "arrow"])
async def test_a_due_that_is_given_is_kept_whatever_time_the_caller_takes_it_to_be(form, many):
    async with calling() as caller:
        now_ms = caller.server.queue.clock.now_ms()
        path, theirs = "/v1/topics/t/messages", str(now_ms + 7_200_000)
        moment = datetime.fromtimestamp(now_ms // 1000 + 3600, UTC)
        due_ms = int(moment.timestamp() * 1000)
        if form == "arrow":
            data = stream_of(body=["x"] * (1 + many), due=[moment] * (1 + many))
            await caller.post(path, data, content=ARROW, dwell_now_ms=theirs)
        else:
            due = {"due": moment.isoformat()} if form == "text" else {form: due_ms}
            await caller.post(path, [{"body": "x", **due}] * (1 + many), dwell_now_ms=theirs)
        assert caller.status == 200
        await caller.post(path, {"id": "a", "body": "x", "delay": "9h"})
        which = {"ids": ["a"]} if many else {"filter": {}}
        change = {**which, "due_ms": due_ms}
        await caller.post("/v1/topics/t/reschedule", change, dwell_now_ms=theirs)
        assert await caller.take() == []
        waiting = [batch async for batch in caller.server.queue.pages("t")]
        assert [batch.due_ms.tolist() for batch in waiting] == [[due_ms] * (2 + many)]


class Silent(MemoryStore):
    """A store that gives no answer."""

    async def settings(self, topic):
        await asyncio.sleep(60)


@pytest.mark.timeout(60)
async def test_a_server_whose_store_does_not_answer_is_not_ready():
    async with (
        served(Silent(RealClock())) as server,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(server, session)
        assert b"the store gave no answer within 0.5 s" in await caller.get("/readyz")
        assert caller.status == 503
        await caller.get("/healthz")
        assert caller.status == 200


async def test_finish_is_of_the_topic_that_it_names():
    async with calling() as caller:

        async def command(**words):
            return (await caller.post("/command", {"id": "1", **words}))["success"]

        for topic in "abc":
            assert await command(command="add", topic=topic, body=topic, TTR=0)
        assert (await caller.get("/v1/topics/a/messages/1"))["lease_ms"] == 1000
        for topic in "abc":
            assert await command(command="pop", topic=topic)
        assert not await command(command="finish", topic="d")
        assert await command(command="finish", topic="a")
        assert not await command(command="finish", topic="a")
        held = (await caller.get("/v1/held?owner=command"))["messages"]
        assert {message["topic"] for message in held} == {"b", "c"}
        assert await command(command="finish", topic="c")
        assert await command(command="finish")


async def test_finish_reads_what_others_have_popped_page_by_page(monkeypatch):
    async with calling() as caller:
        queue, pages = caller.server.queue, []
        for at in range(40):
            await queue.put("t", "x" * 1_000_000, id=f"{at}")
            assert len(await queue.take("t", owner="command"))
        held_page = MemoryStore.held_page

        async def noted(*args):
            page = await held_page(*args)
            pages.append(len(page.messages))
            return page

        monkeypatch.setattr(MemoryStore, "held_page", noted)
        answer = await caller.post("/command", {"command": "finish", "id": "39"})
        assert answer["success"]
        assert len(pages) >= 3
        assert max(pages) < 20
        assert caller.server.service.in_flight.answers.size_bytes == 0


async def test_finish_finds_what_was_popped_at_another_server():
    clock = SimulatedClock()
    async with calling(store=MemoryStore(clock)) as caller:

        async def command(**words):
            return (await caller.post("/command", {"id": "1", **words}))["success"]

        receipts = caller.server.port.waits.receipts
        assert await command(command="add", topic="t", body="x", TTR=1)
        assert await command(command="pop", topic="t")
        (ours,) = await caller.server.queue.held("command")
        clock.advance(2_000)
        await caller.post("/v1/topics/t/messages?on_conflict=replace", {"id": "1", "body": "x"})
        assert await command(command="pop", topic="t")
        receipts.add(ours, 0)
        assert await command(command="finish")
        assert not await command(command="finish")


@pytest.mark.parametrize(
    "words",
    [
        {"command": "add", "topic": "t", "body": "x"},
        {"command": "add", "topic": "t", "id": "a"},
        {"command": "add", "topic": "a b", "id": "a", "body": "x"},
        {"command": "pop"},
        {"command": "finish"},
    ],
)
async def test_commands_that_fail_say_why(words):
    async with calling() as caller:
        answer = await caller.post("/command", words)
        assert caller.status == 200
        assert answer["success"] is False
        assert answer["error"]


# --- care -------------------------------------------------------------------------------------


async def test_metrics_tell_parked_from_stuck():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", [{"body": "x", "delay": "1h"}, {"body": "y"}])
        await caller.post("/v1/topics/t/messages", {"body": "old", "due_ms": 1000})
        wait = asyncio.ensure_future(caller.take("empty", wait_ms=10_000))
        await until_async(lambda: caller.server.queue.waiting)
        await Caller(caller.server, caller.session).take(limit=1)
        text = (await Caller(caller.server, caller.session).get("/metrics")).decode()
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert found["dwell_messages", "delayed", "t"] == 1
        assert found["dwell_messages", "ready", "t"] == 1
        assert found["dwell_events_total", "put"] == 3
        assert found["dwell_oldest_ready_seconds", "t"] < 60
        assert found["dwell_waiting_takers", "empty"] == 1
        assert found["dwell_lateness_seconds_count",] == 1
        wait.cancel()


async def test_the_docs_page_needs_nothing_from_elsewhere():
    async with calling() as caller:
        page = (await caller.get("/docs")).decode()
        policy = caller.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        style = page.partition("<style>")[2].partition("</style>")[0].encode()
        assert b64encode(hashlib.sha256(style).digest()).decode() in policy
        assert "frame-ancestors 'none'" in policy
        assert caller.headers["x-content-type-options"] == "nosniff"
        assert "<script" not in page
        assert " style=" not in page
        assert "http://" not in page
        assert "https://" not in page
        for path in document()["paths"]:
            assert path in page
        assert (await caller.get("/openapi.json"))["openapi"] == "3.1.0"


async def test_a_server_may_take_smaller_bodies_only():
    async with calling() as caller:
        caller.server.service.most_body_bytes = 10
        for content, data in (
            ("application/json", {"body": "x" * 11}),
            (MSGPACK, msgspec.msgpack.encode([{"body": b"x" * 11}])),
            (ARROW, stream_of(body=["x" * 11])),
        ):
            problem = await caller.post("/v1/topics/t/messages", data, content=content)
            assert (caller.status, problem["error"]) == (400, "InvalidBody")
            assert "at most 10" in problem["detail"]
        await caller.post("/v1/topics/t/messages", {"body": "x" * 10})
        assert caller.status == 200


@pytest.mark.timeout(30)
async def test_no_more_connections_than_are_allowed():
    store = MemoryStore(RealClock())
    async with served(store) as server:
        server.service.most_connections = 3
        few = HttpPort(server.service, "127.0.0.1", 0)
        await few.start()
        host, port = few.address
        kept = [await asyncio.open_connection(host, port) for _ in range(3)]
        for one, other in kept:
            other.write(b"GET /v1/store HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await one.readline()).startswith(b"HTTP/1.1 200")
        reader, writer = await asyncio.open_connection(host, port)
        assert await reader.read() == b""
        writer.close()
        for _, other in kept:
            other.close()
        await few.stop()


# --- queries ----------------------------------------------------------------------------------


async def test_find_and_take_where_as_json():
    async with calling() as caller:
        rows = [{"id": f"{n}", "body": {"n": n}, "due_ms": n + 1} for n in range(5)]
        await caller.post("/v1/topics/t/messages", [*rows, {"id": "x", "body": "no json"}])
        ask = {"where": "n != `1`", "limit": 2}
        page = await caller.post("/v1/topics/t/find", ask)
        assert [row["id"] for row in page["messages"]] == ["0", "2"]
        assert (page["messages"][0]["body"], page["messages"][0].get("receipt")) == (
            '{"n": 0}',
            None,
        )
        page = await caller.post("/v1/topics/t/find", {**ask, "cursor": page["cursor"]})
        assert [row["id"] for row in page["messages"]] == ["3", "4"]
        assert page["cursor"] is None
        ask = {"where": "n > `1`", "limit": 2, "lease": "5m", "owner": "me"}
        page = await caller.post("/v1/topics/t/take-where", ask)
        assert [row["id"] for row in page["messages"]] == ["2", "3"]
        assert page["cursor"] is None
        receipts = [row["receipt"] for row in page["messages"]]
        answer = await caller.post("/v1/ack", {"receipts": receipts})
        assert answer == {"results": ["acked", "acked"]}
        assert await caller.get("/v1/topics/t/sizes") == {
            "shards": [{"delayed": 0, "ready": 4, "leased": 0, "dead": 0}]
        }
        assert await caller.ask("POST", "/v1/topics/t/clear") == {
            "cancelled": 4,
            "is_complete": True,
        }
        assert await caller.post("/v1/find-stale", {}) == {"stale": []}


async def test_a_topic_is_deleted():
    async with calling() as caller:
        queue = caller.server.queue
        await queue.put_many("t", ["x"] * 3)
        await queue.configure("t", lease_ms=5_000)
        answer = await caller.ask("DELETE", "/v1/topics/t")
        assert answer == {"cancelled": 3, "is_complete": True}
        assert (await caller.get("/v1/topics"))["topics"] == {}
        assert (await queue.settings("t")).lease_ms == 60_000


async def test_settings_are_reset_only_once_a_topic_is_clear(monkeypatch):
    monkeypatch.setattr(filters, "MOST_LOOKED_AT", 1_000)
    async with calling() as caller:
        queue = caller.server.queue
        await queue.put_many("t", ["x"] * 2_500)
        await queue.configure("t", paused=True)
        answers = []
        while not answers or not answers[-1]["is_complete"]:
            assert (await queue.settings("t")).paused
            answers.append(await caller.ask("DELETE", "/v1/topics/t"))
        assert len(answers) > 1
        assert sum(answer["cancelled"] for answer in answers) == 2_500
        assert not (await queue.settings("t")).paused


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/v1/topics/t/find", {"where": ""}, "InvalidInput"),
        ("/v1/topics/t/find", {"where": "a["}, "InvalidQuery"),
        ("/v1/topics/t/find", {"where": "@", "state": "gone"}, "InvalidInput"),
        ("/v1/topics/t/find", {"where": "@", "cursor": "1"}, "InvalidLimit"),
        ("/v1/topics/t/find", {"where": "@", "limit": 10_001}, "InvalidInput"),
        ("/v1/topics/a b/find", {"where": "@"}, "InvalidTopic"),
        ("/v1/topics/t/take-where", {"where": "nope(@)"}, "InvalidQuery"),
        ("/v1/topics/t/take-where", {"where": "@", "lease": "1s", "lease_ms": 1}, "InvalidInput"),
        ("/v1/topics/t/take-where", {"where": "@", "owner": "x" * 257}, "InvalidId"),
        ("/v1/topics/a b/clear", {}, "InvalidTopic"),
        ("/v1/find-stale", {"limit": 0}, "InvalidInput"),
        ("/v1/find-stale", {"repair": "yes"}, "InvalidInput"),
    ],
)
async def test_bad_queries(path, body, error):
    async with calling() as caller:
        answer = await caller.post(path.replace(" ", "%20"), body)
        assert (caller.status, answer["error"]) == (400, error)


@pytest.mark.parametrize("path", ["find", "take-where", "cancel", "reschedule", "kick", "list"])
@pytest.mark.parametrize(
    ("said", "detail"),
    [
        (
            {"due_from_ms": 20, "due_to_ms": 10},
            "due_to_ms: got int 10, expected a time that is not before due_from_ms, 20",
        ),
        ({"attempt_from": -1}, "Expected `int` >= 0"),
        ({"attempt_from": 3, "attempt_to": 2}, "attempt_to: got int 2, expected a number that is"),
        ({"error": ""}, "Expected `str` of length >= 1"),
        ({"key": ""}, "key: got str '', expected text of 1-256 bytes"),
        ({"where": "a["}, "where: got str 'a[', expected an expression of JMESPath"),
    ],
)
async def test_bad_selections(path, said, detail):
    async with calling() as caller:
        if path == "list":
            problem = await caller.get(f"/v1/topics/t/messages?{urlencode(said)}")
        else:
            is_change = path in ("cancel", "reschedule", "kick")
            ask = {"filter": said} if is_change else dict(said)
            ask |= {"delay": "1h"} if path == "reschedule" else {}
            problem = await caller.post(f"/v1/topics/t/{path}", ask)
        assert caller.status == 400
        assert detail in problem["detail"]


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("cancel", {"filter": {"states": ["gone"]}}, "state: got str 'gone', expected delayed,"),
        ("cancel", {"filter": {"states": []}}, "state: got tuple (), expected one or more of"),
        ("cancel", {"filter": {}, "cursor": "1.1"}, "cursor: got str '1.1', expected the cursor"),
        ("cancel", {"filter": {}, "cursor": "dead.x"}, "cursor: got str 'dead.x', expected the"),
        ("kick", {"cursor": "ready.1.1"}, "cursor: got str 'ready.1.1', expected that of the same"),
        ("kick", {"due_ms": 1}, "due: got it without ids, expected a delay"),
        ("kick", {"ids": ["a"], "due_ms": [1, 2]}, "due: got shape (2,), expected one value or 1"),
        ("kick", {"ids": ["a"], "due_ms": [1], "delay": 1}, "delay: got delay and due_ms together"),
        ("kick", {"ids": ["a"], "paced": 1}, "paced: got it beside ids, expected a filter"),
        ("kick", {"ids": ["a"], "dry_run": True}, "dry_run: got it beside ids, expected a filter"),
        ("cancel", {"ids": ["a"], "cursor": "dead.1.1"}, "cursor: got it beside ids, expected a"),
        ("reschedule", {"ids": ["a"], "delay": 1, "dry_run": True}, "dry_run: got it beside ids"),
    ],
)
async def test_bad_changes(path, body, detail):
    async with calling() as caller:
        problem = await caller.post(f"/v1/topics/t/{path}", body)
        assert caller.status == 400
        assert detail in problem["detail"]


@pytest.mark.parametrize(
    ("path", "body", "known"),
    [
        ("/v1/topics/t/messages", {"boddy": 1}, "`boddy`, expected body, body_base64, delay, "),
        ("/v1/topics/t/messages", [{"body": 1}, {"boddy": 1}], "expected body, body_base64, "),
        ("/v1/take", {"topic": "t"}, "`topic`, expected ids, lease, lease_ms, limit, "),
        (
            "/v1/topics/t/cancel",
            {"filter": {"kee": "k"}},
            "`kee` - at `$.filter`, expected attempt_from, attempt_to, due_from_ms, ",
        ),
        ("/v1/ack", {"receipt": "x"}, "`receipt`, expected receipts"),
    ],
)
async def test_an_unknown_field_is_answered_with_those_that_are_known(path, body, known):
    async with calling() as caller:
        problem = await caller.post(path, body)
        assert caller.status == 400
        assert known in problem["detail"], problem["detail"]


async def test_seconds_are_taken_for_no_milliseconds():
    async with calling() as caller:
        for row in ({"due_ms": 1_900_000_000}, {"due": "1900000000"}, {"due": 1_900_000_000}):
            problem = await caller.post("/v1/topics/t/messages", {"body": "x", **row})
            assert (caller.status, problem["error"]) == (400, "InvalidTime")
            assert "those are seconds" in problem["detail"]
