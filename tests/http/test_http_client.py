"""The client: ``dwell.open`` on the address of a server, and what may go wrong on the way."""

import asyncio
import contextlib
import os
import random
import threading
import time

import numpy as np
import pytest

import dwell
from bench.servers import free_port
from dwell import errors
from dwell.client.connection import checked_base
from dwell.clock import RealClock
from dwell.clock.clock import elapsed_s
from dwell.clock.servertime import ServerClock
from dwell.message import Result
from dwell.server.inflight import InFlight
from dwell.server.tokens import Tokens, hash_of
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.wire import problems
from tests.forking import check_fork_is_told
from tests.http.between import between
from tests.http.served import served
from tests.server.certificates import make_certificate
from tests.server.process import ServerProcess
from tests.waiting import PATIENCE_S, until_async


@contextlib.asynccontextmanager
async def opened(*, client=None, **options):
    """Give a queue over HTTP, and the server behind it."""
    async with (
        asyncio.timeout(60),
        served(**options) as server,
        dwell.open(server.url, **(client or {})) as queue,
    ):
        yield queue, server


@contextlib.asynccontextmanager
async def wired(store=None, **client):
    """Give a queue, the wire to its server, and the server."""
    async with (
        asyncio.timeout(60),
        served(store) as server,
        between(server.url) as wire,
        dwell.open(wire.url, **client) as queue,
    ):
        yield queue, wire, server


async def waiting(server):
    """Wait until a taker waits at the server."""
    await until_async(lambda: server.queue.waiting, "nobody waits")


async def settled(server, topic="t", **counts):
    """Wait until a topic's messages are in the states that are expected."""

    async def is_settled():
        found = (await server.queue.stats()).topics.get(topic)
        return all(getattr(found, state, None) == count for state, count in counts.items())

    await until_async(is_settled, counts)


# --- no answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_server_that_is_not_there(is_sync):
    url = f"http://127.0.0.1:{free_port()}"
    handle = dwell.open(url, retries=2)
    start = time.monotonic()
    with pytest.raises(dwell.errors.ServerUnreachable, match=url):
        await (asyncio.to_thread(handle.__enter__) if is_sync else handle.__aenter__())
    assert time.monotonic() - start < PATIENCE_S


def test_a_name_that_nobody_has():
    with (
        pytest.raises(errors.ServerUnreachable, match=r"no\.such\.host"),
        dwell.open("http://no.such.host.invalid:8410", retries=0),
    ):
        pass


async def test_a_server_that_goes_away():
    async with opened() as (queue, server):
        await server.stop()
        start = time.monotonic()
        with pytest.raises(errors.ServerUnreachable) as raised:
            await queue.put("t", "x")
        assert not raised.value.may_be_done
        assert time.monotonic() - start < PATIENCE_S


async def test_a_server_that_accepts_and_never_answers():
    async with between() as wire:
        start = time.monotonic()
        with pytest.raises(errors.ServerUnreachable):
            async with dwell.open(wire.url, timeout=0.2, retries=1):
                pass
        assert 0.4 <= time.monotonic() - start < PATIENCE_S
        assert wire.connections == 2


async def test_an_answer_that_does_not_come():
    async with wired(timeout=1) as (queue, wire, _server):
        wire.break_("silent", 1)
        start = time.monotonic()
        with pytest.raises(errors.ServerUnreachable) as raised:
            await queue.put("t", "x")
        assert raised.value.may_be_done
        assert 1 <= time.monotonic() - start < PATIENCE_S
        assert (await queue.put("t", "y")).result is Result.CREATED


async def test_a_wait_does_not_count_as_silence():
    async with wired(timeout=0.3) as (queue, _wire, _server):
        assert len(await queue.take("t", wait=0.6)) == 0


# --- what is repeated ---------------------------------------------------------------------------

#: Each is safe to repeat: it may be done twice and has the same end.
SAFE = {
    "put keep": lambda q, m: q.put("t", "new", id="new"),
    "put many": lambda q, m: q.put_many("t", ["new"], ids=["new"]),
    "take": lambda q, m: q.take("t"),
    "touch": lambda q, m: q.touch(m, "5m"),
    "get": lambda q, m: q.get("t", "waits"),
    "scan": lambda q, m: q.scan("t", "delayed"),
    "peek": lambda q, m: q.peek("t"),
    "held": lambda q, m: q.held("me"),
    "named": lambda q, m: q.named([m.number]),
    "taken_from": lambda q, m: q.taken_from([m.receipt]),
    "stats": lambda q, m: q.stats(),
    "events": lambda q, m: q.events(),
    "settings": lambda q, m: q.settings("t"),
}

