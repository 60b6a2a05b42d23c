"""What one token may have in the store, and how often it may ask."""

import asyncio
import contextlib
import io

import msgspec
import pyarrow as pa
import pytest

import dwell
from dwell.server import quotas
from dwell.server.tokens import Tokens, hash_of
from dwell.store.embedded.limits import Limits
from dwell.store.embedded.store import EmbeddedStore
from tests.beanstalk.served import Line
from tests.beanstalk.served import Served as BeanstalkServed
from tests.http.grants import tokens_of
from tests.http.served import served
from tests.http.test_http_api import ARROW, MSGPACK, NDJSON, calling
from tests.waiting import until, until_async


def tokens_in(folder, quota, anonymous=""):
    """Return tokens: a has a quota, b has none, and root sees all."""
    path = folder / "tokens.toml"
    rights = {"a": f'put = ["a."]\ntake = ["a."]\nadmin = ["a.", "dwell:"]\nquota = {{{quota}}}'}
    rights |= {"b": 'put = [""]\ntake = [""]\nadmin = [""]'}
    entries = [
        f'[[token]]\nname = "{name}"\nsha256 = "{hash_of(name)}"\n{grant}\n'
        for name, grant in rights.items()
    ]
    path.write_text("".join([f"[anonymous]\n{anonymous}\n", *entries]))
    path.chmod(0o600)
    return Tokens.load(path)


@contextlib.asynccontextmanager
async def tenants(folder, quota, **options):
    """Give a function that asks as somebody, and the server."""
    tokens = options.pop("tokens", None) or tokens_in(folder, quota)
    async with calling(tokens=tokens, **options) as caller:

        async def ask(who, path, body=None, method="POST", **more):
            head = {"authorization": f"Bearer {who}"} if who else {}
            url = caller.server.url + path
            sent = {"data": body} if isinstance(body, bytes) else {"json": body}
            async with caller.session.request(
                method, url, headers={**head, **more}, **sent
            ) as answer:
                text = await answer.read()
                is_json = answer.content_type.endswith("json")
                return answer.status, msgspec.json.decode(text) if is_json else text

        yield ask, caller.server


def rows(count, **more):
    return [{"body": "x", **more} for _ in range(count)]


def _arrow(count):
    sink = io.BytesIO()
    table = pa.table({"body": ["x"] * count})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


FORMS = {
    "json": lambda n: (msgspec.json.encode(rows(n)), "application/json"),
    "msgpack": lambda n: (msgspec.msgpack.encode(rows(n)), MSGPACK),
    "ndjson": lambda n: (b'{"body": "x"}\n' * n, NDJSON),
    "arrow": lambda n: (_arrow(n), ARROW),
}


@pytest.mark.parametrize("form", FORMS)
async def test_no_more_messages_than_the_quota_in_any_form(tmp_path, form):
    async with tenants(tmp_path, "pending = 10") as (ask, server):
        for count, expected in ((6, 200), (5, 507), (4, 200), (1, 507)):
            data, kind = FORMS[form](count)
            status, answer = await ask(
                "a", "/v1/topics/a.t/messages", data, **{"content-type": kind}
            )
            assert status == expected, answer
        assert answer["error"] == "StoreFull"
        assert answer["detail"] == "quota pending of token a: got 11, expected at most 10"
        assert (await server.queue.stats()).topics["a.t"].ready == 10
        # Others have room, also in its topics.
        assert (await ask("b", "/v1/topics/b/messages", rows(20)))[0] == 200


async def test_the_columns_of_our_client_and_a_clear_exception(tmp_path):
    tokens = tokens_in(tmp_path, "pending = 10")
    async with served(tokens=tokens) as server, dwell.open(server.url, token="a") as queue:
        await queue.put_many("a.t", ["x"] * 10)
        with pytest.raises(dwell.StoreFull, match="quota pending of token a: got 11"):
            await queue.put("a.t", "x")
        with pytest.raises(dwell.StoreFull, match="quota pending of token a"):
            await queue.put_many("a.u", ["x"] * 10)


