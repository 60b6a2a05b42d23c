"""Rights that end while a request waits inside the server: it is refused, and shown nothing."""

import asyncio
import contextlib
import re

import pytest

from dwell.clock import RealClock
from dwell.server.http.api import ENDPOINTS
from dwell.server.http.scope import Scope
from dwell.server.tokens import Tokens, hash_of
from tests.http.test_http_api import calling
from tests.http.test_http_rights import BODIES, PARTS
from tests.waiting import until_async

_SECRET = "a secret body"
_RIGHTS = 'put = ["{0}"]\ntake = ["{0}"]\nread = ["{0}"]\nadmin = ["{0}"]\nmetrics = {1}\n'
_PUT = "/v1/topics/t.a/messages"


class Later(RealClock):
    """A clock that a test sets ahead."""

    ahead_ms = 0

    def now_ms(self):
        return super().now_ms() + self.ahead_ms


class Revoked:
    """A token that may do everything until a test takes that away."""

    def __init__(self, folder):
        self._path = folder / "tokens.toml"
        self._clock = Later()
        self._write(_RIGHTS.format("", "true"))
        self.tokens = Tokens(self._path, self._clock)
        #: Each way in which rights end, and the status of who has none.
        self.ways = {"removed": 401, "ended": 401, "narrowed": 403}

    def _write(self, rights, name="a"):
        entry = f'[[token]]\nname = "{name}"\nsha256 = "{hash_of(name)}"\nexpires = 2100-01-01\n'
        self._path.write_text(entry + rights)
        self._path.chmod(0o600)

    def revoke(self, way):
        if way == "ended":
            self._clock.ahead_ms = 100 * 366 * 24 * 3_600_000
        elif way == "removed":
            self._write(_RIGHTS.format("", "true"), "b")
        else:
            self._write(_RIGHTS.format("elsewhere.", "false"))
        self.tokens.reload()


@contextlib.asynccontextmanager
async def revoking(folder):
    """Give a server with a message in it, its token, and what asks it."""
    revoked = Revoked(folder)
    async with calling(tokens=revoked.tokens) as caller:
        await caller.server.queue.put("t.a", _SECRET, id="1")

        async def ask(method, path, body=None):
            given = {} if body is None else {"json": body}
            head = {"authorization": "Bearer a"}
            url = caller.server.url + path
            async with caller.session.request(method, url, headers=head, **given) as answer:
                return answer.status, await answer.text()

        yield revoked, caller.server, ask


def _request_of(endpoint):
    path = re.sub(r"{(\w+)(?::path)?}", lambda found: PARTS[found[1]], endpoint.path)
    body = BODIES.get(endpoint.name, {}) if endpoint.body is not None else None
    if endpoint.name in ("get", "named"):
        body = {"ids": ["1"]} if endpoint.name == "get" else {"numbers": [1]}
    return endpoint.method, path + ("?owner=x" if endpoint.name == "held" else ""), body


LONG = [e for e in ENDPOINTS if e.is_long and e.rights]


@pytest.mark.parametrize("way", ["removed", "ended", "narrowed"])
@pytest.mark.parametrize("endpoint", LONG, ids=lambda e: f"{e.method} {e.path}")
async def test_a_request_that_waited_for_its_look_is_refused(tmp_path, endpoint, way):
    async with revoking(tmp_path) as (revoked, server, ask):
        looks = server.service.share_of("a").looks
        # As it is, it is answered: what is refused below is refused for its rights.
        status, _ = await ask(*_request_of(endpoint))
        assert status == 200
        await server.queue.put("t.a", _SECRET, id="1")
        free = looks._value
        for _ in range(free):
            await looks.acquire()
        waiting = asyncio.ensure_future(ask(*_request_of(endpoint)))
        await until_async(lambda: looks._waiters)
        before = await server.queue.stats()
        revoked.revoke(way)
        for _ in range(free):
            looks.release()
        status, text = await waiting
        # A caller who has rights on other topics is shown these.
        is_own = way == "narrowed" and endpoint.scope is Scope.OWN
        assert status == (200 if is_own else revoked.ways[way])
        assert "t.a" not in text or not is_own
        assert _SECRET not in text
        assert (await server.queue.stats()).topics == before.topics


#: What waits for the room of its answer before it looks.
ROOM = {
    "list": ("GET", f"{_PUT}?state=ready", None),
    "find": ("POST", "/v1/topics/t.a/find", {}),
    "take-where": ("POST", "/v1/topics/t.a/take-where", {}),
    "get": ("POST", "/v1/topics/t.a/get", {"ids": ["1"]}),
    "get one": ("GET", f"{_PUT}/1", None),
    "peek": ("GET", "/v1/topics/t.a/peek", None),
    "sweep": ("POST", "/v1/sweep", {"topics": ["t.a"]}),
    "held": ("GET", "/v1/held?owner=x", None),
}


@pytest.mark.parametrize("way", ["removed", "ended", "narrowed"])
@pytest.mark.parametrize("name", ROOM)
async def test_a_request_that_waited_for_room_is_refused(tmp_path, name, way):
    async with revoking(tmp_path) as (revoked, server, ask):
        await server.queue.put_many("t.a", [_SECRET, "x" * 1000])
        answers = server.service.share_of("a").answers
        assert (await ask(*ROOM[name]))[0] == 200
        await until_async(lambda: not answers.size_bytes)
        await answers.enter(answers.most_bytes)
        waiting = asyncio.ensure_future(ask(*ROOM[name]))
        await until_async(lambda: answers._waiting)
        before = await server.queue.stats()
        revoked.revoke(way)
        answers.leave(answers.most_bytes)
        status, text = await waiting
        assert status == revoked.ways[way]
        assert _SECRET not in text
        assert (await server.queue.stats()).topics == before.topics
        await until_async(lambda: not answers.size_bytes)


@pytest.mark.parametrize("way", ["removed", "ended", "narrowed"])
async def test_what_was_taken_comes_back_when_its_answer_waited(tmp_path, way):
    async with revoking(tmp_path) as (revoked, server, ask):
        answers = server.service.share_of("a").answers
        await server.queue.put_many("t.a", [_SECRET * 10_000] * 50)
        await answers.enter(answers.most_bytes)
        asked = ask("POST", "/v1/take", {"topics": ["t.a"], "limit": 100})
        waiting = asyncio.ensure_future(asked)
        await until_async(lambda: answers._waiting)
        assert (await server.queue.stats()).topics["t.a"].leased > 0
        revoked.revoke(way)
        answers.leave(answers.most_bytes)
        status, text = await waiting
        assert status == revoked.ways[way]
        assert _SECRET not in text

        async def is_back():
            return (await server.queue.stats()).topics["t.a"].leased == 0

        async with asyncio.timeout(30):
            while not await is_back():
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["removed", "ended", "narrowed"])
@pytest.mark.parametrize("ask", [{"limit": 1000}, {"ids": ["1"]}], ids=["due", "by id"])
async def test_a_take_that_waited_for_other_takes_takes_nothing(tmp_path, ask, way):
    async with revoking(tmp_path) as (revoked, server, asking):
        takes = server.service.share_of("a").takes
        free = takes._value
        for _ in range(free):
            await takes.acquire()
        asked = asking("POST", "/v1/take", {"topics": ["t.a"], **ask})
        waiting = asyncio.ensure_future(asked)
        await until_async(lambda: takes._waiters)
        before = (await server.queue.stats()).totals
        revoked.revoke(way)
        for _ in range(free):
            takes.release()
        status, text = await waiting
        assert status == revoked.ways[way]
        assert _SECRET not in text
        assert (await server.queue.stats()).totals == before