#: Each would tell a lie, or do more than was asked, if it were repeated without a number.
UNSAFE = {
    "put replace": (
        lambda q, m: q.put("u", "new", id="new", on_conflict="replace"),
        lambda s: s.topics["u"].ready == 1,
    ),
    "put": (lambda q, m: q.put("u", "new"), lambda s: s.topics["u"].ready == 1),
    "put error": (
        lambda q, m: q.put("u", "new", id="new", on_conflict="error"),
        lambda s: s.topics["u"].ready == 1,
    ),
    "ack": (lambda q, m: q.ack(m), lambda s: s.totals["ack"] == 1),
    "release": (lambda q, m: q.release(m, "1h"), lambda s: s.totals["release"] == 1),
    "bury": (lambda q, m: q.bury(m), lambda s: s.totals["bury"] == 1),
    "cancel": (lambda q, m: q.cancel("t", "waits"), lambda s: s.totals["cancel"] == 1),
    # A repeat would undo what another has changed since.
    "reschedule": (
        lambda q, m: q.reschedule("t", "waits", delay="2h"),
        lambda s: s.totals["move"] == 1,
    ),
    "configure": (lambda q, m: q.configure("t", max_pending=9), lambda s: "t" in s.topics),
}


@pytest.fixture
def quick(monkeypatch):
    """Repeat sooner than people would."""
    monkeypatch.setattr("dwell.client.pauses.FIRST_S", 0.005)


async def _fill(queue):
    await queue.put("t", "waits", id="waits", delay="1h")
    await queue.put_many("t", ["first", "second", "third"])
    return (await queue.take("t", owner="me"))[0]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize("how", ["mute", "cut"])
async def test_what_is_safe_is_repeated(name, how):
    async with wired() as (queue, wire, server):
        message = await _fill(queue)
        wire.break_(how, 2)
        before = wire.requests
        await SAFE[name](queue, message)
        assert wire.requests > before + 2
        stats = await server.queue.stats()
        assert sum(topic.delayed + topic.ready for topic in stats.topics.values()) <= 4


@pytest.mark.parametrize("name", UNSAFE)
async def test_what_is_not_safe_is_done_at_most_once(name):
    async with wired() as (queue, wire, server):
        verb, is_done = UNSAFE[name]
        message = await _fill(queue)
        wire.break_("mute", 1)
        before = wire.requests
        with pytest.raises(errors.ServerUnreachable):
            await verb(queue, message)
        assert wire.requests == before + 1
        assert is_done(await server.queue.stats())


async def test_what_cannot_have_been_done_is_repeated_though_it_is_not_safe():
    async with opened(client={"retries": 10}) as (queue, server):
        host, port = server.port.address
        await server.port.stop()
        put = asyncio.ensure_future(queue.put("t", "x"))
        await asyncio.sleep(0.2)
        again = type(server.port)(server.service, host, port)
        await again.start()
        assert (await put).result is Result.CREATED
        await again.stop()


async def test_a_busy_server_is_asked_again():
    async with opened(in_flight=InFlight(1, 1 << 20), client={"retries": 10}) as (queue, server):
        server.service.in_flight.enter()
        put = asyncio.ensure_future(queue.put("t", "x"))
        await asyncio.sleep(0.5)
        assert not put.done()
        # It comes again when the server said, which is after a second.
        assert server.service.in_flight.refused == 1
        server.service.in_flight.leave()
        assert (await put).result is Result.CREATED


async def test_a_server_that_stays_busy(monkeypatch):
    monkeypatch.setitem(problems.RETRY_AFTER_S, 429, 0)

    async with opened(in_flight=InFlight(1, 1 << 20), client={"retries": 2}) as (queue, server):
        server.service.in_flight.enter()
        with pytest.raises(errors.ServerBusy):
            await queue.put("t", "x")
        assert server.service.in_flight.refused == 3
        server.service.in_flight.leave()


@pytest.mark.parametrize(("status", "after_s"), [(429, 2), (503, 1)])
async def test_who_is_told_when_to_come_again_does_not_come_before(status, after_s, monkeypatch):
    monkeypatch.setitem(problems.RETRY_AFTER_S, status, after_s)
    in_flight = InFlight(1, 1 << 20)
    async with opened(in_flight=in_flight, client={"retries": 1}) as (queue, server):
        server.service.is_draining = status == 503
        if status == 429:
            in_flight.enter()
        asked = time.monotonic()
        with pytest.raises((errors.ServerBusy, errors.ServerDraining)):
            await queue.put("t", "x")
        # Without it the client would come again after 75 ms at most.
        assert after_s <= time.monotonic() - asked < after_s + PATIENCE_S