def sharing(folder):
    """Return tokens that share the topics of s, one of which has more than these."""
    quota = "quota = {pending = 100, topics = 20, stored_bytes = 1000}"
    grants = {f"s{n}": f'put = ["s."]\ntake = ["s."]\n{quota}' for n in range(3)}
    grants["more"] = f'put = ["s.a", "t."]\ntake = ["s.", "t."]\n{quota}'
    return tokens_of(folder, grants)


@pytest.mark.parametrize(
    ("quota", "body", "most"), [("pending", "x", 98), ("stored_bytes", "x" * 12, 1000 // 84 * 7)]
)
async def test_tokens_that_share_topics_do_not_pass_a_quota_together(
    tmp_path, quota, body, most, monkeypatch
):
    monkeypatch.setattr(quotas, "_LOOK_S", 600.0)
    tokens = sharing(tmp_path)
    async with tenants(tmp_path, "", tokens=tokens) as (ask, server):
        whose = [*(f"s{n}" for n in range(3)), "more"]
        puts = [
            ask(who, f"/v1/topics/s.a{n % 5}/messages", rows(7, body=body))
            for n in range(10)
            for who in whose
        ]
        answers = await asyncio.gather(*puts)
        assert {status for status, _ in answers} == {200, 507}
        assert any(f"quota {quota} of token" in str(answer) for _, answer in answers)
        assert sum(topic.ready for topic in (await server.queue.stats()).topics.values()) == most


async def test_topics_that_others_made_count_for_those_who_share_them(tmp_path, monkeypatch):
    monkeypatch.setattr(quotas, "_LOOK_S", 600.0)
    async with tenants(tmp_path, "", tokens=sharing(tmp_path)) as (ask, _server):
        for n in range(20):
            status, _ = await ask(f"s{n % 3}", f"/v1/topics/s.{n}/messages", rows(1))
            assert status == 200
        for who in ("s0", "s1", "s2"):
            status, answer = await ask(who, "/v1/topics/s.new/messages", rows(1))
            assert (status, answer["error"]) == (507, "StoreFull")
        # Those of other names are none of its topics, and their messages none of its own.
        assert (await ask("s1", "/v1/topics/s.1/messages", rows(75)))[0] == 200
        assert (await ask("more", "/v1/topics/t.new/messages", rows(80)))[0] == 200
        assert (await ask("s2", "/v1/topics/s.2/messages", rows(6)))[0] == 507


async def test_a_quota_that_a_reload_brings_counts_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(quotas, "_LOOK_S", 600.0)
    tokens = tokens_in(tmp_path, "pending = 100")
    async with tenants(tmp_path, "", tokens=tokens) as (ask, server):
        await server.queue.put("a.t", "x" * 1000)
        assert (await ask("a", "/v1/topics/a.t/messages", rows(1)))[0] == 200
        tokens_in(tmp_path, "pending = 100, stored_bytes = 1000")
        tokens.reload()
        status, answer = await ask("a", "/v1/topics/a.t/messages", rows(1))
        assert status == 507
        assert answer["detail"].startswith("quota stored_bytes of token a: got 1")


async def test_requests_at_once_do_not_pass_a_quota_together(tmp_path):
    async with tenants(tmp_path, "pending = 100") as (ask, server):
        puts = [ask("a", f"/v1/topics/a.{n}/messages", rows(7)) for n in range(60)]
        statuses = [status for status, _ in await asyncio.gather(*puts)]
        assert statuses.count(200) == 100 // 7
        assert set(statuses) == {200, 507}
        there = (await server.queue.stats()).topics.values()
        assert sum(topic.ready for topic in there) == 98


async def test_what_is_done_makes_room_again(tmp_path):
    async with tenants(tmp_path, "pending = 10") as (ask, server):
        assert (await ask("a", "/v1/topics/a.t/messages", rows(10)))[0] == 200
        assert (await ask("a", "/v1/topics/a.t/messages", rows(1)))[0] == 507
        await server.queue.clear("a.t")

        async def has_room():
            return (await ask("a", "/v1/topics/a.t/messages", rows(1)))[0] == 200

        async with asyncio.timeout(30):
            while not await has_room():
                await asyncio.sleep(0.05)


async def test_what_is_there_already_counts_and_stays_counted(tmp_path):
    async with tenants(tmp_path, "pending = 10") as (ask, server):
        await server.queue.put_many("a.old", ["x"] * 9, delay="1h")
        assert (await ask("a", "/v1/topics/a.t/messages", rows(2)))[0] == 507
        # Over many looks, too.
        for _ in range(5):
            server.service.quotas._looks._good_until_s = 0.0
            await ask("a", "/v1/topics/a.t/messages", rows(1))
        assert (await server.queue.stats()).topics["a.t"].ready == 1


async def test_what_is_refused_or_kept_takes_no_room(tmp_path):
    async with tenants(tmp_path, "pending = 3") as (ask, _server):
        where = "/v1/topics/a.t/messages"
        assert (await ask("a", where, {"body": "x", "id": "1"}))[0] == 200
        for _ in range(5):
            assert (await ask("a", where, {"body": "y", "id": "1"}))[0] == 200
            assert (await ask("a", f"{where}?on_conflict=replace", {"body": "y", "id": "1"}))[
                0
            ] == 200
            assert (await ask("a", f"{where}?on_conflict=error", {"body": "y", "id": "1"}))[
                0
            ] == 409
        assert (await ask("a", where, rows(2)))[0] == 200
        assert (await ask("a", where, rows(1)))[0] == 507


async def test_no_more_topics_than_the_quota(tmp_path):
    async with tenants(tmp_path, "topics = 3") as (ask, server):
        puts = [ask("a", f"/v1/topics/a.{n}/messages", rows(1)) for n in range(20)]
        statuses = [status for status, _ in await asyncio.gather(*puts)]
        assert statuses.count(200) == 3
        there = [name for name in (await server.queue.stats()).topics if name.startswith("a.")]
        assert len(there) == 3
        status, answer = await ask("a", "/v1/topics/a.new/messages", rows(1))
        assert answer["detail"] == "quota topics of token a: got 4, expected at most 3"
        # Into those that are there it may put, and none is made by settings.
        assert (await ask("a", f"/v1/topics/{there[0]}/messages", rows(5)))[0] == 200
        for method in ("PATCH", "PUT"):
            status, answer = await ask("a", "/v1/topics/a.new/settings", {"paused": True}, method)
            assert (status, answer["error"]) == (507, "StoreFull")
        status, _ = await ask("a", f"/v1/topics/{there[0]}/settings", {"paused": True}, "PATCH")
        assert status == 200


async def test_topics_with_settings_only_are_bounded_too(tmp_path):
    async with tenants(tmp_path, "topics = 3") as (ask, server):
        changes = [
            ask("a", f"/v1/topics/a.{n}/settings", {"paused": True}, "PATCH") for n in range(9)
        ]
        assert [status for status, _ in await asyncio.gather(*changes)].count(200) == 3
        server.service.quotas._looks._good_until_s = 0.0
        assert (await ask("a", "/v1/topics/a.x/settings", {"paused": True}, "PATCH"))[0] == 507


@pytest.mark.parametrize("kind", ["memory", "folder"])
async def test_no_more_bytes_than_the_quota(tmp_path, kind):
    store = None if kind == "memory" else EmbeddedStore(tmp_path / "store")
    async with tenants(tmp_path, "stored_bytes = 100000", store=store) as (ask, server):
        large = {"body": "x" * 30_000}
        puts = [ask("a", f"/v1/topics/a.{n}/messages", large) for n in range(9)]
        assert [status for status, _ in await asyncio.gather(*puts)].count(200) == 3
        server.service.quotas._looks._good_until_s = 0.0
        status, answer = await ask("a", "/v1/topics/a.t/messages", large)
        assert status == 507
        assert answer["detail"].startswith("quota stored_bytes of token a: got 120")
        headers = {"body": "x", "headers": {str(n): "x" * 1000 for n in range(12)}}
        assert (await ask("a", "/v1/topics/a.t/messages", headers))[0] == 507
        assert (await ask("a", "/v1/topics/a.t/messages", {"body": "x" * 5000}))[0] == 200


async def test_the_job_protocol_and_schedules_have_the_quota(tmp_path):
    async with tenants(tmp_path, "pending = 1") as (ask, _server):
        add = {"command": "add", "topic": "a.t", "id": "1", "body": "x", "TTR": 60}
        assert (await ask("a", "/command", add))[1]["success"]
        told = (await ask("a", "/command", {**add, "id": "2"}))[1]
        assert told["error"].startswith("StoreFull: quota pending of token a: got 2, ")
        # To replace one takes no room once it is known that it does.
        schedule = {"topic": "a.t", "body": "x", "every": "1h"}
        assert (await ask("a", "/v1/schedules/n", schedule, "PUT"))[0] == 507
        assert (await ask("b", "/v1/schedules/n", schedule, "PUT"))[0] == 200
        assert (await ask("a", "/v1/schedules/n", {"topic": "a.u"}, "PATCH"))[0] == 507
        assert (await ask("a", "/v1/schedules/n", {"priority": 1}, "PATCH"))[0] == 200


async def test_bodies_of_schedules_have_the_quota(tmp_path):
    async with tenants(tmp_path, "stored_bytes = 100000") as (ask, server):
        schedule = {"topic": "a.t", "body": "x" * 21_000, "every": "1h"}
        puts = [ask("a", f"/v1/schedules/{n}", schedule, "PUT") for n in range(9)]
        # In the store a body is in base64, so that it is 28,000 bytes long.
        assert [status for status, _ in await asyncio.gather(*puts)].count(200) == 3
        # What was brought is what a look finds, so it counts on.
        for _ in range(3):
            server.service.quotas._looks._good_until_s = 0.0
            status, answer = await ask("a", "/v1/schedules/more", schedule, "PUT")
            assert status == 507
            assert answer["detail"].startswith("quota stored_bytes of token a: got 11")
            assert (await ask("a", "/v1/topics/a.t/messages", {"body": "x" * 30_000}))[0] == 507
        large = {
            "topic": "a.t",
            "body": "x",
            "every": "1h",
            "headers": {str(n): "x" * 1000 for n in range(16)},
        }
        assert (await ask("a", "/v1/schedules/more", large, "PUT"))[0] == 507
        found = (await ask("b", "/v1/schedules", method="GET"))[1]["schedules"]
        assert len(found) == 3


async def test_results_of_a_token_that_only_takes_have_the_quota(tmp_path):
    path = tmp_path / "tokens.toml"
    grants = {"a": 'take = ["a."]\nquota = {stored_bytes = 100000}', "b": 'put = [""]'}
    path.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{hash_of(name)}"\n{grant}\n'
            for name, grant in grants.items()
        )
    )
    path.chmod(0o600)
    async with calling(tokens=Tokens.load(path)) as caller:
        headers = {name: {"authorization": f"Bearer {name}"} for name in grants}
        url = caller.server.url

        async def ask(who, path, body):
            return await caller.session.post(url + path, headers=headers[who], json=body)

        await caller.server.queue.configure("a.t", remember_ms=3_600_000)
        await ask("b", "/v1/topics/a.t/messages", [{"body": "x", "id": str(n)} for n in range(9)])
        taken = await (await ask("a", "/v1/take", {"topics": "a.t", "limit": 9})).json()
        statuses = []
        for message in taken["messages"]:
            caller.server.service.quotas._looks._good_until_s = 0.0
            body = {"receipts": [message["receipt"]], "results": [{"json": "x" * 30_000}]}
            statuses.append((await ask("a", "/v1/ack", body)).status)
    assert statuses == [200] * 3 + [507] * 6


