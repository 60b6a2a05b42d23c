"""What a server is kept from: by pages of the web, by empty promises, and by callers who go."""

import asyncio
import contextlib
import json
import random
import socket

import msgspec
import pytest

import dwell
from dwell.server.inflight import InFlight
from dwell.server.tokens import Tokens
from dwell.wire.columns import BatchColumns, batch_of_columns
from tests.http.served import served
from tests.http.test_http_api import calling
from tests.http.wire import ask, request
from tests.waiting import until_async

COLUMNS = "application/vnd.dwell.columns"


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://example.org"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}],
)
async def test_pages_of_other_sites_are_refused(headers):
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", {"body": "x"})
        for method, path in (("POST", "/v1/topics/t/clear"), ("POST", "/v1/push")):
            await caller.ask(method, path, {"topics": "t"}, **headers)
            assert caller.status == 403, caller.data
        assert (await caller.get("/v1/stats"))["topics"]["t"]["ready"] == 1
        await caller.get("/v1/stats", origin=caller.server.url, sec_fetch_site="same-origin")
        assert caller.status == 200


async def test_a_form_that_cannot_be_given_is_refused_before_anything_is_done():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", {"body": "x"}, accept="text/html")
        assert caller.status == 406
        await caller.post("/v1/topics/t/messages", {"body": "y"})
        await caller.post("/v1/take", {"topics": "t"}, accept="text/html")
        assert caller.status == 406
        assert (await caller.get("/v1/stats"))["topics"]["t"] == {
            "delayed": 0,
            "ready": 1,
            "leased": 0,
            "dead": 0,
        }


def _announce(server, size_bytes):
    """Return a connection that says how much it will send, and sends nothing."""
    quiet = socket.create_connection(("127.0.0.1", server.port.address[1]))
    head = "POST /v1/take HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    quiet.sendall(f"{head}content-length: {size_bytes}\r\n\r\n".encode())
    return quiet


async def test_who_announces_much_and_sends_nothing_holds_up_nobody():
    async with calling(in_flight=InFlight(10, 1 << 20)) as caller:
        quiet = [_announce(caller.server, 1 << 20) for _ in range(4)]
        await until_async(lambda: caller.server.service.in_flight.requests >= 4)
        await caller.post("/v1/topics/t/messages", {"body": "x"})
        assert caller.status == 200, caller.data
        for connection in quiet:
            connection.close()