async def test_calls_of_one_turn_travel_together():
    async with wired() as (queue, wire, _server):
        await queue.put("t", "first")
        before = wire.requests
        puts = await asyncio.gather(*[queue.put("t", f"{n}") for n in range(100)])
        assert wire.requests - before == 1
        messages = [m for _ in range(2) for m in await queue.take("t", 60)]
        assert {m.body for m in messages[1:]} == {b"%d" % n for n in range(100)}
        before = wire.requests
        assert set(await asyncio.gather(*map(queue.ack, messages[:50]))) == {Result.ACKED}
        assert wire.requests - before == 1
        before, ids = wire.requests, [put.id for put in puts[50:]]
        results = await asyncio.gather(*[queue.cancel("t", id_) for id_ in ids])
        assert set(results) == {Result.LEASED}
        assert wire.requests - before == 1


async def test_a_draining_server_is_asked_again(monkeypatch):
    monkeypatch.setitem(problems.RETRY_AFTER_S, 503, 0)

    async with opened() as (queue, server):
        server.service.is_draining = True
        put = asyncio.ensure_future(queue.put("t", "x"))
        await asyncio.sleep(0.15)
        assert not put.done()
        server.service.is_draining = False
        assert (await put).result is Result.CREATED
        server.service.is_draining = True
        with pytest.raises(errors.ServerDraining):
            await queue.put("t", "x")


# --- a server that is killed --------------------------------------------------------------------


async def _put_until(stop, queue, name, safe, unsafe):
    """Put with own ids and without, one after another; note what was answered."""
    number = 0
    while not stop.is_set():
        number += 1
        body = f"{name}-{number}"
        # Nothing but the end of the test may come out of a verb that is safe to repeat.
        await queue.put("safe", body, id=body)
        safe.append(body)
        await asyncio.sleep(random.random() / 1000)
        unsafe[body] = None
        try:
            await queue.put("unsafe", body)
            unsafe[body] = True
        except errors.ServerUnreachable:
            unsafe[body] = False


@pytest.mark.campaign
@pytest.mark.timeout(60)
async def test_a_server_that_is_killed_and_started_again(tmp_path):
    port = free_port()
    safe, unsafe = [], {}

    def server():
        return ServerProcess("--http", f"127.0.0.1:{port}", store=tmp_path / "store")

    with server() as first:
        await asyncio.to_thread(first.ready)
        async with dwell.open(f"http://127.0.0.1:{port}", retries=30) as queue:
            stop = asyncio.Event()
            tasks = [
                asyncio.ensure_future(_put_until(stop, queue, n, safe, unsafe)) for n in range(20)
            ]
            while len(safe) < 500 or list(unsafe.values()).count(None) < 5:
                await asyncio.sleep(0.001)
            first.process.kill()
            first.process.wait()
            await asyncio.sleep(0.1)
            before = len(safe)
            with server() as second:
                await asyncio.to_thread(second.ready)
                await until_async(lambda: len(safe) >= before + 200)
                stop.set()
                await asyncio.gather(*tasks)
                assert second.stop() == 0
    async with dwell.open(tmp_path / "store") as queue:
        found = {
            topic: [m.body.decode() async for page in queue.pages(topic, "ready") for m in page]
            for topic in ("safe", "unsafe")
        }
    assert sorted(found["safe"]) == sorted(safe)
    assert len(set(found["unsafe"])) == len(found["unsafe"])
    assert {body for body, is_known in unsafe.items() if is_known} <= set(found["unsafe"])


# --- addresses and options ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:",
        "http:///path",
        "http://host/path",
        "http://host?query",
        "http://host#part",
        "http://host:port",
        "http://host:99999",
        "http://[::1",
        "https://user:word@host",
        "http://user@host",
        "http://ho st",
        "http://host\n",
    ],
)
def test_addresses_that_are_refused(url):
    with pytest.raises(dwell.InvalidUrl, match="url: got"):
        dwell.open(url)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host", "http://host"),
        ("http://host:1/", "http://host:1"),
        ("HTTPS://Host:8410", "https://host:8410"),
        ("http://[::1]:8410", "http://[::1]:8410"),
    ],
)
def test_addresses_that_are_good(url, base):
    assert checked_base(url) == base
    dwell.open(url)


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"timeout": 0},
        {"timeout": -1.0},
        {"timeout": float("nan")},
        {"connections": 0},
        {"token": "a\nb"},
        {"token": ""},
        {"token": "ä"},
    ],
)
def test_options_that_are_refused(options):
    (name,) = options
    with pytest.raises(dwell.InvalidInput, match=f"{name}: got"):
        dwell.open("http://localhost", **options)


async def test_a_server_that_is_another():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + said + b"\r\ncontent-length: 5\r\n\r\nhello")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for head, error in (
            (b"200 OK", dwell.StoreError),
            (b"301 Moved\r\nlocation: /elsewhere", dwell.StoreError),
            (b"200 OK\r\ndwell-now-ms: noon", dwell.StoreError),
            (b"404 Not Found", dwell.DwellError),
            (b"502 Bad Gateway", dwell.StoreError),
        ):
            said = head
            with pytest.raises(error, match=r"hello|Dwell server"):
                async with dwell.open(url, retries=1):
                    pass


