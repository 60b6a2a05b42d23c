"""The logs of requests and changes: a line each, which says who it was."""

import asyncio
import contextlib
import json
import re

import pytest

from dwell.server.http.api import ENDPOINTS
from dwell.server.linelog import LineLog
from dwell.server.tokens import Tokens, hash_of
from tests.beanstalk.served import Line
from tests.beanstalk.served import Served as BeanstalkServed
from tests.http.test_http_api import calling
from tests.http.wire import Wire, request
from tests.waiting import until, until_async

RIGHTS = 'put = [""]\ntake = [""]\nadmin = [""]\n'


def tokens_in(folder):
    path = folder / "tokens.toml"
    path.write_text(
        f'[[token]]\nname = "root"\nsha256 = "{hash_of("root")}"\n{RIGHTS}'
        f'[[token]]\nname = "reads"\nsha256 = "{hash_of("reads")}"\nread = [""]\n'
    )
    path.chmod(0o600)
    return Tokens.load(path)


class Logs:
    """The logs of a service, and what they hold."""

    def __init__(self, service, folder):
        self.folder = folder
        for name in ("access", "audit"):
            setattr(service, name, LineLog(name, str(folder / name), 1 << 20))
            getattr(service, name).start()
        self._service = service

    def of(self, name):
        text = (self.folder / name).read_text()
        return [json.loads(line) for line in text.splitlines()]

    def stop(self):
        for name in ("access", "audit"):
            getattr(self._service, name).stop()
            setattr(self._service, name, None)


@contextlib.asynccontextmanager
async def logging(folder):
    async with calling(tokens=tokens_in(folder)) as caller:
        logs = Logs(caller.server.service, folder)

        async def ask(who, method, path, body=None, **headers):
            head = {"authorization": f"Bearer {who}"} if who else {}
            return await caller.ask(method, path, body, **head, **headers)

        try:
            yield ask, caller, logs
        finally:
            logs.stop()


async def test_each_request_is_a_line(tmp_path):
    async with logging(tmp_path) as (ask, _caller, logs):
        await ask("root", "POST", "/v1/topics/secret-name/messages", {"body": "x" * 1000})
        await ask("reads", "POST", "/v1/take", {"topics": "t"})
        await ask("nobody", "GET", "/v1/stats")
        await ask(None, "GET", "/healthz")
        await ask("root", "GET", "/v1/topics/t/messages/an-id?x=1")
        await ask("root", "GET", "/no/such/place")
        await until_async(lambda: len(logs.of("access")) == 6)
        found = logs.of("access")
        shown = [(line["token"], line["method"], line["path"], line["status"]) for line in found]
        assert shown == [
            ("root", "POST", "/v1/topics/{topic}/messages", 200),
            ("reads", "POST", "/v1/take", 403),
            ("", "GET", "/v1/stats", 401),
            ("", "GET", "/healthz", 200),
            ("root", "GET", "/v1/topics/{topic}/messages/{id}", 404),
            ("", "GET", "", 404),
        ]
        assert {line["port"] for line in found} == {"http"}
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+", line["peer"]) for line in found)
        assert found[0]["in_bytes"] == len(json.dumps({"body": "x" * 1000}))
        assert all(line["out_bytes"] > 50 and line["ms"] >= 0 for line in found)
        # What callers name is in no line.
        text = (tmp_path / "access").read_text()
        assert "secret-name" not in text
        assert "an-id" not in text
        assert logs.of("audit") == []


async def test_what_is_no_request_is_a_line_too(tmp_path):
    async with logging(tmp_path) as (_ask, caller, logs):
        wire = Wire(*await asyncio.open_connection(*caller.server.port.address))
        assert (await wire.ask(b"GET / HTTP/1.1\r\nbad header\r\n\r\n")).status == 400
        large = request("POST", "/v1/take", b"x", authorization="Bearer root")
        large = large.replace(b"content-length: 1", b"content-length: 99999999")
        wire = Wire(*await asyncio.open_connection(*caller.server.port.address))
        assert (await wire.ask(large)).status == 413
        await until_async(lambda: len(logs.of("access")) == 2)
        assert [line["status"] for line in logs.of("access")] == [400, 413]
        assert [line["token"] for line in logs.of("access")] == ["", "root"]


