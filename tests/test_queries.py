"""Queries by body, clear, sizes and find_stale, over every kind of store that a queue may have."""

import asyncio
import contextlib
import json
import re
import sys
import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell import Result, State
from dwell.clock import RealClock
from dwell.message import MAX_BATCH_MESSAGES, MAX_BODY_BYTES, MAX_QUERY_CHARS
from dwell.queue import Queue
from dwell.queue import query as query_module
from dwell.queue.query import _FEW_STEPS, Query
from dwell.queue.steps import Interpreter
from dwell.server.http import filters
from dwell.server.tokens import Tokens, hash_of
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from tests.http.noting import noted
from tests.http.served import served


@contextlib.asynccontextmanager
async def opened(kind, folder):
    """Open a queue of some kind; give also the store that keeps its messages."""
    if kind == "http":
        async with (
            served() as server,
            dwell.open(server.url) as queue,
        ):
            yield queue, server.queue.store
    else:
        store = MemoryStore(RealClock()) if kind == "memory" else EmbeddedStore(folder / "store")
        async with Queue(store) as queue:
            yield queue, store


@pytest.fixture(params=["memory", "embedded", "http"])
def opened_in(request, tmp_path):
    """Return what gives a queue of each kind, and its store."""

    @contextlib.asynccontextmanager
    async def open_in():
        async with opened(request.param, tmp_path) as both, asyncio.timeout(60):
            yield both

    return open_in


async def put_orders(queue, count=5, **options):
    """Put orders with an amount of 0, 10, 20 ..., later ones due earlier."""
    bodies = [{"n": n, "amount": 10 * n, "tags": ["even"] * (n % 2 == 0)} for n in range(count)]
    due = [1_000_000 - n for n in range(count)]
    return await queue.put_many("t", bodies, ids=[f"{n}" for n in range(count)], due=due, **options)


# --- find -------------------------------------------------------------------------------------


async def test_find_gives_what_matches_in_order_of_due(opened_in):
    async with opened_in() as (queue, _store):
        await put_orders(queue)
        found = await queue.find("t", "amount >= `20`")
        assert list(found.ids) == ["4", "3", "2"]
        assert found.receipts is None
        assert [message.json()["amount"] for message in found] == [40, 30, 20]
        assert list((await queue.find("t", "tags[0] == 'even' && n > `0`")).ids) == ["4", "2"]
        assert list((await queue.find("t", "amount >= `20`", limit=2)).ids) == ["4", "3"]
        assert len(await queue.find("t", "nothing")) == 0
        assert len(await queue.find("none", "n")) == 0
        assert (await queue.stats()).topics["t"].ready == 5


async def test_find_shows_whole_messages(opened_in):
    async with opened_in() as (queue, _store):
        await queue.put("t", {"a": 1}, id="x", key="k", headers={"h": "v"}, priority=7)
        await queue.release(await queue.take("t"), error="oops")
        assert list(await queue.find("t", "a")) == [await queue.get("t", "x")]


async def test_find_in_each_state(opened_in):
    async with opened_in() as (queue, _store):
        for state in ("delayed", "ready", "leased", "dead"):
            await queue.put("t", {"state": state}, id=state, delay="1h" * (state == "delayed") or 0)
            if state == "dead":
                await queue.bury(await queue.take_ids("t", state))
            if state == "leased":
                await queue.take_ids("t", state)
        for state in list(State)[1:]:
            word = state.name.lower()
            for said in (state, word):
                assert list((await queue.find("t", "state", state=said)).ids) == [word]


async def test_bodies_that_are_not_json_never_match(opened_in):
    async with opened_in() as (queue, _store):
        bodies = [b"", b"\xff\xfe", b"{", "text", b'"text"', b"{} {}", b"[" * 100_000, b'{"a": 1}']
        await queue.put_many("t", bodies, ids=list("abcdefgh"))
        assert list((await queue.find("t", "@")).ids) == ["e", "h"]
        assert list((await queue.find("t", "!@ || @")).ids) == ["e", "h"]
        assert list((await queue.take_where("t", "@", 10)).ids) == ["e", "h"]


async def test_find_over_many_pages(opened_in):
    async with opened_in() as (queue, _store):
        await put_orders(queue, 4_500)
        found = await queue.find("t", "n >= `10` && tags", limit=10_000)
        assert list(found.ids) == [f"{n}" for n in range(4_498, 9, -2)]
        assert list((await queue.find("t", "n < `3`")).ids) == ["2", "1", "0"]
        assert list((await queue.find("t", "n < `3000`", limit=1)).ids) == ["2999"]
        assert len(await queue.find("t", "n", limit=1_234)) == 1_234


