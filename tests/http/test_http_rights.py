"""Each endpoint refuses exactly whom its declaration says, which is what the docs show."""

import asyncio
import contextlib
import re

import pytest

from dwell.server.http.api import ENDPOINTS
from dwell.server.http.app import _DOCUMENTS
from dwell.server.http.console import CONSOLE
from dwell.server.http.scope import Scope
from dwell.server.tokens import ANY, Right, Tokens, hash_of
from dwell.store.memory import MemoryStore
from tests.http.grants import tokens_of
from tests.http.test_http_api import calling
from tests.waiting import until_async

#: A body with which each that reads its topics from there gets as far as to look at rights.
BODIES = {
    "take": {"topics": "t.a"},
    "push": {"topics": "t.a"},
    "sweep": {"topics": ["t.a"]},
    "put_schedule": {"topic": "t.a", "body": "x", "every": "1h"},
    "change_schedule": {"topic": "t.a"},
    "watch": {"overview": {}},
    "load": {"start_ms": 0, "span_ms": 1000, "count": 1},
}
#: The same, of a topic on which there is no right.
FOREIGN = {
    "take": {"topics": "x"},
    "push": {"topics": ["t.a", "x"]},
    "sweep": {"topics": ["t.a", "x"]},
}
PARTS = {"topic": "t.a", "id": "1", "name": "n", "poll": "p", "stream": "s", "file": ""}
#: Who is refused only by what the answer says: the protocol has a shape of its own.
SAID_INSIDE = {"command"}
DENIED = (401, 403)


@contextlib.asynccontextmanager
async def asking(folder, grants):
    """Give a function that asks an endpoint as somebody, and returns the status."""
    async with calling_as(folder, grants) as (ask, _):
        yield ask


@contextlib.asynccontextmanager
async def calling_as(folder, grants):
    """Give the same, and what it calls."""
    async with calling(tokens=tokens_of(folder, grants)) as caller:
        await caller.server.queue.schedules.put("n", "t.a", b"", every="1h")

        async def ask(who, endpoint, bodies=BODIES, **parts):
            named = {**PARTS, **parts}
            path = re.sub(r"{(\w+)(?::path)?}", lambda found: named[found[1]], endpoint.path)
            head = {"authorization": f"Bearer {who}"} if who else {}
            body = bodies.get(endpoint.name, {}) if endpoint.body is not None else None
            headers = {**head, "content-type": "application/json"} if body is not None else head
            url = caller.server.url + path
            async with caller.session.request(
                endpoint.method, url, json=body, headers=headers, allow_redirects=False
            ) as answer:
                return answer.status

        yield ask, caller


def grants_of(prefix):
    """Return a token of each single right, by the right's name."""
    some = {right: f'{right} = ["{prefix}"]' for right in ANY}
    return {**some, Right.METRICS: "metrics = true"}


def named(endpoints):
    return pytest.mark.parametrize("endpoint", endpoints, ids=lambda e: f"{e.method} {e.path}")


async def _refused(ask, endpoint, **how):
    return {right for right in Right if await ask(right, endpoint, **how) in DENIED}


@named(ENDPOINTS)
async def test_one_right_alone_opens_what_the_table_says(tmp_path, endpoint):
    async with asking(tmp_path, grants_of("")) as ask:
        # Where another right is needed, too, nobody has both, unless it is the same one.
        allowed = {*endpoint.rights} or {*Right}
        allowed &= {endpoint.also} if endpoint.also else allowed
        assert await _refused(ask, endpoint) == set(Right) - allowed
        assert (await ask(None, endpoint) == 401) == bool(endpoint.rights)


@named([e for e in ENDPOINTS if e.rights])
async def test_the_right_counts_on_the_topics_that_the_table_says(tmp_path, endpoint):
    rights = [right for right in endpoint.rights if right is not Right.METRICS]
    also = {Scope.SCHEDULES: ["dwell:schedules"]}.get(endpoint.scope, [])
    async with asking(tmp_path, grants_of("t.")) as ask:
        is_enough = endpoint.scope not in (Scope.ALL, Scope.SCHEDULES)
        for right in rights:
            assert (await ask(right, endpoint) not in DENIED) == is_enough, right
            if endpoint.scope is Scope.TOPIC:
                assert await ask(right, endpoint, topic="x") == 403
            if endpoint.name in FOREIGN:
                assert await ask(right, endpoint, bodies=FOREIGN) == 403
    for prefix in also:
        async with asking(tmp_path, grants_of(prefix)) as ask:
            for right in rights:
                assert (await ask(right, endpoint) in DENIED) == bool(endpoint.also)