async def test_a_stream_is_a_line_when_it_ends(tmp_path):
    async with logging(tmp_path) as (_ask, caller, logs):
        head = {"authorization": "Bearer root"}
        url = caller.server.url + "/v1/push"
        async with caller.session.post(url, json={"topics": "t"}, headers=head) as answer:
            await answer.content.readany()
            assert logs.of("access") == []
        await until_async(lambda: len(logs.of("access")) == 1)
        (line,) = logs.of("access")
        assert (line["path"], line["status"], line["token"]) == ("/v1/push", 200, "root")
        assert line["out_bytes"] > 20


#: What changes something, how, and what a line says of it beside who and where.
CHANGES = {
    ("PATCH", "/v1/topics/t/settings"): ({"paused": True}, {"settings": {"paused": True}}),
    ("PUT", "/v1/topics/t/settings"): ({"lease_ms": 1000}, {"topic": "t"}),
    ("POST", "/v1/topics/t/clear"): (None, {"cancelled": 1, "is_complete": True}),
    ("DELETE", "/v1/topics/t"): (None, {"cancelled": 1, "is_complete": True}),
    ("POST", "/v1/topics/t/cancel"): (
        {"filter": {"states": ["ready"]}},
        {"matched": 1, "results": {"cancelled": 1}},
    ),
    ("POST", "/v1/topics/t/reschedule"): ({"filter": {}, "delay": 9}, {"results": {"moved": 1}}),
    ("POST", "/v1/topics/t/kick"): ({"ids": ["1"]}, {"ids": 1}),
    ("PUT", "/v1/schedules/n"): (
        {"topic": "t", "body": "x", "every": "1h"},
        {"name": "n", "topics": ["t"], "result": "created"},
    ),
    ("PATCH", "/v1/schedules/n"): ({"priority": 1}, {"name": "n", "result": "unknown"}),
    ("POST", "/v1/schedules/n/pause"): (None, {"name": "n", "result": "unknown"}),
    ("POST", "/v1/schedules/n/resume"): (None, {"name": "n"}),
    ("POST", "/v1/schedules/n/run"): (None, {"name": "n"}),
    ("DELETE", "/v1/schedules/n"): (None, {"name": "n"}),
    ("POST", "/v1/find-stale"): ({"repair": True}, {"repaired": 0}),
    ("GET", "/v1/backup"): (None, {}),
}


def test_each_audited_endpoint_is_tried_below():
    paths = {
        (e.method, re.sub(r"{topic}", "t", e.path).replace("{name}", "n"))
        for e in ENDPOINTS
        if e.audited
    }
    assert paths == CHANGES.keys()


@pytest.mark.parametrize(("where", "change"), CHANGES.items(), ids=lambda one: str(one)[:50])
async def test_each_change_is_a_line(tmp_path, where, change):
    async with logging(tmp_path) as (ask, caller, logs):
        await caller.server.queue.put("t", "x", id="1")
        method, path = where
        body, said = change
        await ask("root", method, path, body)
        status = caller.status
        await ask("reads", method, path, body)
        assert caller.status == 403
        await until_async(lambda: len(logs.of("audit")) == 2)
        done, refused = logs.of("audit")
        template = re.sub(r"/t(?=/|$)", "/{topic}", path).replace("/n", "/{name}")
        assert done["endpoint"] == f"{method} {template}"
        assert (done["token"], done["status"], done["port"]) == ("root", status, "http")
        for name, value in said.items():
            assert done[name] == value
        if "{topic}" in template:
            assert done["topic"] == "t"
        # Who was refused is told, too.
        assert (refused["token"], refused["status"]) == ("reads", 403)


async def test_what_changes_nothing_of_others_is_no_change(tmp_path):
    async with logging(tmp_path) as (ask, caller, logs):
        await ask("root", "POST", "/v1/topics/t/messages", {"body": "x", "id": "1"})
        await ask("root", "POST", "/v1/topics/t/reschedule", {"ids": ["1"], "delay": 0})
        await ask("root", "POST", "/v1/topics/t/cancel", {"filter": {}, "dry_run": True})
        await ask("root", "POST", "/v1/find-stale", {"repair": False})
        await ask("root", "POST", "/v1/topics/t/cancel", {"ids": ["1"]})
        assert caller.status == 200
        await until_async(lambda: len(logs.of("access")) == 5)
        assert logs.of("audit") == []


