"""Rights that end while a request waits inside the server: it is refused, and shown nothing."""

import asyncio
import contextlib
import re

import aiohttp
import pytest

from dwell.clock import RealClock
from dwell.queue.schedules import changing
from dwell.server.http import putrows
from dwell.server.http.api import ENDPOINTS
from dwell.server.http.scope import Scope
from dwell.server.tokens import Tokens, hash_of
from dwell.store.embedded.store import EmbeddedStore
from dwell.store.memory import MemoryStore
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

    def __init__(self, folder, more=""):
        self._path = folder / "tokens.toml"
        self._clock = Later()
        self._write(_RIGHTS.format("", "true") + more)
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
async def revoking(folder, more="", **options):
    """Give a server with a message in it, its token, and what asks it; ``more`` is of the token."""
    revoked = Revoked(folder, more)
    async with calling(tokens=revoked.tokens, **options) as caller:
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


WAYS = pytest.mark.parametrize("way", ["removed", "ended", "narrowed"])


@WAYS
@pytest.mark.parametrize("endpoint", LONG, ids=lambda e: f"{e.method} {e.path}")
async def test_a_request_that_waited_for_its_look_is_refused(tmp_path, endpoint, way):
    async with revoking(tmp_path) as (revoked, server, ask):
        looks = server.service.share_of("a").looks
        await server.queue.schedules.put(PARTS["name"], "t.a", b"", every="1h")
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


#: Changes by filter wait for a look inside their handlers; without a filter they do not.
BULK = {
    "cancel": ("POST", "/v1/topics/t.a/cancel", {"filter": {}}),
    "move": ("POST", "/v1/topics/t.a/reschedule", {"filter": {}, "delay": "1h"}),
    "shift": ("POST", "/v1/topics/t.a/reschedule", {"filter": {}, "shift_ms": 1000}),
    "kick": ("POST", "/v1/topics/t.a/kick", {}),
    "dry run": ("POST", "/v1/topics/t.a/cancel", {"filter": {}, "dry_run": True}),
}


async def _all(queue):
    """Return all messages as they are."""
    states = ("ready", "delayed", "leased", "dead")
    return [
        one for state in states for one in (await queue.scan("t.a", state, limit=10_000)).messages
    ]


@WAYS
@pytest.mark.parametrize("name", BULK)
async def test_a_change_by_filter_that_waited_for_its_look_does_nothing(
    tmp_path, monkeypatch, name, way
):
    async with revoking(tmp_path) as (revoked, server, ask):
        if name == "kick":
            await server.queue.bury(await server.queue.take("t.a"))
        looks, before = server.service.share_of("a").looks, await _all(server.queue)
        free = looks._value
        for _ in range(free):
            await looks.acquire()
        waiting = asyncio.ensure_future(ask(*BULK[name]))
        await until_async(lambda: looks._waiters)
        revoked.revoke(way)
        scans = []
        monkeypatch.setattr(MemoryStore, "scan", lambda *given: scans.append(given))
        for _ in range(free):
            looks.release()
        assert (await waiting)[0] == revoked.ways[way]
        assert not scans
        monkeypatch.undo()
        assert await _all(server.queue) == before


#: What looks through much, and then changes it; or shows what it found.
SEARCHES = {
    **BULK,
    "clear": ("POST", "/v1/topics/t.a/clear", None),
    "delete": ("DELETE", "/v1/topics/t.a", None),
    "take-where": ("POST", "/v1/topics/t.a/take-where", {}),
    "find": ("POST", "/v1/topics/t.a/find", {}),
}


@WAYS
@pytest.mark.parametrize("name", SEARCHES)
async def test_a_right_that_ends_during_a_search_ends_what_follows(
    tmp_path, monkeypatch, name, way
):
    async with revoking(tmp_path) as (revoked, server, ask):
        queue = server.queue
        await queue.put_many("t.a", [_SECRET] * 2500)
        if name == "kick":
            await queue.bury(await queue.take("t.a", 10_000))
        before, done = await _all(queue), (await queue.stats()).totals
        step = "clear_part" if name in ("clear", "delete") else "scan"
        look = getattr(MemoryStore, step)

        async def looked(*given):
            monkeypatch.undo()
            found = await look(*given)
            revoked.revoke(way)
            return found

        monkeypatch.setattr(MemoryStore, step, looked)
        status, text = await ask(*SEARCHES[name])
        assert status == revoked.ways[way]
        assert _SECRET not in text
        after = await _all(queue)
        if name in ("clear", "delete"):
            # A part was cancelled before.
            assert 0 < len(after) < len(before)
        else:
            assert (after, (await queue.stats()).totals) == (before, done)


@WAYS
async def test_a_right_that_ends_during_a_change_ends_the_rest_of_it(tmp_path, monkeypatch, way):
    async with revoking(tmp_path) as (revoked, server, ask):
        await server.queue.put_many("t.a", ["x"] * 9000)
        cancel = MemoryStore.cancel

        async def cancelled(*given, **more):
            codes = await cancel(*given, **more)
            if len(codes):
                revoked.revoke(way)
            return codes

        monkeypatch.setattr(MemoryStore, "cancel", cancelled)
        assert (await ask(*BULK["cancel"]))[0] == revoked.ways[way]
        assert 0 < (await server.queue.stats()).topics["t.a"].ready < 9000