async def test_a_run_of_a_schedule_counts_headers_key_and_id(tmp_path):
    async with tenants(tmp_path, "stored_bytes = 100000") as (ask, server):
        headers = {str(n): "x" * 1000 for n in range(12)}
        await server.queue.schedules.put(
            "n", "a.t", "x", every="1h", headers=headers, key="k" * 200
        )
        status, answer = 200, {}
        # Two runs within a millisecond are one message.
        while status == 200:
            status, answer = await ask("a", "/v1/schedules/n/run")
        assert (status, answer["detail"][:18]) == (507, "quota stored_bytes")
        stored = await server.queue.store.stored_bytes()
        assert 80_000 < stored["a.t"] <= 100_000


async def test_a_schedule_that_is_replaced_counts_by_what_it_grows(tmp_path):
    async with tenants(tmp_path, "stored_bytes = 100000") as (ask, server):
        schedule = {"topic": "a.t", "body": "x" * 45_000, "every": "1h"}
        where = "/v1/schedules/n"
        assert (await ask("a", where, schedule, "PUT"))[0] == 200
        for at in range(9):
            assert (await ask("a", where, {**schedule, "priority": at}, "PUT"))[0] == 200
            assert (await ask("a", where, {"body": f"{at:045000}"}, "PATCH"))[0] == 200
        large = {"body": "x" * 90_000}
        assert (await ask("a", where, {**schedule, **large}, "PUT"))[0] == 507
        assert (await ask("a", where, large, "PATCH"))[0] == 507
        assert (await ask("a", where, method="DELETE"))[0] == 200
        server.service.quotas._looks._good_until_s = 0.0
        assert (await ask("a", "/v1/topics/a.t/messages", large))[0] == 200