@named([e for e in ENDPOINTS if e.also])
async def test_what_needs_two_rights_needs_both(tmp_path, endpoint):
    admin, other = 'admin = ["dwell:schedules"]', f'{endpoint.also} = ["t."]'
    grants = {"both": f"{admin}\n{other}", "admin": admin, "other": other}
    async with asking(tmp_path, grants) as ask:
        statuses = [await ask(name, endpoint) for name in grants]
        assert [status in DENIED for status in statuses] == [False, True, True]


_LIMITED = {
    "limited": 'put = ["t."]\nadmin = ["dwell:schedules"]',
    "owner": 'put = [""]\nadmin = [""]',
}
_CHANGE = next(e for e in ENDPOINTS if e.name == "change_schedule")


@pytest.mark.parametrize("look", range(3))
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("change", [{"body": "EVIL"}, {"body": "EVIL", "topic": "t.a"}])
async def test_a_change_needs_the_right_to_what_the_schedule_is_by_then(
    tmp_path, monkeypatch, look, is_there, change
):
    """Its owner moves the schedule to another topic after one of the looks of the change."""
    async with calling_as(tmp_path, _LIMITED) as (ask, caller):
        schedules, get, looks = caller.server.queue.schedules, MemoryStore.get, 0
        if not is_there:
            await schedules.remove("n")

        async def got(*given):
            nonlocal looks
            found = await get(*given)
            looks += 1
            if looks == look + 1:
                await schedules.put("n", "b.t", b"good", every="1h")
            return found

        monkeypatch.setattr(MemoryStore, "get", got)
        status = await ask("limited", _CHANGE, bodies={"change_schedule": change})
        monkeypatch.undo()
        assert status == 403 or not is_there
        # Where nothing was there at two looks, there was nothing to change.
        assert looks > look or (status, look, is_there) == (200, 2, False)
        if looks > look:
            found = (await schedules.get("n")).schedule
            assert (found.topic, found.body) == ("b.t", b"good")


async def test_a_change_needs_the_right_to_the_topic_before_and_after(tmp_path):
    async with calling_as(tmp_path, _LIMITED) as (ask, caller):

        def change(**words):
            return ask("limited", _CHANGE, bodies={"change_schedule": words})

        assert await change(topic="t.b") == 200
        assert await change(topic="b.t") == 403
        await caller.server.queue.schedules.change("n", topic="b.t")
        assert await change(topic="t.a") == 403
        assert await change(body="x") == 403


def test_the_scope_is_the_topic_where_the_path_has_one():
    for endpoint in ENDPOINTS:
        assert (endpoint.scope is Scope.TOPIC) == (
            "{topic}" in endpoint.path
        ) or not endpoint.rights
        assert (endpoint.scope is Scope.SCHEDULES) == ("/schedules" in endpoint.path)


def test_what_needs_no_right_is_known():
    free = {e.path for e in (*ENDPOINTS, *_DOCUMENTS, *CONSOLE) if not e.rights}
    console = {"/console", "/console/{file:path}"}
    assert free == {"/healthz", "/readyz", "/docs", "/openapi.json"} | console


#: What a token opens that only reads: it changes nothing, and hands over no receipt.
OPEN_TO_READ = {
    *(
        "peek",
        "get",
        "get_one",
        "result",
        "named",
        "get_schedule",
        "list_schedules",
        "list_messages",
        "find",
    ),
    *("sweep", "events", "rights", "overview", "load", "oldest", "holders", "health", "watch"),
    *(
        "history",
        "past_runs",
        "preview",
        "reasons",
        "topics",
        "stats",
        "sizes",
        "settings",
        "store",
    ),
}


def test_what_read_opens_is_known():
    assert {e.name for e in ENDPOINTS if Right.READ in e.rights} == OPEN_TO_READ
    assert {e.name for e in ENDPOINTS if Right.METRICS in e.rights} == {"metrics"}


COMMANDS = {"add": "put", "delete": "put", "pop": "take", "finish": "take"}