# --- take_where -------------------------------------------------------------------------------


async def test_take_where_takes_only_what_matches(opened_in):
    async with opened_in() as (queue, _store):
        await put_orders(queue)
        await queue.put("t", {"amount": 99}, delay="1h")
        batch = await queue.take_where("t", "amount >= `20`", 2, lease="5m", owner="me")
        assert list(batch.ids) == ["4", "3"]
        assert [message.attempt for message in batch] == [1, 1]
        assert list((await queue.held("me")).ids) == ["3", "4"][::-1]
        assert await queue.ack(batch) == [Result.ACKED] * 2
        assert list((await queue.take_where("t", "amount >= `20`", 10)).ids) == ["2"]
        assert len(await queue.take_where("t", "amount >= `20`", 10)) == 0
        assert len(await queue.take_where("none", "@")) == 0
        assert sorted((await queue.take("t", 10)).ids) == ["0", "1"]


@pytest.mark.parametrize("limit", [25, 40, 60, 100])
async def test_what_one_call_of_a_store_leaves_out_is_taken_by_the_next(limit):
    """A store may give fewer than are ready, as its answers are bounded by bytes."""

    class Small(MemoryStore):
        async def take_ids(self, topic, ids, lease_ms, owner, versions, **more):
            return await super().take_ids(topic, ids[:7], lease_ms, owner, versions[:7], **more)

    async with Queue(Small(RealClock())) as queue:
        await put_orders(queue, 60)
        first = [f"{n}" for n in range(59, -1, -1)]
        assert list((await queue.take_where("t", "@", limit)).ids) == first[:limit]


async def test_one_is_taken_when_no_limit_is_given(opened_in):
    async with opened_in() as (queue, _store):
        await put_orders(queue)
        (message,) = await queue.take_where("t", "n < `3`")
        assert message.id == "2"


async def test_a_paused_topic_gives_none(opened_in):
    async with opened_in() as (queue, _store):
        await put_orders(queue)
        await queue.configure("t", paused=True)
        assert len(await queue.take_where("t", "@", 10)) == 0
        assert len(await queue.find("t", "@")) == 5
        await queue.configure("t", paused=False)
        assert len(await queue.take_where("t", "@", 10)) == 5


async def test_takers_side_by_side_share_what_there_is(opened_in):
    async with opened_in() as (queue, _store):
        await put_orders(queue, 3_000)
        takes = [queue.take_where("t", "tags", 300, owner=f"{n}") for n in range(4)]
        *batches, plain = await asyncio.gather(*takes, queue.take("t", 300))
        ids = [id_ for batch in (*batches, plain) for id_ in batch.ids]
        assert len(ids) == len(set(ids)) == 1_500
        assert [len(batch) for batch in batches] == [300] * 4
        assert all(int(id_) % 2 == 0 for batch in batches for id_ in batch.ids)


async def test_what_a_cancelled_call_took_is_given_back(opened_in):
    async with opened_in() as (queue, store):
        await put_orders(queue, 9_000)
        call = asyncio.create_task(queue.take_where("t", "tags", 4_500))
        while (await store.stats()).topics["t"].leased == 0:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # A server answers a call that was cancelled, and its client then gives it all back.
        while (await store.stats()).topics["t"].ready < 9_000:
            await asyncio.sleep(0.01)
        assert {message.attempt for message in await queue.peek("t", 9_000)} == {0}


# --- clear ------------------------------------------------------------------------------------


async def test_clear_leaves_only_what_is_leased(opened_in):
    async with opened_in() as (queue, _store):
        await queue.put_many("t", [b"x"] * 2_500, delay="1h")
        await queue.put_many("t", [b"x"] * 5)
        await queue.bury(await queue.take("t", 2))
        taken = await queue.take("t", 1)
        await queue.put("u", b"other")
        await queue.configure("t", max_attempts=3)
        assert await queue.clear("t") == 2_504
        topics = (await queue.stats()).topics
        assert topics["t"] == dwell.TopicStats(leased=1)
        assert topics["u"] == dwell.TopicStats(ready=1)
        assert await queue.ack(taken) == [Result.ACKED]
        assert (await queue.settings("t")).max_attempts == 3
        assert [await queue.clear(topic) for topic in ("t", "none", "u")] == [0, 0, 1]