async def test_a_change_of_a_schedule_names_the_topics_before_and_after(tmp_path):
    async with logging(tmp_path) as (ask, _caller, logs):
        schedule = {"topic": "t", "body": "x", "every": "1h"}
        await ask("root", "PUT", "/v1/schedules/n", schedule)
        for change in ({"priority": 1}, {"topic": "u"}, {"topic": "u"}):
            await ask("root", "PATCH", "/v1/schedules/n", change)
        await until_async(lambda: len(logs.of("audit")) == 4)
        topics = [(line["topics"], line["result"]) for line in logs.of("audit")]
        assert topics == [
            (["t"], "created"),
            (["t"], "replaced"),
            (["t", "u"], "replaced"),
            (["u"], "kept"),
        ]


async def test_what_is_done_to_the_messages_that_are_schedules_is_a_line(tmp_path):
    async with logging(tmp_path) as (ask, _caller, logs):
        topic = "dwell:schedules"
        await ask("root", "POST", f"/v1/topics/{topic}/messages", {"body": "{}", "id": "n"})
        await ask("root", "DELETE", f"/v1/topics/{topic}/messages/n")
        add = {"command": "add", "topic": topic, "id": "m", "body": "{}", "TTR": 1, "delay": 60}
        await ask("root", "POST", "/command", add)
        await ask("root", "POST", "/command", {"command": "delete", "id": "m"})
        await ask("root", "GET", f"/v1/topics/{topic}/messages")
        await ask("root", "POST", "/v1/take", {"topics": ["t", topic]})
        await ask("root", "POST", f"/v1/topics/{topic}/cancel", {"ids": ["x"]})
        await until_async(lambda: len(logs.of("access")) == 7)
        await until_async(lambda: len(logs.of("audit")) == 6)


ENDS = {"ack": {}, "release": {}, "touch": {"lease_ms": 9000}, "bury": {}}


@pytest.mark.parametrize("is_open", [False, True], ids=["tokens", "open"])
@pytest.mark.parametrize("verb", ENDS)
async def test_what_is_done_to_a_schedule_by_its_receipt_is_a_line(tmp_path, verb, is_open):
    async with calling(tokens=None if is_open else tokens_in(tmp_path)) as caller:
        logs = Logs(caller.server.service, tmp_path)
        head = {} if is_open else {"authorization": "Bearer root"}
        for topic in ("t", "dwell:schedules"):
            await caller.server.queue.put(topic, "{}", id="n")
            taken = await caller.server.queue.take(topic)
            receipts = [taken[0].receipt]
            ask = {"receipts": receipts, **ENDS[verb]}
            await caller.ask("POST", f"/v1/{verb}", ask, **head)
            await caller.ask("POST", "/v1/taken", {"receipts": receipts}, **head)
            assert caller.status == 200
        await until_async(lambda: len(logs.of("access")) == 4 and logs.of("audit"))
        (line,) = logs.of("audit")
        assert (line["endpoint"], line["topics"]) == (f"POST /v1/{verb}", ["dwell:schedules"])
        logs.stop()


@pytest.mark.parametrize("is_open", [False, True], ids=["tokens", "open"])
async def test_a_schedule_that_is_finished_by_command_is_a_line(tmp_path, is_open):
    async with calling(tokens=None if is_open else tokens_in(tmp_path)) as caller:
        head = {} if is_open else {"authorization": "Bearer root"}
        for topic in ("t", "dwell:schedules"):
            await caller.server.queue.put(topic, "{}", id=f"of {topic}")
            await caller.ask("POST", "/command", {"command": "pop", "topic": topic}, **head)
        logs = Logs(caller.server.service, tmp_path)
        for topic in ("t", "dwell:schedules"):
            ask = {"command": "finish", "id": f"of {topic}"}
            assert (await caller.ask("POST", "/command", ask, **head))["success"]
        await until_async(lambda: len(logs.of("access")) == 2 and logs.of("audit"))
        (line,) = logs.of("audit")
        assert line["topics"] == ["dwell:schedules"]
        logs.stop()