@pytest.mark.parametrize(("verb", "right"), COMMANDS.items())
async def test_each_command_needs_its_right(tmp_path, verb, right):
    grants = {**grants_of(""), "all": 'put = [""]\ntake = [""]'}
    path = tmp_path / "tokens.toml"
    entry = '[[token]]\nname = "{0}"\nsha256 = "{1}"\n{2}\n'
    path.write_text("".join(entry.format(n, hash_of(n), g) for n, g in grants.items()))
    path.chmod(0o600)
    async with calling(tokens=Tokens.load(path)) as caller:
        for who in Right:
            ask = {"command": verb, "topic": "t", "id": who.value, "body": "x"}
            await caller.server.queue.put("t", "x", id=who.value)
            if verb == "finish":
                await caller.post(
                    "/command", {"command": "pop", "topic": "t"}, authorization="Bearer all"
                )
            done = await caller.post("/command", ask, authorization=f"Bearer {who}")
            if who in (Right.PUT, Right.TAKE):
                assert done["success"] == (who == right), done
            else:
                assert caller.status == 403
            # What was popped or stayed goes, so that the next one begins as this one did.
            for message in await caller.server.queue.held("command"):
                await caller.server.queue.ack(message.receipt)
            await caller.server.queue.clear("t")


async def test_who_reads_sees_no_receipt(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[token]]\nname = "r"\nsha256 = "{hash_of("r")}"\nread = [""]\n')
    path.chmod(0o600)
    async with calling(tokens=Tokens.load(path)) as caller:
        queue = caller.server.queue
        await queue.put_many("t.a", ["x", "y"], ids=["1", "2"])
        receipt = (await queue.take("t.a", owner="worker"))[0].receipt
        for where, body in (
            ("/v1/topics/t.a/messages?state=leased", None),
            ("/v1/topics/t.a/find", {"state": "leased"}),
            ("/v1/topics/t.a/messages/1", None),
            ("/v1/topics/t.a/get", {"ids": ["1", "2"]}),
            ("/v1/topics/t.a/peek", None),
            ("/v1/sweep", {}),
            ("/v1/holders", None),
        ):
            for form in ("application/json", "application/msgpack"):
                head = {"authorization": "Bearer r", "accept": form}
                await caller.ask("POST" if body is not None else "GET", where, body, **head)
                assert caller.status == 200, where
                assert receipt.encode() not in caller.data
        assert (await queue.stats()).topics["t.a"].leased == 1


async def test_counts_are_those_of_what_one_may_see(tmp_path):
    path = tmp_path / "tokens.toml"
    entry = '[[token]]\nname = "{0}"\nsha256 = "{1}"\nread = ["{2}"]\n'
    grants = {"some": "t.", "all": ""}
    path.write_text("".join(entry.format(n, hash_of(n), p) for n, p in grants.items()))
    path.chmod(0o600)
    async with calling(tokens=Tokens.load(path)) as caller:
        for topic in ("t.a", "x"):
            await caller.server.queue.put(topic, "x")
        for where in ("/v1/stats", "/v1/topics"):
            found = await caller.get(where, authorization="Bearer some")
            assert list(found["topics"]) == ["t.a"]
            assert not found.get("totals")
            found = await caller.get(where, authorization="Bearer all")
            assert sorted(found["topics"]) == ["t.a", "x"]
        found = await caller.get("/v1/stats", authorization="Bearer all")
        assert found["totals"]["put"] == 2


# --- waits ------------------------------------------------------------------------------------


async def test_a_wait_is_known_to_its_token_only(tmp_path):
    path = tmp_path / "tokens.toml"
    entry = '[[token]]\nname = "{0}"\nsha256 = "{1}"\ntake = ["{0}."]\n'
    path.write_text("".join(entry.format(name, hash_of(name)) for name in "ab"))
    path.chmod(0o600)
    async with calling(tokens=Tokens.load(path)) as caller:

        def waiting(who):
            ask = {"topics": f"{who}.t", "wait": "1m", "poll": "one"}
            head = {"authorization": f"Bearer {who}"}
            url = caller.server.url + "/v1/take"
            return asyncio.ensure_future(caller.session.post(url, json=ask, headers=head))

        async def end(who):
            return (await caller.post("/v1/polls/one/end", {}, authorization=f"Bearer {who}"))[
                "ended"
            ]

        waits, there = caller.server.port.waits, {}
        for number, who in enumerate("ab", 1):
            there[who] = waiting(who)
            await until_async(lambda: len(waits) == number)  # noqa: B023
        # Both have the name, and each ends its own.
        assert await end("b")
        assert (await there["b"]).status == 200
        assert not await end("b")
        assert not there["a"].done()
        assert len(waits) == 1
        assert await end("a")
        assert (await there["a"]).status == 200