# --- tokens and TLS -----------------------------------------------------------------------------

TOKENS = {
    "admin": {"put": [""], "take": [""], "admin": [""]},
    "orders": {"put": ["orders."], "take": ["orders."]},
    "putter": {"put": ["orders.", "other."]},
    "other": {"take": ["other."]},
}


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.toml"
    entries = [
        f'[[token]]\nname = "{name}"\nsha256 = "{hash_of(name)}"\n'
        + "".join(f"{right} = {topics}\n" for right, topics in rights.items())
        for name, rights in TOKENS.items()
    ]
    path.write_text("\n".join(entries))
    path.chmod(0o600)
    return Tokens.load(path)


@contextlib.asynccontextmanager
async def opened_as(tokens, *names):
    """Give a queue for each token, over one server."""
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(tokens=tokens))
        handles = [dwell.open(server.url, token=name) for name in names]
        yield [await stack.enter_async_context(handle) for handle in handles]


async def test_a_token_from_the_environment(tokens, monkeypatch):
    monkeypatch.setenv("DWELL_TOKEN", "admin")

    async with (
        served(tokens=tokens) as server,
        dwell.open(server.url) as queue,
    ):
        assert (await queue.put("orders.1", "x")).result is Result.CREATED
        with pytest.raises(errors.Unauthorized):
            async with dwell.open(server.url, token="wrong"):
                pass


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_without_a_good_token_nothing_is_done(tokens, token):
    async with (
        served(tokens=tokens) as server,
        dwell.open(server.url, token="admin") as admin,
    ):
        with pytest.raises(errors.Unauthorized):
            async with dwell.open(server.url, token=token) as queue:
                await queue.put("orders.1", "x")
        assert (await admin.stats()).topics == {}


async def test_each_topic_has_rights_of_its_own(tokens):
    async with opened_as(tokens, "orders", "putter", "other") as (orders, putter, other):
        await orders.put("orders.1", "x")
        await putter.put("orders.1", "x")
        await putter.put("other.1", "x")
        (mine,) = await orders.take("orders.1")
        assert await orders.ack(mine) is Result.ACKED
        for call in (
            orders.put("other.1", "x"),
            orders.take("other.1"),
            orders.take(["orders.1", "other.1"]),
            orders.take("other.1", wait="1m"),
            orders.stats(),
            orders.events(),
            orders.scan("orders.1", "ready"),
            orders.named([1]),
            putter.take("orders.1"),
            putter.peek("orders.1"),
            other.cancel("other.1", "x"),
            other.configure("other.1", paused=True),
            orders.kick("orders.1", "x"),
        ):
            with pytest.raises(errors.Forbidden):
                await call
        assert len(await other.take("other.1")) == 1


async def test_a_receipt_is_no_right(tokens):
    async with opened_as(tokens, "admin", "orders", "other") as (admin, orders, other):
        await admin.put_many("other.1", ["x", "y"])
        batch = await other.take("other.1", 2)
        for verb in (orders.ack, orders.release, orders.touch, orders.bury):
            assert await verb(batch) == [Result.STALE] * 2
        assert await orders.taken_from(batch) == [None, None]
        assert await orders.ack(batch[0]) is Result.STALE
        assert (await other.ack(batch)).count(Result.ACKED) == 2


def test_tls_with_an_authority_of_ones_own(tmp_path):
    cert, key = make_certificate(tmp_path)
    other = make_certificate(tmp_path, "other")[0]
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    with ServerProcess(*options, store="memory:") as server:
        url = server.url("")
        with dwell.open(url, ca=str(cert)) as queue:
            assert queue.put("t", "x").result is Result.CREATED
            assert len(queue.take("t", wait="1m")) == 1
        for wrong in ({}, {"ca": str(other)}):
            with (
                pytest.raises(errors.ServerUnreachable, match="certificate"),
                dwell.open(url, retries=0, **wrong),
            ):
                pass
        with (
            pytest.raises(errors.ServerUnreachable),
            dwell.open(url.replace("https", "http"), retries=0),
        ):
            pass
        for file in (tmp_path / "none.crt", key):
            with pytest.raises(dwell.InvalidInput, match="ca: "), dwell.open(url, ca=str(file)):
                pass


# --- takers -------------------------------------------------------------------------------------


async def test_a_wait_may_be_longer_than_a_server_waits():
    async with opened() as (queue, server):
        wait = asyncio.ensure_future(queue.take("t", wait="30d"))
        await waiting(server)
        await queue.put("t", "x")
        assert len(await wait) == 1