_QUOTA = "quota = {topics = 100, pending = 1000000, requests_per_s = 1000000}\n"
_CRON = {"topic": "t.a", "body": "new", "every": "1h"}
#: What waits for what the store holds, of a caller who has a quota.
COUNTED = {
    "put": ("POST", _PUT, {"body": "new"}),
    "put many": ("POST", _PUT, [{"body": "new"}] * 2),
    "command": ("POST", "/command", {"command": "add", "topic": "t.a", "id": "x", "body": "new"}),
    "configure": ("PATCH", "/v1/topics/t.a/settings", {"rate": 1}),
    "put schedule": ("PUT", "/v1/schedules/s", _CRON),
    "change schedule": ("PATCH", "/v1/schedules/old", {"body": "new"}),
    "run": ("POST", "/v1/schedules/old/run", {}),
}


async def _state(queue):
    found = {topic: await queue.settings(topic) for topic in ("t.a", "dwell:schedules")}
    schedules = [one async for one in queue.schedules.each()]
    return await queue.stats(), found, [one.schedule for one in schedules]


@WAYS
@pytest.mark.parametrize("name", COUNTED)
async def test_a_right_that_ends_while_the_quota_is_looked_up_ends_the_change(
    tmp_path, monkeypatch, name, way
):
    async with revoking(tmp_path, _QUOTA) as (revoked, server, ask):
        queue = server.queue
        await queue.schedules.put("old", "t.a", b"old", every="1h")
        before, stats = await _state(queue), queue.stats

        async def looked():
            found = await stats()
            revoked.revoke(way)
            return found

        monkeypatch.setattr(queue, "stats", looked)
        status, text = await ask(*COUNTED[name])
        monkeypatch.undo()
        # The job protocol says it in an answer of its own.
        assert status == (200 if name == "command" else revoked.ways[way])
        assert name != "command" or '"success":false' in text
        assert await _state(queue) == before


#: What waits for others that fire or change a schedule.
SCHEDULES = {
    "put": ("PUT", "/v1/schedules/old", _CRON),
    "change": ("PATCH", "/v1/schedules/old", {"body": "new"}),
    "remove": ("DELETE", "/v1/schedules/old", None),
    "pause": ("POST", "/v1/schedules/old/pause", None),
    "resume": ("POST", "/v1/schedules/old/resume", None),
}


@WAYS
@pytest.mark.parametrize("name", SCHEDULES)
async def test_a_change_of_a_schedule_that_waited_for_others_changes_nothing(
    tmp_path, monkeypatch, name, way
):
    async with revoking(tmp_path) as (revoked, server, ask):
        queue, looks = server.queue, []
        await queue.schedules.put("old", "t.a", b"old", every="1h")
        if name == "resume":
            await queue.schedules.pause("old")
        before = await _state(queue)
        await queue.reschedule("dwell:schedules", "old", delay=0)
        held = await queue.take("dwell:schedules")
        step = "cancel" if name == "remove" else "get"
        look = getattr(MemoryStore, step)

        async def looked(*given, **more):
            looks.append(given)
            return await look(*given, **more)

        monkeypatch.setattr(MemoryStore, step, looked)
        waiting = asyncio.ensure_future(ask(*SCHEDULES[name]))
        await until_async(lambda: len(looks) > 3)
        revoked.revoke(way)
        await queue.release(held, delay="1h", counted=False)
        assert (await waiting)[0] == revoked.ways[way]
        assert (await _state(queue))[1:] == before[1:]


@WAYS
@pytest.mark.parametrize("name", ["put schedule", "change schedule"])
async def test_a_right_that_ends_while_a_schedule_is_reckoned_ends_its_change(
    tmp_path, monkeypatch, name, way
):
    async with revoking(tmp_path) as (revoked, server, ask):
        await server.queue.schedules.put("old", "t.a", b"old", every="1h")
        before, first_after = await _state(server.queue), changing.first_after

        async def reckoned(*given):
            revoked.revoke(way)
            return await first_after(*given)

        # This is the last step before the schedule is stored.
        monkeypatch.setattr(changing, "first_after", reckoned)
        assert (await ask(*COUNTED[name]))[0] == revoked.ways[way]
        assert await _state(server.queue) == before


@WAYS
async def test_a_right_that_ends_while_many_messages_are_read_ends_their_put(
    tmp_path, monkeypatch, way
):
    async with revoking(tmp_path) as (revoked, server, ask):
        before, read = (await server.queue.stats()).topics, putrows.alone

        def reading(*given):
            revoked.revoke(way)
            return read(*given)

        # They have headers, so they are read one by one, in turns with other requests.
        monkeypatch.setattr(putrows, "alone", reading)
        status, _ = await ask("POST", _PUT, [{"body": "x", "headers": {"a": "b"}}] * 2)
        assert status == revoked.ways[way]
        assert (await server.queue.stats()).topics == before


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


@WAYS
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


@WAYS
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


@WAYS
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


@WAYS
async def test_a_backup_ends_with_the_rights_of_its_caller(tmp_path, way):
    store = EmbeddedStore(tmp_path / "store")
    async with revoking(tmp_path, store=store) as (revoked, server, _):
        # More than the buffers between the two hold.
        for _ in range(8):
            await server.queue.put_many("t.a", [bytes(1_000_000)] * 8)
        head = {"authorization": "Bearer a"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{server.url}/v1/backup", headers=head) as answer,
        ):
            assert await answer.content.readany()
            revoked.revoke(way)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