async def test_who_has_no_rights_is_refused_before_a_body_is_read(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text("")
    path.chmod(0o600)

    async with calling(tokens=Tokens(path)) as caller:
        connection = _announce(caller.server, 1 << 20)
        connection.settimeout(10)
        answer = await asyncio.to_thread(connection.recv, 100)
        assert answer.startswith(b"HTTP/1.1 401")
        connection.close()
        for method, where in (("GET", "/v1/store"), ("POST", "/v1/polls/x/end")):
            await caller.ask(method, where)
            assert caller.status == 401


async def test_a_list_in_columns_keeps_to_its_filter():
    async with calling() as caller:
        rows = [{"body": str(n), "key": "ab"[n % 2]} for n in range(6)]
        await caller.post("/v1/topics/t/messages", rows)
        path = "/v1/topics/t/messages?state=ready&key=a"
        data = await caller.get(path, accept=COLUMNS)
        found = msgspec.msgpack.decode(data, type=BatchColumns)
        assert len(batch_of_columns(found)) == 3


async def test_push_gives_back_what_the_reader_did_not_wait_for():
    async with calling() as caller:
        for _ in range(4):
            await caller.post("/v1/topics/t/messages", [{"body": "x" * 20_000}] * 500)
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", caller.server.port.address[1]))
        reader.sendall(request("POST", "/v1/push", {"topics": "t", "credit": 100_000}))
        store = caller.server.queue.store
        await until_async(lambda: store.ready("t") != 2_000)
        await asyncio.sleep(0.1)
        taken = 2_000 - store.ready("t")
        reader.close()
        # What was written to the connection may have been read.
        await until_async(lambda: 2_000 - store.ready("t") < taken)


async def test_a_stream_ends_with_its_rights(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text('[anonymous]\nput = [""]\ntake = [""]\n')
    path.chmod(0o600)
    tokens = Tokens(path)

    async with calling(tokens=tokens) as caller:
        ask = {"topics": "t", "credit": 3}
        async with caller.session.post(caller.server.url + "/v1/push", json=ask) as stream:
            await caller.post("/v1/topics/t/messages", {"body": "1"})
            while b"messages" not in await stream.content.readline():
                pass
            path.write_text('[anonymous]\nput = [""]\n')
            tokens.reload()
            await caller.post("/v1/topics/t/messages", {"body": "2"})
            await caller.post("/v1/topics/t/messages", {"body": "3"})
            rest = await stream.content.read()
            assert b'"body":"3"' not in rest


@pytest.mark.parametrize("verb", ["ack", "release", "touch", "bury"])
async def test_a_receipt_that_becomes_good_behind_the_check_is_stale(tmp_path, verb):
    path = tmp_path / "tokens.toml"
    path.write_text('[anonymous]\nput = [""]\ntake = ["mine"]\n')
    path.chmod(0o600)

    async with calling(tokens=Tokens(path)) as caller:
        queue = caller.server.queue
        await queue.put("other", "x")
        (message,) = await queue.take("other", owner="another")
        looked = queue.taken_from

        async def not_yet(what):
            return [None] * len(await looked(what))

        ask = {"receipts": [message.receipt]}
        assert await caller.post(f"/v1/{verb}", ask) == {"results": ["stale"]}
        # It was foretold, and its message is taken only now.
        queue.taken_from = not_yet
        assert await caller.post(f"/v1/{verb}", ask) == {"results": ["stale"]}
        columns = msgspec.msgpack.encode({"receipts": bytes.fromhex(message.receipt)})
        form = {"content": COLUMNS, "accept": COLUMNS}
        answer = await caller.ask("POST", f"/v1/{verb}", columns, **form)
        assert caller.status == 200, (answer, caller.data)
        assert len(await queue.held("another")) == 1


async def test_what_is_told_of_each_goes_with_its_message_past_those_of_others(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text('[anonymous]\nput = [""]\ntake = ["mine"]\n')
    path.chmod(0o600)
    async with calling(tokens=Tokens(path)) as caller:
        queue = caller.server.queue
        receipts = []
        for topic in ("other", "mine", "other", "mine"):
            await queue.put(topic, "x")
            receipts.append((await queue.take(topic))[0].receipt)
        own = {"delay_ms": [1, 3_600_000, 2, 7_200_000], "error": ["a", "b", "c", "d"]}
        answer = await caller.post("/v1/release", {"receipts": receipts, **own})
        assert answer["results"] == ["stale", "released"] * 2
        page = await queue.scan("mine", "delayed")
        found = list(page.messages)
        assert [message.last_error for message in found] == ["b", "d"]
        assert 3_500_000 < found[1].due_ms - found[0].due_ms < 3_700_000


async def test_columns_of_a_release_have_a_delay_and_an_error_for_each_or_for_all():
    """None of the bad ones changes anything, and no more errors are made than a batch has."""
    async with calling() as caller:
        queue = caller.server.queue
        await queue.put_many("t", ["x", "y"])
        batch = await queue.take("t", 2)
        form = {"content": COLUMNS, "accept": COLUMNS}
        for bad in (
            {"delay_ms": b""},
            {"delay_ms": bytes(8)},
            {"error": ["a"]},
            {"error": ["a"] * 3},
            {"error": ["ab"] * 1_000_000},
        ):
            told = {"receipts": batch.receipts.astype(">u8").tobytes(), **bad}
            await caller.ask("POST", "/v1/release", msgspec.msgpack.encode(told), **form)
            assert caller.status == 400, bad.keys()
            assert next(iter(bad)) in json.loads(caller.data)["detail"]
        assert "<= 10000" in json.loads(caller.data)["detail"]
        assert [str(one) for one in await queue.release(batch)] == ["released"] * 2


async def test_releases_with_long_errors_get_through_together():
    """A request has less room than the errors of one turn, or of one batch, may need."""
    async with calling() as caller, dwell.open(caller.server.url) as queue:
        await queue.put_many("t", ["x"] * 6_000)
        taken = list(await queue.take("t", 6_000))
        long = [chr(0x1F600 + at % 7) * (999 + at % 2) for at in range(6_000)]
        singles = zip(taken[:2_500], long[:2_500], strict=True)
        results = await asyncio.gather(
            *(queue.release(one, error=error) for one, error in singles),
            queue.release(taken[2_500:], error=long[2_500:]),
        )
        assert {str(one) for one in (*results[:-1], *results[-1])} == {"released"}
        found = await queue.take("t", 6_000)
        assert [one.last_error for one in sorted(found, key=lambda m: m.number)] == long


async def test_a_wait_ends_with_its_rights(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text('[anonymous]\nput = [""]\ntake = [""]\n')
    path.chmod(0o600)
    tokens = Tokens(path)

    async with calling(tokens=tokens) as caller:
        wait = request("POST", "/v1/take", {"topics": "t", "wait_ms": 60_000})
        waits = [asyncio.create_task(ask(caller.server, wait)) for _ in range(3)]
        await until_async(lambda: caller.server.queue.waiting.get("t") == 3)
        tokens.reload()
        path.write_text('[anonymous]\nput = [""]\ntake = ["other"]\n')
        tokens.reload()
        assert {answer.status for answer in await asyncio.gather(*waits)} == {401}
        await caller.post("/v1/topics/t/messages", {"body": "x"})
        assert caller.server.queue.store.ready("t") == 1


async def test_only_those_who_wait_are_counted_as_waiting():
    async with calling() as caller:
        caller.server.service.most_waiting = 0
        await caller.post("/v1/topics/t/messages", {"body": "x"})
        assert len(await caller.take(wait_ms=1_000)) == 1
        await caller.post("/v1/take", {"topics": "t", "wait_ms": 1_000})
        assert caller.status == 429


@pytest.mark.timeout(60)
async def test_takes_that_are_cancelled_leave_nothing_leased():
    chance = random.Random(3)

    async def taker(queue, kept):
        for _ in range(60):
            task = asyncio.ensure_future(queue.take("t", 5, wait=chance.choice([0, 5]), lease="1h"))
            await asyncio.sleep(chance.random() * 0.02)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                kept.append(len(await task))

    async with (
        served() as server,
        dwell.open(server.url) as queue,
    ):
        kept = []
        takers = [asyncio.ensure_future(taker(queue, kept)) for _ in range(5)]
        while not all(task.done() for task in takers):
            await server.queue.put_many("t", ["x"] * 3)
            await asyncio.sleep(0.003)
        for _ in range(300):
            leased = (await server.queue.stats()).topics["t"].leased
            if leased == sum(kept):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{leased} leased, {sum(kept)} of them taken")


@pytest.mark.parametrize("path", ["/v1/stats", "/healthz", "/metrics"])
async def test_a_page_that_gives_its_name_our_address_is_refused(path):
    async with served() as server:
        for hosts in ("evil.example", "evil.example:8410"):
            answer = await ask(server, request("GET", path, host=hosts, origin=f"http://{hosts}"))
            assert answer.status == 403
            assert "expected localhost, an address, or one of allowed_hosts" in answer.data.decode()
        doubled = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n"
        assert (await ask(server, doubled.encode())).status == 400
        assert (await ask(server, request("GET", path))).status == 200
