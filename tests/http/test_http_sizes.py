"""How large an answer is: none holds much more than a put may bring, and each says how to go on."""

import json

import msgspec
import pytest

import dwell
from dwell.message import MAX_BATCH_BYTES
from dwell.wire.columns import BatchColumns, batch_of_columns
from tests.http.test_http_api import MSGPACK, NDJSON, calling

COLUMNS = "application/vnd.dwell.columns"
COUNT = 40
BODY = json.dumps({"text": "x" * ((1 << 20) - 100)})
IDS = [f"{n}" for n in range(COUNT)]
#: A take may go over it by a message.
MOST_BYTES = MAX_BATCH_BYTES + (1 << 20) + 64 * 1024


async def fill(caller):
    """Put more than two answers hold."""
    for at in range(0, COUNT, 10):
        ids = IDS[at : at + 10]
        words = {"ids": ids, "due": 1_000, "key": "k", "headers": {"h": "v"}}
        await caller.server.queue.put_many("t", [BODY] * len(ids), **words)


def told(caller, form):
    """Return the ids of an answer, its cursor, and where a get goes on."""
    assert caller.status == 200, caller.data
    assert len(caller.data) <= MOST_BYTES
    if form == COLUMNS:
        found = msgspec.msgpack.decode(caller.data, type=BatchColumns)
        cursor = found.cursor and str(found.cursor)
        return list(batch_of_columns(found).ids), cursor, found.next
    if form == NDJSON:
        rows = [json.loads(line) for line in caller.data.splitlines()]
        return [row["id"] for row in rows], caller.headers.get("dwell-cursor"), None
    found = msgspec.msgpack.decode(caller.data) if form == MSGPACK else json.loads(caller.data)
    ids = [row and row["id"] for row in found["messages"]]
    return ids, found.get("cursor"), found.get("next")


async def walk(ask, caller, form):
    """Return the ids of all pages that cursors lead to, and how many pages those were."""
    ids, pages, cursor = [], 0, None
    while cursor is not None or not pages:
        await ask(cursor)
        some, cursor, _ = told(caller, form)
        ids += some
        pages += 1
        assert pages <= COUNT
    return ids, pages


FORMS = ["application/json", MSGPACK, COLUMNS]
#: Rows take more memory than columns, so a page of them holds half as much.
PAGES = {"application/json": 6, MSGPACK: 6, NDJSON: 6, COLUMNS: 3}


async def test_a_find_is_answered_in_parts():
    async with calling() as caller:
        await fill(caller)
        for form, where in zip(FORMS, ["text", "text && `1`", "text"], strict=True):

            async def ask(cursor, form=form, where=where):
                body = {"where": where, "limit": 100, "cursor": cursor}
                await caller.post("/v1/topics/t/find", body, accept=form)

            assert await walk(ask, caller, form) == (IDS, PAGES[form])


@pytest.mark.parametrize("form", FORMS)
async def test_a_take_where_is_answered_in_parts(form):
    async with calling() as caller:
        await fill(caller)

        async def ask(cursor):
            body = {"where": "text", "limit": 100, "cursor": cursor}
            await caller.post("/v1/topics/t/take-where", body, accept=form)

        assert await walk(ask, caller, form) == (IDS, PAGES[form])
        assert (await caller.get("/v1/stats"))["topics"]["t"]["leased"] == COUNT


async def test_a_list_is_answered_in_parts():
    async with calling() as caller:
        await fill(caller)
        pairs = [(form, "") for form in (*FORMS, NDJSON)]
        for form, more in (*pairs, (COLUMNS, "&key=k"), (NDJSON, "&header=h:v")):

            async def ask(cursor, form=form, more=more):
                path = f"/v1/topics/t/messages?state=ready&limit=100{more}"
                await caller.get(path + (f"&cursor={cursor}" if cursor else ""), accept=form)

            assert await walk(ask, caller, form) == (IDS, PAGES[form])