async def test_a_wait_that_outlasts_its_polls(monkeypatch):
    monkeypatch.setattr("dwell.queue.remotetakers.LONGEST_POLL_MS", 50)

    async with wired() as (queue, wire, server):
        wait = asyncio.ensure_future(queue.take("t", wait="1m"))
        await until_async(lambda: wire.requests >= 5)
        await server.queue.put("t", "x")
        assert len(await wait) == 1
        start = time.monotonic()
        assert len(await queue.take("t", wait=0.3)) == 0
        assert 0.29 <= time.monotonic() - start < PATIENCE_S


async def test_takers_that_ask_together_are_one_request():
    async with wired() as (queue, wire, server):
        before = wire.requests
        takes = [asyncio.ensure_future(queue.take("t", wait="1m")) for _ in range(100)]
        await waiting(server)
        assert wire.requests == before + 1
        await queue.put_many("t", [str(n) for n in range(100)])
        batches = await asyncio.gather(*takes)
        assert sorted(int(batch[0].body) for batch in batches) == list(range(100))
        assert wire.requests < before + 20


async def test_takers_that_wait_leave_room_for_the_rest():
    async with opened(client={"connections": 2, "timeout": 5}) as (queue, server):
        takes = [asyncio.ensure_future(queue.take(f"t{n}", wait="1m")) for n in range(20)]
        await until_async(lambda: len(server.queue.waiting) >= 20)
        for n in range(20):
            await queue.put(f"t{n}", "x")
        for batch in await asyncio.gather(*takes):
            assert await queue.ack(batch[0]) is Result.ACKED


async def test_takers_that_wait_are_not_counted_as_work():
    async with opened(in_flight=InFlight(5, 1 << 20), client={"retries": 0}) as (queue, server):
        takes = [asyncio.ensure_future(queue.take(f"t{n}", wait="1m")) for n in range(5)]
        await until_async(lambda: len(server.queue.waiting) >= 5)
        await until_async(lambda: server.service.in_flight.requests == 0)
        await queue.put_many("t0", ["x"])
        assert len(await takes[0]) == 1
        for take in takes[1:]:
            take.cancel()
        await asyncio.wait(takes)
        await until_async(lambda: not server.queue.waiting)
        await until_async(lambda: server.service.in_flight.requests == 0)


async def test_limits_larger_than_a_request_of_the_client():
    async with opened() as (queue, server):
        seen = []
        sent = server.queue.take

        async def noting(*args, **how):
            seen.append(args[1])
            return await sent(*args, **how)

        server.queue.take = noting
        await queue.put_many("t", ["x"] * 10_000)
        assert len(await queue.take("t", 10_000)) == 10_000
        assert seen == [10_000]


async def test_a_taker_that_is_cancelled_takes_nothing():
    async with opened() as (queue, server):
        wait = asyncio.ensure_future(queue.take("t", wait="1m"))
        await until_async(lambda: server.queue.waiting)
        wait.cancel()
        start = time.monotonic()
        while server.queue.waiting:
            await asyncio.sleep(0.01)
            assert time.monotonic() - start < PATIENCE_S
        await queue.put("t", "x")
        assert len(await queue.take("t")) == 1


@pytest.mark.parametrize("wait", [0, 10])
async def test_a_cancel_at_the_very_moment_loses_nothing(wait):
    chance = random.Random(1)

    async with opened() as (queue, server):
        taken = 0
        for number in range(200):
            take = asyncio.ensure_future(queue.take("t", wait=wait, lease="1h"))
            await asyncio.sleep(chance.uniform(0, 0.002))
            put = asyncio.ensure_future(queue.put("t", str(number)))
            await asyncio.sleep(chance.uniform(0, 0.004))
            take.cancel()
            await asyncio.wait({take, put})
            if not take.cancelled() and len(take.result()):
                taken += (await queue.ack(take.result())).count(Result.ACKED)
        await settled(server, leased=0, ready=200 - taken)
        found = await queue.take("t", 1000)
        assert set(found.attempt.tolist()) <= {1}
        assert 0 < taken < 200


async def test_a_cancel_does_not_wait_for_a_server_that_is_silent():
    start = time.monotonic()
    async with wired() as (queue, wire, server):
        take = asyncio.ensure_future(queue.take("t", wait="1m"))
        await waiting(server)
        wire.break_("silent")
        take.cancel()
        cancelled_s = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await take
        # It does not wait for the grace of the client, let alone for the end of the wait.
        assert time.monotonic() - cancelled_s < 4
    # What is left of the take gets a little time while the queue closes.
    assert time.monotonic() - start < 2 * PATIENCE_S


async def test_one_of_many_takers_is_cancelled():
    async with opened() as (queue, server):
        takes = [asyncio.ensure_future(queue.take("t", wait="1m")) for _ in range(3)]
        await waiting(server)
        takes[1].cancel()
        await queue.put_many("t", ["a", "b", "c"])
        first, third = await takes[0], await takes[2]
        assert len(first) == len(third) == 1
        await settled(server, ready=1, leased=2)