async def test_clear_beside_a_taker_counts_only_its_own(opened_in):
    async with opened_in() as (queue, _store):
        await queue.put_many("t", [b"x"] * 3_000)
        clearing = asyncio.create_task(queue.clear("t"))
        taken = 0
        while not clearing.done():
            taken += len(await queue.take("t", 10))
        assert await clearing + taken == 3_000
        assert (await queue.stats()).topics["t"] == dwell.TopicStats(leased=taken)


# --- sizes and find_stale ---------------------------------------------------------------------


async def test_sizes(opened_in):
    async with opened_in() as (queue, _store):
        await queue.put_many("t", [b"x"] * 3, delay="1h")
        await queue.put("t", b"x")
        assert await queue.sizes("t") == [dwell.TopicStats(delayed=3, ready=1)]
        assert await queue.sizes("none") == [dwell.TopicStats()]


def _damage_bodies(folder):
    """Overwrite each body in the journal, under the store that has it open."""
    (path,) = folder.rglob("journal-*.dwl")
    data = path.read_bytes()
    with path.open("r+b") as file:
        for found in re.finditer(b'"amount"', data):
            file.seek(found.start())
            file.write(b'"amoun!"')


async def test_stale_messages_are_found_and_repaired(tmp_path):
    store = EmbeddedStore(tmp_path / "store")
    async with served(store) as server, dwell.open(server.url) as queue, asyncio.timeout(60):
        answer = await put_orders(queue, 3)
        assert await queue.find_stale() == []
        _damage_bodies(tmp_path)
        expected = [dwell.Stale("t", "", put.number, "no body") for put in answer]
        assert await queue.find_stale() == expected
        assert await queue.find_stale(limit=2) == expected[:2]
        done = [msgspec.structs.replace(one, repaired=True) for one in expected]
        assert await queue.find_stale(repair=True) == done
        assert await queue.find_stale() == []
        assert await queue.cancel("t", ["0", "1", "2"]) == [Result.UNKNOWN] * 3


# --- bad input --------------------------------------------------------------------------------

BOMB = "|".join(["[@, @][]"] * 40)

BAD = [
    (lambda queue: queue.find("a b", "@"), dwell.InvalidTopic, "topic: got str 'a b'"),
    (lambda queue: queue.find("t", "@", state="gone"), dwell.InvalidInput, "state: got str 'gone'"),
    (lambda queue: queue.find("t", "@", state="x"), dwell.InvalidInput, "expected delayed, ready"),
    (lambda queue: queue.find("t", "@", limit=0), dwell.InvalidLimit, "limit: got int 0"),
    (
        lambda queue: queue.find("t", "@", limit=MAX_BATCH_MESSAGES + 1),
        dwell.InvalidLimit,
        "from 1 to 10000",
    ),
    (lambda queue: queue.find("t", "a["), dwell.InvalidQuery, "where: got str 'a['"),
    (lambda queue: queue.find("t", ""), dwell.InvalidQuery, "of 1-1000 characters"),
    (lambda queue: queue.find("t", 5), dwell.InvalidQuery, "where: got int 5"),
    (lambda queue: queue.find("t", "a" * 1001), dwell.InvalidQuery, "of 1-1000 characters"),
    (lambda queue: queue.find("t", "nope(@)"), dwell.InvalidQuery, "there is no function nope"),
    (lambda queue: queue.find("t", "length()"), dwell.InvalidQuery, "length takes 1 arguments"),
    (lambda queue: queue.find("t", "(" * 900), dwell.InvalidQuery, "where: got str"),
    (lambda queue: queue.find("t", BOMB), dwell.InvalidQuery, "at most 250 times as much"),
    (lambda queue: queue.take_where("a b", "@"), dwell.InvalidTopic, "topic"),
    (lambda queue: queue.take_where("t", "a["), dwell.InvalidQuery, "where"),
    (lambda queue: queue.take_where("t", "@", 10_001), dwell.InvalidLimit, "limit"),
    (lambda queue: queue.take_where("t", "@", lease=0), dwell.InvalidTime, "lease"),
    (lambda queue: queue.take_where("t", "@", owner="x" * 257), dwell.InvalidId, "owner"),
    (lambda queue: queue.clear(""), dwell.InvalidTopic, "topic"),
    (lambda queue: queue.sizes("a/b"), dwell.InvalidTopic, "topic"),
    (lambda queue: queue.find_stale(limit=0), dwell.InvalidLimit, "limit"),
    (lambda queue: queue.find_stale(limit=10_001), dwell.InvalidLimit, "limit"),
]