async def test_long_words_make_no_long_line(tmp_path):
    async with logging(tmp_path) as (ask, caller, logs):
        filter_ = {"headers": {f"h{n}": "\x00\n" * 500 for n in range(10)}}
        await ask("root", "POST", "/v1/topics/t/cancel", {"filter": filter_})
        assert caller.status == 200
        await until_async(lambda: logs.of("audit"))
        (line,) = (tmp_path / "audit").read_bytes().splitlines(keepends=True)
        assert len(line) <= 4096
        assert json.loads(line)["token"] == "root"


def test_a_schedule_that_is_deleted_as_a_job_is_a_line(tmp_path):
    with BeanstalkServed() as served:
        logs = Logs(served.service, tmp_path)
        served.call(served.queue.schedules.put("n", "t", b"x", every="1h"))
        job = served.call(served.queue.get("dwell:schedules", "n"))
        with Line(served.number) as line:
            assert line.ask(b"delete %d\r\n" % job.number) == b"DELETED\r\n"
        until(lambda: logs.of("audit"))
        (told,) = logs.of("audit")
        assert (told["endpoint"], told["topic"]) == ("delete", "dwell:schedules")
        logs.stop()


@pytest.mark.parametrize(
    ("verb", "command", "reply"),
    [
        ("delete", b"delete %d", b"DELETED"),
        ("release", b"release %d 0 0", b"RELEASED"),
        ("bury", b"bury %d 0", b"BURIED"),
    ],
)
def test_a_reserved_job_that_is_a_schedule_is_a_line(tmp_path, verb, command, reply):
    with BeanstalkServed() as served:
        logs = Logs(served.service, tmp_path)
        served.call(served.queue.put("dwell:schedules", b"{}", id="n"))
        job = served.call(served.queue.get("dwell:schedules", "n")).number
        with Line(served.number) as line:
            line.put()
            for number in (line.reserve()[0], job):
                line.ask(b"reserve-job %d\r\n" % number)
                assert line.ask(command % number + b"\r\n").startswith(reply)
        until(lambda: len(logs.of("audit")) == 2)
        for told, endpoint in zip(logs.of("audit"), ("reserve-job", verb), strict=True):
            assert (told["endpoint"], told["topic"]) == (endpoint, "dwell:schedules")
            assert told["jobs"] == [job]
        logs.stop()


def test_commands_of_beanstalk_are_lines(tmp_path):
    with BeanstalkServed() as served:
        logs = Logs(served.service, tmp_path)
        with Line(served.number) as line:
            line.put()
            line.reserve()
            line.ask(b"kick 5\r\n")
            line.ask(b"pause-tube default 0\r\n")
            line.ask(b"nonsense\r\n")
            line.send(b"reserve\r\n")
            until(lambda: len(logs.of("access")) == 5)
        until(lambda: len(logs.of("access")) == 6)
        found = logs.of("access")
        assert [(one["method"], one["status"]) for one in found] == [
            ("put", "INSERTED"),
            ("reserve-with-timeout", "RESERVED"),
            ("kick", "KICKED"),
            ("pause-tube", "PAUSED"),
            ("refused", "UNKNOWN_COMMAND"),
            ("reserve", "TIMED_OUT"),
        ]
        assert all(one["peer"].startswith("127.0.0.1:") for one in found)
        assert found[0]["in_bytes"] == 1
        assert found[1]["out_bytes"] > 10
        audited = logs.of("audit")
        assert [(one["endpoint"], one["status"]) for one in audited] == [
            ("kick", "KICKED 0"),
            ("pause-tube", "PAUSED"),
        ]
        assert audited[0]["topic"] == "default"
        logs.stop()


async def test_dropped_lines_are_in_the_metrics(tmp_path):
    async with logging(tmp_path) as (ask, caller, _logs):
        caller.server.service.access._dropped = 7
        told = await ask("root", "GET", "/metrics")
        assert b'dwell_log_dropped_lines_total{log="access"} 7.0' in told
        assert b'dwell_log_dropped_lines_total{log="audit"} 0.0' in told