@pytest.mark.timeout(60)
async def test_closing_while_takers_wait():
    async with served() as server:
        async with dwell.open(server.url) as queue:
            takes = [asyncio.ensure_future(queue.take(f"t{n % 3}", wait="1m")) for n in range(9)]
            await asyncio.sleep(0.1)
            takes.append(asyncio.ensure_future(queue.take("late", wait="1m")))
            await asyncio.sleep(0)
            start = time.monotonic()
        assert time.monotonic() - start < PATIENCE_S
        for take in takes:
            with pytest.raises(dwell.StoreClosed):
                await take
        with pytest.raises(dwell.StoreClosed):
            await queue.put("t", "x")
        await until_async(lambda: not server.queue.waiting)
        await server.queue.put("t1", "x")
        assert (await server.queue.stats()).topics["t1"].ready == 1


# --- time ---------------------------------------------------------------------------------------


class SkewedClock(RealClock):
    """A server's clock that is wrong by so much."""

    def __init__(self, skew_ms):
        self.skew_ms = skew_ms

    def now_ms(self):
        return super().now_ms() + self.skew_ms


@pytest.mark.parametrize("skew_ms", [-3_600_000, 3_600_000])
@pytest.mark.timeout(60)
async def test_a_delay_counts_by_the_servers_clock(skew_ms):
    clock = SkewedClock(skew_ms)
    async with served(MemoryStore(clock)) as server, dwell.open(server.url) as queue:
        # An hour apart, or as much as a busy machine makes of a moment.
        most_ms = 1000 * PATIENCE_S
        assert -most_ms < queue.clock.now_ms() - clock.now_ms() < most_ms
        start_ms = clock.now_ms()
        await queue.put("t", "x", delay=0.2)
        (message,) = await queue.take("t", wait="1m")
        assert 200 <= message.due_ms - start_ms < most_ms
        assert 200 <= clock.now_ms() - start_ms < most_ms


@pytest.mark.timeout(60)
async def test_a_due_that_is_given_stays_what_it_is_whatever_the_client_takes_for_now():
    """The first answer after a step of the server's clock may be one to a take that waited long."""

    async with served() as server, dwell.open(server.url) as queue:
        queue.clock._ahead_ms += 60_000
        due_ms = server.queue.clock.now_ms() + 30_000
        dues = [due_ms, due_ms + 1]
        many = await queue.put_many("t", ["x", "y"], due=dues)
        one = await queue.put("t", "z", due=due_ms)
        assert not await queue.take("t", 10)
        found = await queue.get("t", [*many.ids, one.id])
        assert [message.due_ms for message in found] == [*dues, due_ms]
        # What has no time is due when the answer comes.
        await queue.put("t", "now")
        await queue.put_many("t", ["now"])
        assert len(await queue.take("t", 10)) == 2


@pytest.mark.timeout(60)
async def test_a_message_is_moved_to_the_due_that_is_given_whatever_the_client_takes_for_now():
    async with served() as server, dwell.open(server.url) as queue:

        async def move(verb, which, **words):
            # Each answer sets the clock right again.
            queue.clock._ahead_ms += 60_000
            await verb("t", which, **words)

        ids = ["0", "1", "2", "3"]
        await queue.put_many("t", ids[:3], ids=ids[:3], delay="1h")
        await queue.put("t", "3", id="3", delay="1h", key="k")
        due_ms = server.queue.clock.now_ms() + 30_000
        await move(queue.reschedule, "0", due=due_ms)
        await move(queue.reschedule, ["1", "2"], due=[due_ms + 1, due_ms + 2])
        await move(queue.reschedule_where, dwell.select(key="k"), due=due_ms + 3)
        assert not await queue.take("t", 10)
        found = await queue.get("t", ids)
        assert [message.due_ms for message in found] == [due_ms + at for at in range(4)]
        # What is not to wait is due when the answer comes.
        await move(queue.reschedule, "0", delay=0)
        await move(queue.reschedule, ["1", "2"], delay=[0, "1h"])
        assert [message.id for message in await queue.take("t", 10)] == ["0", "1"]


class _Time:
    """The clock by which a client counts, and the clock of a server, both moved by hand."""

    def __init__(self, monkeypatch, ahead_s):
        self.now_s, self.ahead_s = 1000.0, ahead_s
        monkeypatch.setattr("dwell.clock.servertime.elapsed_s", lambda: self.now_s)
        self.clock = ServerClock()

    def server_ms(self):
        return int((self.now_s + self.ahead_s) * 1000)

    def ask(self, there_s, back_s):
        """Ask the server; it takes so long to get there, and back."""
        asked_at = self.now_s
        self.now_s += there_s
        server_ms = self.server_ms()
        self.now_s += back_s
        self.clock.hear(server_ms, asked_at)