async def test_bad_input_is_refused(opened_in):
    async with opened_in() as (queue, _store):
        await put_orders(queue)
        for call, error, words in BAD:
            with pytest.raises(error) as caught:
                await call(queue)
            assert type(caught.value) is error
            assert words in str(caught.value)
        assert (await queue.stats()).topics["t"] == dwell.TopicStats(ready=5)


async def test_a_closed_queue_says_so(opened_in):
    async with opened_in() as (queue, _store):
        await queue.close()
        for call in (
            lambda: queue.find("t", "@"),
            lambda: queue.take_where("t", "@"),
            lambda: queue.clear("t"),
            lambda: queue.sizes("t"),
            lambda: queue.find_stale(),
        ):
            with pytest.raises(dwell.StoreClosed):
                await call()


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "dwell.queue.query")
    monkeypatch.setitem(sys.modules, "jmespath", None)
    with (
        dwell.open("memory:") as queue,
        pytest.raises(dwell.InvalidQuery, match=r"needs pip install .dwell\[query\].: .*jmespath"),
    ):
        queue.find("t", "@")


async def test_others_have_their_turn_while_large_bodies_are_looked_at():
    async with Queue(MemoryStore(RealClock())) as queue:
        body = json.dumps({"a": "x" * 200_000})
        await queue.put_many("t", [body] * 80)
        finding = asyncio.create_task(queue.find("t", "b"))
        turns = 0
        while not finding.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 30


async def test_a_turn_has_few_steps_of_an_expression(monkeypatch):
    wheres = ("[?length([@, @]) > `9`]", "sort_by(@, &@)[0] || `true`", "map(&[@, @], @)")
    bodies = [json.dumps(list(range(count))) for count in (3_000, 20_000, 1)]
    expected = {
        where: [body for body in bodies if Query(where).matches(body.encode())] for where in wheres
    }
    threads, search = set(), Interpreter.search

    def looked(self, value):
        try:
            return search(self, value)
        finally:
            if self.steps > 2 * _FEW_STEPS:
                threads.add(threading.current_thread())

    monkeypatch.setattr(Interpreter, "search", looked)
    async with Queue(MemoryStore(RealClock())) as queue:
        await queue.put_many("t", bodies)
        for where in wheres:
            found = await queue.find("t", where)
            assert [one.body.decode() for one in found] == expected[where]
    assert threads
    assert threading.main_thread() not in threads


# --- the predicate ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "body", "matches"),
    [
        ("a", {"a": 0}, True),
        ("a", {"a": False}, False),
        ("a", {"a": None}, False),
        ("a", {}, False),
        ("a", {"a": ""}, False),
        ("a", {"a": []}, False),
        ("a", {"a": {}}, False),
        ("a", {"a": [0]}, True),
        ("a", [1], False),
        ("length(a) > `2`", {"a": "abc"}, True),
        ("length(a) > `2`", {"a": 5}, False),
        ("a > `1`", {"a": "x"}, False),
        ("a > 'a'", {"a": "x"}, True),
        ("a < `1`", {"a": 1e308}, False),
        ("abs(a) == `3`", {"a": -3}, True),
        ("ceil(a)", {"a": 1.5}, True),
        ("a[::0]", {"a": [1]}, False),
        ("contains(a, 'x') || b", {"a": 5, "b": 1}, False),
        ("`foo` == a", {"a": "foo"}, True),
        ("join(', ', a) == 'x, y'", {"a": ["x", "y"]}, True),
        ("join(@[0], @[1])", ["x" * MAX_BODY_BYTES, ["a", "b"]], False),
        ("items[?price > `5`].name | [0]", {"items": [{"price": 6, "name": "pen"}]}, True),
        ("items[?price > `5`].name | [0]", {"items": [{"price": 4, "name": "pen"}]}, False),
    ],
)
def test_what_matches(where, body, matches):
    assert Query(where).matches(json.dumps(body).encode()) is matches


@pytest.mark.parametrize(
    "where",
    [
        BOMB,
        "|".join(["to_string([@])"] * 20),
        "|".join(["to_string(to_array(@))"] * 10),
        "|".join(["{a: @, b: @}"] * 10),
        "@[*]" + ".`[1, 2, 3, 4, 5, 6, 7, 8, 9]`[]" * 5,
        "|".join(["merge({a: @}, {b: @})"] * 10),
    ],
)
def test_an_expression_that_multiplies_a_body_is_refused(where):
    with pytest.raises(dwell.InvalidQuery):
        Query(where)