async def test_no_more_requests_a_second_than_the_quota(tmp_path):
    async with tenants(tmp_path, "requests_per_s = 5") as (ask, _server):
        many = [ask("a", "/v1/take", {"topics": "a.t"}) for _ in range(40)]
        answers = await asyncio.gather(*many)
        good = [status for status, _ in answers].count(200)
        assert 5 <= good < 40
        problem = next(answer for status, answer in answers if status == 429)
        assert problem["error"] == "ServerBusy"
        assert problem["detail"] == (
            "quota requests_per_s of token a: got more requests, expected at most 5"
        )
        # Those that lack a right count, too, and others may ask.
        async with asyncio.timeout(30):
            while (await ask("a", "/v1/take", {"topics": "b"}))[0] != 429:
                pass
        assert (await ask("b", "/v1/take", {"topics": "a.t"}))[0] == 200

        async def comes_back():
            return (await ask("a", "/v1/take", {"topics": "a.t"}))[0] == 200

        async with asyncio.timeout(30):
            while not await comes_back():
                await asyncio.sleep(0.05)


async def test_a_refusal_says_when_to_come_again(tmp_path):
    async with calling(tokens=tokens_in(tmp_path, "requests_per_s = 1")) as caller:
        while True:
            await caller.post("/v1/take", {"topics": "a.t"}, authorization="Bearer a")
            if caller.status == 429:
                break
        assert caller.headers["retry-after"] == "1"