def test_the_servers_time_goes_on_while_the_machine_is_suspended(monkeypatch):
    clock = ServerClock()
    clock.hear(1_000_000, elapsed_s())
    # The monotonic clock stands still then.
    before_s = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: before_s)
    assert clock.now_ms() > 1_000_000
    time.sleep(0.01)
    assert clock.now_ms() >= 1_000_010


@pytest.mark.parametrize("ahead_s", [0, 86_400 * 365 * 50 + 0.1234, -500.9876])
def test_the_servers_time_is_never_told_too_early(monkeypatch, ahead_s):
    time_ = _Time(monkeypatch, ahead_s)
    chance = random.Random(3)
    best_s = float("inf")
    for _ in range(2000):
        there_s, back_s = chance.expovariate(500), chance.expovariate(500)
        time_.ask(there_s, back_s)
        best_s = min(best_s, there_s + back_s)
        time_.now_s += chance.expovariate(10)
        late_ms = time_.clock.now_ms() - time_.server_ms()
        # A millisecond for the part of one that the server does not say, one for rounding.
        assert 0 <= late_ms <= 1000 * (best_s + 0.02) + 2


def test_a_better_answer_does_not_set_the_clock_back(monkeypatch):
    """What was due now when a call was made is still due now when its request is sent."""
    time_ = _Time(monkeypatch, 5000)
    time_.ask(0.5, 0.1)
    told_ms = time_.clock.now_ms()
    time_.ask(0.001, 0.001)
    assert time_.clock.now_ms() == told_ms
    time_.now_s += 0.5
    assert told_ms < time_.clock.now_ms() <= time_.server_ms() + 2
    time_.ahead_s -= 3600
    time_.ask(0.001, 0.001)
    assert time_.clock.now_ms() <= time_.server_ms() + 3


def test_a_wait_says_little_of_the_time(monkeypatch):
    time_ = _Time(monkeypatch, 5000)
    time_.ask(0.001, 0.001)
    time_.ask(0, 30)
    time_.ask(30, 0)
    assert 0 <= time_.clock.now_ms() - time_.server_ms() <= 12


@pytest.mark.parametrize("jump_s", [3600, 5, -5, -3600])
def test_a_server_whose_clock_is_set(monkeypatch, jump_s):
    time_ = _Time(monkeypatch, 5000)
    time_.ask(0.001, 0.001)
    time_.ahead_s += jump_s
    time_.ask(0.01, 0.03)
    assert 0 <= time_.clock.now_ms() - time_.server_ms() <= 42


def test_before_the_first_answer_the_time_is_this_machines():
    assert abs(ServerClock().now_ms() - time.time() * 1000) < 5_000


async def test_delay_levels_are_the_topics():
    async with opened() as (queue, server):
        await queue.configure("t", delay_levels_ms=[60_000, 120_000])
        start_ms = server.queue.clock.now_ms()
        await queue.put("t", "x", id="a", delay_level=2)
        await queue.put_many("t", ["x", "y"], ids=["b", "c"], delay_level=[1, 2])
        found = await queue.get("t", ["a", "b", "c"])
        waits_s = [round((message.due_ms - start_ms) / 60_000) for message in found]
        assert waits_s == [2, 1, 2]
        with pytest.raises(dwell.InvalidTime, match="delay_level"):
            await queue.put("t", "x", delay_level=3)


# --- plain threads ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with ServerProcess(store="memory:") as process:
        process.ready()
        yield process