def test_an_expression_may_be_as_long_as_it_may():
    where = "a == 'x'" + " || a == 'y'" * 82
    assert MAX_QUERY_CHARS - 12 < len(where) <= MAX_QUERY_CHARS
    assert Query(where).matches(b'{"a": "y"}')


NUMBERS = json.dumps([7] * 500_000, separators=(",", ":")).encode()
OBJECTS = json.dumps([{"a": 7}] * 110_000, separators=(",", ":")).encode()
LONG = json.dumps("a" * 1_000_000).encode()
#: Of a length that no expression below makes too much of.
LIST = [7] * 1_000
TEXTS = ["ab"] * 1_000
LISTS = [[[1]], [2]] * 500
MAPS = [{"a": 7}] * 1_000


@pytest.mark.parametrize(
    ("once", "value"),
    [
        ("!sort(@)", LIST),
        ("!sort_by(@, &a)", MAPS),
        ("!max_by(@, &a)", MAPS),
        ("!min_by(@, &a)", MAPS),
        ("!map(&a, @)", MAPS),
        ("!max(@)", LIST),
        ("!avg(@)", LIST),
        ("!sum(@)", LIST),
        ("!reverse(@)", LIST),
        ("!join('', @)", TEXTS),
        ("!to_string(@)", LISTS),
        ("!keys(@)", dict.fromkeys(map(str, range(1_000)), 1)),
        ("!values(@)", dict.fromkeys(map(str, range(1_000)), 1)),
        ("!merge(@, @)", dict.fromkeys(map(str, range(1_000)), 1)),
        ("contains(@, 'x')", TEXTS),
        ("contains(@, `[[3]]`)", LISTS),
        (f"contains(@, '{'a' * 60}b')", "a" * 60_000),
        ("@ != @", LISTS),
        ("@ != @", {"a": LISTS}),
        ("@ != @", "a" * 60_000),
        ("[?@ > `9`]", LIST),
        ("[?a == `8` || a == `9`].a", MAPS),
        ("([*].b | [0])", MAPS),
        ("!([*][*])", LISTS[:500]),
        ("([].b | [0])", MAPS),
        ("!([] | [0])", LISTS),
        ("!*", dict.fromkeys(map(str, range(1_000)), 1)),
        ("[1:0]", LIST * 5),
    ],
)
def test_an_expression_that_does_too_much_with_a_body_is_refused(once, value, monkeypatch):
    # The more often it is done, the more steps it is: some times may be enough, others not.
    monkeypatch.setattr(query_module, "MOST_STEPS", 5_000)
    body = json.dumps(value).encode()
    times = MAX_QUERY_CHARS // (len(once) + 2)
    query = Query("||".join([once] * times))
    with pytest.raises(dwell.InvalidQuery, match="at most 5000 steps at a body"):
        query.matches(body)
    # The next body is counted from its own beginning.
    assert query.matches(b"[]") in (True, False)
    if once.startswith(("!", "contains")):
        assert Query(once).matches(body) is False


@pytest.mark.parametrize(
    ("where", "body"),
    [
        ("sort(@)[0]", NUMBERS),
        ("max_by(@, &a).a", OBJECTS),
        ("[*].a | [0]", OBJECTS),
        ("[?a].a | [0]", OBJECTS),
        ("length(@) && [0] && [-1]", NUMBERS),
        ("contains(@, `7`)", NUMBERS),
        ("contains(@, 'aaa') && starts_with(@, 'a') && ends_with(@, 'a') && length(@)", LONG),
    ],
)
def test_what_is_asked_of_the_largest_bodies_is_answered(where, body):
    assert Query(where).matches(body)


async def test_the_message_at_which_too_much_was_done_is_named(opened_in):
    async with opened_in() as (queue, _store):
        await queue.put_many("t", [b"[1]", NUMBERS], ids=["small", "large"])
        where = "||".join(["!sort(@)"] * 20)
        for call in (queue.find("t", where), queue.take_where("t", where)):
            with pytest.raises(dwell.InvalidQuery, match=r"^where: got str .* message 'large'"):
                await call
        assert (await queue.stats()).topics["t"] == dwell.TopicStats(ready=2)