@pytest.mark.parametrize("path", ["/v1/push", "/v1/watch"])
async def test_no_more_streams_than_the_quota(tmp_path, path):
    async with calling(tokens=tokens_in(tmp_path, "streams = 2")) as caller:
        head = {"authorization": "Bearer a"}
        ask = {"topics": "a.t"} if path == "/v1/push" else {"overview": {}}
        url = caller.server.url + path
        async with contextlib.AsyncExitStack() as stack:
            # All at once, so that each of them is let in before the first one counts.
            opening = [caller.session.post(url, json=ask, headers=head) for _ in range(6)]
            answers = await asyncio.gather(*map(stack.enter_async_context, opening))
            account = caller.server.service.quotas._accounts["a"]
            await until_async(lambda: account.streams == 2)
            good = [answer for answer in answers if answer.status == 200]
            first = [await asyncio.wait_for(answer.content.read(5), 30) for answer in good]
            assert first.count(b"event") == 2
            await caller.post(path, ask, authorization="Bearer a")
            assert caller.status == 429
            assert account.streams == 2
        await until_async(lambda: account.streams == 0)


async def test_a_repeat_of_what_was_done_needs_no_room(tmp_path):
    store = EmbeddedStore(tmp_path / "store")
    async with tenants(tmp_path, "pending = 2", store=store) as (ask, _server):
        number = "1a2b"
        where, body = "/v1/topics/a.t/messages", rows(2)
        first = await ask("a", where, body, **{"dwell-call": number})
        again = await ask("a", where, body, **{"dwell-call": f"{number};again"})
        assert first[0] == 200
        assert again == first
        # A repeat that has more than the request had brings what is more.
        longer = await ask("a", where, rows(9), **{"dwell-call": f"{number};again"})
        assert longer[0] == 507