@pytest.mark.parametrize("form", [*FORMS, NDJSON])
async def test_what_is_held_is_answered_in_parts(form):
    async with calling() as caller:
        await fill(caller)
        while await caller.take(owner="me"):
            pass

        async def ask(cursor):
            path = "/v1/held?owner=me" + (f"&cursor={cursor}" if cursor else "")
            await caller.get(path, accept=form)

        assert await walk(ask, caller, form) == (IDS, PAGES[form])
        # What is done with meanwhile moves nothing.
        await ask(None)
        first, cursor, _ = told(caller, form)
        async with dwell.open(caller.server.url) as queue:
            held = await queue.held("me")
            assert list(held.ids) == IDS
            await queue.ack(held[3 : len(first) + 1])
        await ask(cursor)
        assert told(caller, form)[0][0] == IDS[len(first) + 1]


@pytest.mark.parametrize("form", FORMS)
async def test_a_get_is_answered_in_parts(form):
    async with calling() as caller:
        await fill(caller)
        asked, found, pages = [*IDS[:20], "none", *IDS[20:], "nor this"], [], 0
        while asked:
            await caller.post("/v1/topics/t/get", {"ids": asked}, accept=form)
            some, _, following = told(caller, form)
            found += some
            asked, pages = asked[following:] if following else [], pages + 1
        assert [id_ for id_ in found if id_] == IDS
        assert pages == PAGES[form]
        if form != COLUMNS:
            assert (found[20], found[-1]) == (None, None)


async def test_the_client_goes_on_by_itself():
    async with calling() as caller:
        await fill(caller)
        async with dwell.open(caller.server.url) as queue:
            assert list((await queue.find("t", "text", limit=100)).ids) == IDS
            found = await queue.get("t", [*IDS, "none", *IDS[:1]])
            assert [message and message.id for message in found] == [*IDS, None, "0"]
            assert list((await queue.take_where("t", "text", 100, owner="me")).ids) == IDS
            assert list((await queue.held("me")).ids) == IDS
            assert len(await queue.held("nobody")) == 0


async def test_verbs_by_filter_see_all_messages():
    async with calling() as caller:
        await fill(caller)
        done = await caller.post("/v1/topics/t/cancel", {"filter": {}})
        assert done == {
            "matched": COUNT,
            "results": {"cancelled": COUNT},
            "is_complete": True,
            "cursor": None,
        }


async def test_a_take_and_a_peek_stop_where_a_batch_does():
    async with calling() as caller:
        await fill(caller)
        await caller.get("/v1/topics/t/peek?limit=100")
        peeked, *_ = told(caller, "application/json")
        await caller.post("/v1/take", {"topics": "t", "limit": 100})
        assert told(caller, "application/json")[0][: len(peeked)] == peeked
        assert peeked == IDS[: len(peeked)]


LONG = 10_001


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/topics/t/get", {"ids": ["a"] * LONG}, "ids"),
        ("/v1/topics/t/cancel", {"ids": ["a"] * LONG}, "ids"),
        ("/v1/topics/t/kick", {"ids": ["a"] * LONG}, "ids"),
        ("/v1/topics/t/reschedule", {"ids": ["a"], "due_ms": [1] * LONG}, "due_ms"),
        ("/v1/take", {"topics": ["t"] * LONG}, "topics"),
        ("/v1/take", {"topics": "t", "ids": ["a"] * LONG}, "ids"),
        ("/v1/sweep", {"topics": ["t"] * LONG}, "topics"),
        ("/v1/ack", {"receipts": ["0" * 32] * LONG}, "receipts"),
        ("/v1/taken", {"receipts": ["0" * 32] * LONG}, "receipts"),
        ("/v1/named", {"numbers": [1] * LONG}, "numbers"),
    ],
)
async def test_a_list_in_a_request_is_no_longer_than_a_put(path, body, field):
    async with calling() as caller:
        answer = await caller.post(path, body)
        assert caller.status == 400
        assert answer["error"] == "InvalidInput"
        assert "10000" in answer["detail"]
        assert field in answer["detail"]


@pytest.mark.parametrize("cursor", ["x", "1.99999999999999999999", "1.9999999999999999999", ""])
async def test_a_cursor_of_nobodys_is_refused(cursor):
    async with calling() as caller:
        answer = await caller.get(f"/v1/held?owner=me&cursor={cursor}")
        assert (caller.status, answer["error"]) == (400, "InvalidLimit")