def test_many_threads_share_one_queue(server):
    acked = []

    def work(queue, name):
        for number in range(50):
            queue.put("threads", f"{name}-{number}")
            (message,) = queue.take("threads", wait="1m")
            assert queue.ack(message) is Result.ACKED
            acked.append(message.body)

    with dwell.open(server.url("")) as queue:
        threads = [threading.Thread(target=work, args=(queue, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(set(acked)) == 400
        stats = queue.stats()
        assert (stats.topics["threads"].ready, stats.totals["ack"]) == (0, 400)


def test_a_forked_process_is_told(server):
    with dwell.open(server.url("")) as queue:
        check_fork_is_told(queue)


def test_closing_ends_a_wait_in_another_thread(server):
    ended = []

    def wait(queue):
        try:
            queue.take("closing", wait="1h")
        except dwell.StoreClosed as error:
            ended.append(error)

    with dwell.open(server.url("")) as queue:
        thread = threading.Thread(target=wait, args=(queue,))
        thread.start()
        time.sleep(0.1)
    thread.join(10)
    assert len(ended) == 1


# --- much at once -------------------------------------------------------------------------------


async def test_large_bodies_and_many_messages():
    async with opened() as (queue, _server):
        bodies = [os.urandom(1500) for _ in range(10_000)]
        await queue.put_many("t", bodies, due=np.arange(10_000, dtype=np.int64))
        large = os.urandom(dwell.message.MAX_BODY_BYTES)
        await queue.put("t", large, due=20_000)
        batch = await queue.take("t", 10_000)
        assert list(batch.bodies) == bodies
        assert (await queue.take("t"))[0].body == large
        with pytest.raises(dwell.InvalidBody):
            await queue.put("t", large + b"x")


async def test_many_small_calls_at_once():
    async with wired() as (queue, wire, _server):
        before = wire.requests
        puts = await asyncio.gather(*(queue.put("t", str(n)) for n in range(1000)))
        assert {put.result for put in puts} == {Result.CREATED}
        batches = await asyncio.gather(*(queue.take("t") for _ in range(1000)))
        results = await asyncio.gather(*(queue.ack(batch[0]) for batch in batches))
        assert set(results) == {Result.ACKED}
        assert wire.requests < before + 30


# --- backup -------------------------------------------------------------------------------------


async def test_a_backup_comes_over_the_wire(tmp_path):
    async with opened(store=EmbeddedStore(tmp_path / "store")) as (queue, _server):
        await queue.put_many("t", [b"x" * 1000] * 5000, delay="1h")
        await queue.put("t", "leased")
        (message,) = await queue.take("t", lease="1h")
        await queue.store.backup(tmp_path / "copy")
        with pytest.raises(dwell.InvalidInput, match="is there already"):
            await queue.store.backup(tmp_path / "copy")
    async with dwell.open(tmp_path / "copy") as queue:
        assert (await queue.stats()).topics["t"] == dwell.TopicStats(delayed=5000, leased=1)
        with pytest.raises(errors.ForeignReceipt):
            await queue.ack(message.receipt)


async def test_a_client_acks_what_a_restored_store_gave_to_others(tmp_path):
    async with dwell.open(tmp_path / "copied") as queue:
        await queue.put("t", "x")
        await queue.store.backup(tmp_path / "copy")
        (old,) = await queue.take("t", lease="1h")
    async with (
        wired(EmbeddedStore(tmp_path / "first")) as (queue, wire, _server),
        served(EmbeddedStore(tmp_path / "copy")) as restored,
    ):
        wire.move(restored.url)
        async with dwell.open(restored.url) as other:
            (message,) = await other.take("t", lease="1h")
        both = (queue.ack(message.receipt), queue.ack(old.receipt))
        acked, foreign = await asyncio.gather(*both, return_exceptions=True)
        assert acked is Result.ACKED
        assert isinstance(foreign, errors.ForeignReceipt)


async def test_a_backup_that_is_cut_off_leaves_nothing(tmp_path):
    async with wired(EmbeddedStore(tmp_path / "store")) as (queue, wire, _server):
        wire.break_("part", 1)
        with pytest.raises(errors.ServerUnreachable):
            await queue.store.backup(tmp_path / "copy")
        assert [path.name for path in tmp_path.iterdir()] == ["store"]
        await queue.store.backup(tmp_path / "copy")


async def test_what_is_kept_in_no_folder_cannot_be_copied(tmp_path):
    async with opened() as (queue, _server):
        with pytest.raises(dwell.InvalidInput, match="not kept in a folder"):
            await queue.store.backup(tmp_path / "copy")
        assert list(tmp_path.iterdir()) == []


class SetClock(RealClock):
    """A clock that can be set."""

    ahead_ms = 0

    def now_ms(self):
        return super().now_ms() + self.ahead_ms


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
@pytest.mark.parametrize("is_refused_first", [False, True])
async def test_delays_count_by_a_clock_that_was_set_since_the_last_answer(
    step_ms, is_refused_first, monkeypatch
):
    monkeypatch.setitem(problems.RETRY_AFTER_S, 503, 0)
    clock = SetClock()
    async with served(MemoryStore(clock)) as server, dwell.open(server.url) as queue:
        given_ms = clock.now_ms() + 86_400_000
        await queue.put("warm", "x")
        clock.ahead_ms = step_ms
        server.service.is_draining = is_refused_first
        putting = asyncio.ensure_future(queue.put("t", "x", id="a", delay="10m", ttl="30m"))
        await asyncio.sleep(0.05)
        server.service.is_draining = False
        await putting
        await queue.put("t", "x", id="given", due=given_ms)
        counted, given = await server.queue.get("t", ["a", "given"])
        now_ms = clock.now_ms()
        assert abs(counted.due_ms - now_ms - 600_000) < 60_000
        assert abs(counted.expires_ms - now_ms - 1_800_000) < 60_000
        assert given.due_ms == given_ms