async def test_no_tenant_pushes_out_what_another_has_done(tmp_path):
    limits = Limits(calls=64, call_block=16)
    store = EmbeddedStore(tmp_path / "store", limits=limits)
    async with tenants(tmp_path, "pending = 30", store=store) as (ask, server):
        other, more = "/v1/topics/b.t/messages", "/v1/topics/a.t/messages?on_conflict=replace"
        first = await ask("b", other, {"body": "pay"}, **{"dwell-call": "2f6b9c01d4e8a377"})
        for number in range(1, 100):
            same = [{"body": "x", "id": str(n)} for n in range(10)]
            status, _ = await ask("a", more, same, **{"dwell-call": f"{number:x}000000000000"})
            assert status == 200
        again = await ask("b", other, {"body": "pay"}, **{"dwell-call": "2f6b9c01d4e8a377;again"})
        assert again == first
        assert (await server.queue.stats()).topics["b.t"].ready == 1


async def test_no_tenant_is_told_what_another_has_done(tmp_path):
    store = EmbeddedStore(tmp_path / "store")
    async with tenants(tmp_path, "pending = 10", store=store) as (ask, server):
        await ask("a", "/v1/topics/a.t/messages", {"body": "x"}, **{"dwell-call": "1f"})
        await ask("b", "/v1/topics/b.t/messages", {"body": "x"}, **{"dwell-call": "1f;again"})
        assert (await server.queue.stats()).topics["b.t"].ready == 1


def test_jobs_of_beanstalk_have_the_quota_of_callers_without_a_token(tmp_path):
    rights = 'put = [""]\ntake = [""]\nadmin = [""]\nquota = {pending = 10, topics = 2}'
    tokens = tokens_in(tmp_path, "", rights)
    with BeanstalkServed(tokens=tokens) as served:
        lines = [Line(served.number) for _ in range(5)]
        for line in lines:
            line.send(b"put 0 0 9 1\r\nx\r\n" * 4)
        told = [line.read() for line in lines for _ in range(4)]
        # Of commands that came together all are refused, or none.
        while told[-1] != b"OUT_OF_MEMORY\r\n" or len(told) == 20:
            told.append(lines[0].ask(b"put 0 0 9 1\r\nx\r\n"))
        assert sum(word.startswith(b"INSERTED") for word in told) == 10
        assert served.call(served.queue.stats()).topics["default"].ready == 10
        assert served.service.in_flight.requests == 0
        # What makes no message is not refused, and makes room.
        line = lines[0]
        for _ in range(10):
            number, _ = line.reserve()
            assert line.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"
        until(lambda: line.ask(b"put 0 0 9 1\r\nx\r\n").startswith(b"INSERTED"))
        line.ask(b"use b\r\n")
        line.put()
        line.ask(b"use c\r\n")
        assert line.ask(b"put 0 0 9 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
        for one in lines:
            one.close()


def test_commands_of_beanstalk_are_counted(tmp_path):
    rights = 'put = [""]\ntake = [""]\nquota = {requests_per_s = 5}'
    tokens = tokens_in(tmp_path, "", rights)
    with BeanstalkServed(tokens=tokens) as served, Line(served.number) as line:
        line.send(b"list-tube-used\r\n" * 40)
        told = [line.read() for _ in range(40)]
        assert b"OUT_OF_MEMORY\r\n" in told
        assert 5 <= told.count(b"USING default\r\n") < 40


def test_a_store_that_does_not_count_bytes_refuses_the_quota(tmp_path):
    class Uncounted:
        counts_bytes = False

    class Queue:
        store = Uncounted()

    from dwell.server.quotas import Quotas

    tokens = tokens_in(tmp_path, "stored_bytes = 1")
    with pytest.raises(dwell.InvalidSettings, match="quota stored_bytes of token a"):
        Quotas(Queue(), tokens)


async def test_a_store_that_does_not_say_what_is_there_lets_in_what_has_room(tmp_path):
    async with tenants(tmp_path, "pending = 5") as (ask, server):
        where, store = "/v1/topics/a.t/messages", server.queue.store
        assert (await ask("a", where, rows(3)))[0] == 200
        stats = store.stats

        async def failing():
            raise dwell.StoreError("a shard is away")

        store.stats = failing
        for _ in range(3):
            server.service.quotas._looks._good_until_s = 0.0
            assert (await ask("a", where, rows(3)))[0] == 507
        assert (await ask("a", where, rows(2)))[0] == 200
        server.service.quotas._looks._good_until_s = 0.0
        assert (await ask("a", where, rows(1)))[0] == 507
        store.stats = stats