_NAMES = st.sampled_from(["a", "b", "@", "*", "[]", "[0]", "[?a]", "[*]", "`1`", "'x'", "&a"])
_PARTS = st.sampled_from(
    [*"()[]{}|&!.,:`'\"\\-0 ", "||", "&&", "==", "<", "length(", "sort_by(", "map(", "[::", "`{"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
)


@settings(max_examples=1_000, deadline=None)
@given(
    st.lists(_NAMES | _PARTS, min_size=1, max_size=12).map("".join) | st.text(max_size=20), _JSON
)
def test_any_text_is_refused_or_can_be_asked(text, value):
    try:
        query = Query(text)
    except dwell.InvalidQuery:
        return
    assert query.matches(json.dumps(value).encode()) in (True, False)


# --- only over HTTP ---------------------------------------------------------------------------


async def test_a_server_does_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr(filters, "MOST_LOOKED_AT", 1_000)
    async with served() as server:
        asked = noted(monkeypatch)
        async with dwell.open(server.url) as queue:
            await put_orders(queue, 4_500)
            assert list((await queue.find("t", "n < `2`")).ids) == ["1", "0"]
            assert len(await queue.take_where("t", "n < `2000` && tags", 900)) == 900
            assert await queue.clear("t") == 3_600
        assert asked.count("find") == 5
        assert asked.count("take-where") == 5
        assert asked.count("clear") == 4


async def test_a_look_at_headers_is_work_and_the_client_goes_on(monkeypatch):
    monkeypatch.setattr(filters, "MOST_STEPS", 2_000)
    headers = {"h": "x" * 1_000}
    async with served() as server, dwell.open(server.url) as queue:
        asked = noted(monkeypatch)
        ids = [f"m{n:03}" for n in range(200)]
        await queue.put_many("t", ["x"] * 200, ids=ids, headers=[headers] * 200)
        await queue.put("t", "x", id="last", headers={**headers, "k": "1"})
        which = dwell.select(headers={"k": "1"})
        assert list((await queue.find("t", which)).ids) == ["last"]
        assert asked.count("find") > 3
        assert list((await queue.take_where("t", which, 5)).ids) == ["last"]
        assert asked.count("take-where") > 3


async def test_a_request_takes_so_many_steps_and_the_client_goes_on(monkeypatch):
    monkeypatch.setattr(filters, "MOST_STEPS", 2_000)
    async with served() as server:
        asked = noted(monkeypatch)
        async with dwell.open(server.url) as queue:
            await put_orders(queue, 1_500)
            assert list((await queue.find("t", "n == `2` || n == `1400`")).ids) == ["1400", "2"]
            assert len(await queue.take_where("t", "nothing")) == 0
            batch = await queue.take_where("t", "n == `2` || n == `1400`", 5)
            assert list(batch.ids) == ["1400", "2"]
            assert (
                list((await queue.take_where("t", "n", 1_400)).ids)
                == [f"{n}" for n in range(1_499, -1, -1) if n not in (2, 1_400)][:1_400]
            )
        assert asked.count("find") > 3
        assert asked.count("take-where") > 8


RIGHTS = {"taker": 'take = ["t"]', "putter": 'put = ["t"]', "boss": 'admin = [""]'}


async def test_each_verb_needs_its_right(tmp_path):
    path = tmp_path / "tokens.toml"
    entries = (
        f'[[token]]\nname = "{name}"\nsha256 = "{hash_of(name)}"\n{grant}\n'
        for name, grant in RIGHTS.items()
    )
    path.write_text("\n".join(entries))
    path.chmod(0o600)
    async with served(tokens=Tokens.load(path)) as server:
        async with dwell.open(server.url, token="taker") as queue:
            await _refused(queue.find("t", "@"), queue.clear("t"), queue.sizes("t"))
            await _refused(queue.find_stale(), queue.take_where("u", "@"))
            assert len(await queue.take_where("t", "@")) == 0
        async with dwell.open(server.url, token="putter") as queue:
            await _refused(queue.take_where("t", "@"), queue.clear("u"))
            assert await queue.clear("t") == 0
        async with dwell.open(server.url, token="boss") as queue:
            assert len(await queue.find("t", "@")) == 0
            assert await queue.sizes("t") == [dwell.TopicStats()]
            assert await queue.find_stale() == []


async def _refused(*calls):
    for call in calls:
        with pytest.raises(dwell.Forbidden):
            await call


def test_a_body_of_which_too_much_would_be_made_does_not_match():
    query = Query("[*].[" + ",".join("@" * 200) + "] | [0]")
    assert query.matches(b"[1]")
    assert not query.matches(b"[" + b"1," * 100_000 + b"1]")
    assert Query("[0] == `1`").matches(b"[" + b"1," * 100_000 + b"1]")
