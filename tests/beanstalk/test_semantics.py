"""What the dialogues cannot say: the queue behind the port, its limits, and the documents."""

import asyncio
import os
import re
import select
import signal
import ssl
import threading
import time
from itertools import product

import pytest
import uvloop

from dwell.message import MAX_LEASE_MS, State
from dwell.server import tls
from dwell.server.beanstalk.choices import MOST_WATCHED
from dwell.server.inflight import WAITING_TOPIC_BYTES, InFlight
from dwell.server.tokens import Tokens
from dwell.store.embedded import EmbeddedStore
from tests.beanstalk.served import MAX_JOB_BYTES, Line, Served, beanstalkd
from tests.server.certificates import make_certificate
from tests.server.process import ServerProcess
from tests.waiting import until


def waits(line: Line) -> bool:
    """Tell whether nothing comes for a moment."""
    return not select.select([line.socket], [], [], 0.15)[0]


# --- messages and jobs ------------------------------------------------------------------------


def test_a_job_is_a_message(served, line):
    line.ask(b"use orders\r\n")
    number = line.put(b"hello", pri=7, delay=100, ttr=30)
    page = served.call(served.queue.scan("orders", State.DELAYED))
    (message,) = page.messages
    assert (message.number, message.body, message.priority) == (number, b"hello", 7)
    assert (message.lease_ms, message.max_attempts) == (30_000, 65_535)
    assert 99_000 < message.due_ms - served.queue.clock.now_ms() <= 100_000


def test_a_message_is_a_job(served, line):
    put = served.call(served.queue.put("orders", b"hello", lease=20))
    line.ask(b"watch orders\r\n")
    assert line.reserve() == (put.number, b"hello")
    assert line.ask(b"delete %d\r\n" % put.number) == b"DELETED\r\n"
    assert served.call(served.queue.get("orders", put.id)) is None


@pytest.mark.parametrize("state", [State.READY, State.DELAYED, State.DEAD])
@pytest.mark.parametrize(
    ("command", "step"),
    [
        *product(["delete", "peek", "stats-job", "kick-job", "reserve-job"], ["named", "versions"]),
        *product(["kick-job", "reserve-job"], ["get"]),
    ],
)
def test_a_number_never_means_a_later_message_of_its_id(
    served, line, monkeypatch, command, step, state
):
    """The job goes, and its id is put again, while the command is done."""

    async def put():
        delay = "1h" if state is State.DELAYED else 0
        number = (await served.queue.put("orders", b"hello", id="a", delay=delay)).number
        if state is State.DEAD:
            await served.queue.bury(await served.queue.take("orders"))
        return number

    number = served.call(put())
    holder = served.queue if step == "named" else served.queue.store
    look, later = getattr(holder, step), []

    async def looked(*given):
        found = await look(*given)
        if not later:
            await served.queue.cancel("orders", "a")
            later.append(await put())
        return found

    monkeypatch.setattr(holder, step, looked)
    answer = line.ask(b"%s %d\r\n" % (command.encode(), number))
    if later:
        assert answer == b"NOT_FOUND\r\n"
        there = served.call(served.queue.get("orders", "a"))
        assert (there.number, there.state) == (later[0], state)


def test_a_topic_that_is_no_tube_is_reached_by_number_only(served, line):
    put = served.call(served.queue.put("orders:eu", b"hello"))
    assert line.ask(b"list-tubes\r\n") == b"OK 14\r\n---\n- default\n\r\n"
    assert line.ask(b"peek %d\r\n" % put.number) == b"FOUND %d 5\r\nhello\r\n" % put.number
    assert line.stats(b"stats-job %d" % put.number)["tube"] == "orders:eu"
    assert line.ask(b"delete %d\r\n" % put.number) == b"DELETED\r\n"


def test_a_tube_is_the_topic_with_its_foreign_characters_escaped(served, line):
    assert line.ask(b"use a+b/c\r\n") == b"USING a+b/c\r\n"
    line.put(b"x")
    assert b"- a+b/c\n" in line.ask(b"list-tubes\r\n")
    taken = served.call(served.queue.take("a:2Bb:2Fc"))
    assert taken[0].body == b"x"


def test_a_tube_whose_topic_would_be_too_long_is_refused(line):
    longest = b"x" * 197 + b"+"
    assert line.ask(b"use %b\r\n" % longest) == b"USING %b\r\n" % longest
    assert line.ask(b"use x%b\r\n" % longest) == b"BAD_FORMAT\r\n"
    assert line.ask(b"watch x%b\r\n" % longest) == b"BAD_FORMAT\r\n"


def test_times_that_a_message_cannot_have_are_cut(line):
    number = line.put(delay=4294967295, ttr=4294967295)
    stats = line.stats(b"stats-job %d" % number)
    assert int(stats["ttr"]) == MAX_LEASE_MS // 1000
    assert int(stats["delay"]) > 99 * 365 * 86_400
    line.ask(b"kick 1\r\n")
    assert line.reserve() is not None
    assert line.ask(b"release %d 0 4294967295\r\n" % number) == b"RELEASED\r\n"


def test_release_counts_and_closing_does_not(served, line):
    number = line.put()
    line.reserve()
    line.ask(b"release %d 0 0\r\n" % number)
    assert line.stats(b"stats-job %d" % number)["reserves"] == "1"
    with Line(served.number) as other:
        assert other.reserve() == (number, b"x")
        assert line.stats(b"stats-job %d" % number)["reserves"] == "2"
    for _ in range(100):
        if line.stats(b"stats-job %d" % number)["state"] == "ready":
            break
    assert line.stats(b"stats-job %d" % number)["reserves"] == "1"


def test_a_release_buries_what_has_no_attempts_left(served, line):
    put = served.call(served.queue.put("default", b"x", max_attempts=1))
    line.reserve()
    assert line.ask(b"release %d 0 0\r\n" % put.number) == b"BURIED\r\n"
    assert line.ask(b"peek-buried\r\n") == b"FOUND %d 1\r\nx\r\n" % put.number


def test_runs_with_many_ways_to_release_and_bury(line):
    numbers = [line.put(b"%d" % pri, pri=pri) for pri in range(6)]
    for _ in numbers:
        line.reserve()
    a, b, c, d, e, f = numbers
    said = line.ask(
        b"release %d 9 0\r\nrelease %d 8 0\r\nrelease %d 9 0\r\nrelease %d 9 100\r\n" % (a, b, a, c)
        + b"bury %d 3\r\nbury %d 2\r\nbury %d 1\r\n" % (d, e, d)
        + b"touch %d\r\ntouch %d\r\ntouch %d\r\n" % (f, f, a),
        10,
    )
    assert said == (
        b"RELEASED\r\nRELEASED\r\nNOT_FOUND\r\nRELEASED\r\n"
        b"BURIED\r\nBURIED\r\nNOT_FOUND\r\n"
        b"TOUCHED\r\nTOUCHED\r\nNOT_FOUND\r\n"
    )
    assert [line.reserve()[0], line.reserve()[0]] == [b, a]
    assert line.reserve() is None
    assert line.ask(b"kick 10\r\n") == b"KICKED 2\r\n"
    assert [line.reserve()[0], line.reserve()[0]] == [e, d]


def test_a_touch_puts_the_deadline_off(line):
    number = line.put(ttr=5)
    line.reserve()
    for _ in range(3):
        time.sleep(2)
        assert line.ask(b"touch %d\r\n" % number) == b"TOUCHED\r\n"
    assert line.reserve() is None
    assert line.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"


def test_kicking_more_than_one_batch(served, line):
    many = 10_050
    for _ in range(2):
        served.call(served.queue.put_many("default", [b"x"] * (many // 2), delay=1000))
    assert line.ask(b"kick 4294967295\r\n") == b"KICKED %d\r\n" % many


# --- several tubes ----------------------------------------------------------------------------


def test_the_most_urgent_jobs_of_many_tubes_in_one_pipeline(served, line):
    expected = []
    for number in range(60):
        tube, pri = number % 7, (number * 37) % 20
        line.ask(b"use tube%d\r\n" % tube)
        expected.append((pri, line.put(b"%d" % number, pri=pri)))
    with Line(served.number) as worker:
        for tube in range(7):
            worker.ask(b"watch tube%d\r\n" % tube)
        worker.send(b"reserve\r\n" * 60)
        found = [int(worker.read().split()[1]) for _ in range(60)]
    assert found == [number for _, number in sorted(expected)]


def test_more_jobs_of_many_tubes_than_are_looked_at_together(served, line):
    for tube in (b"a", b"b"):
        line.ask(b"use %b\r\n" % tube)
        line.send(b"put 0 0 60 1\r\nx\r\n" * 150)
        for _ in range(150):
            line.read()
    lines = [Line(served.number) for _ in range(3)]
    for worker in lines:
        worker.ask(b"watch a\r\nwatch b\r\n", 2)
        worker.send(b"reserve-with-timeout 0\r\n" * 110)
    said = [worker.read() for worker in lines for _ in range(110)]
    assert sum(reply.startswith(b"RESERVED") for reply in said) == 300
    assert said.count(b"TIMED_OUT\r\n") == 30
    for worker in lines:
        worker.close()


def test_waiting_on_many_tubes(served, line):
    for tube in (b"a", b"b", b"c"):
        line.ask(b"watch %b\r\n" % tube)
    with Line(served.number) as producer:
        for tube in (b"c", b"a", b"default", b"b"):
            line.send(b"reserve\r\n")
            assert waits(line)
            producer.ask(b"use %b\r\n" % tube)
            number = producer.put(tube)
            assert line.read().startswith(b"RESERVED %d " % number)


def test_many_wait_for_the_same_and_are_served_in_the_order_in_which_they_came(served, line):
    lines = [Line(served.number) for _ in range(100)]
    for number, worker in enumerate(lines):
        worker.send(b"reserve\r\n" if number % 3 else b"reserve-with-timeout 30\r\n")
        # The next one comes after this one waits.
        while line.stats(b"stats")["current-waiting"] != str(number + 1):
            pass
    impatient = Line(served.number)
    assert impatient.ask(b"reserve-with-timeout 1\r\n") == b"TIMED_OUT\r\n"
    lines.pop(7).close()
    while line.stats(b"stats")["current-waiting"] != "99":
        pass
    line.send(b"put 0 0 60 1\r\nx\r\n" * 99)
    put = [int(line.read().split()[1]) for _ in range(99)]
    assert [int(worker.read().split()[1]) for worker in lines] == put
    assert line.stats(b"stats")["current-waiting"] == "0"
    for worker in (*lines, impatient):
        worker.close()


# --- what is refused --------------------------------------------------------------------------


def test_a_server_that_drains_takes_no_jobs(served, line):
    number = line.put()
    served.service.is_draining = True
    assert line.ask(b"put 0 0 1 1\r\nx\r\nput 0 0 1 1\r\nx\r\n", 2) == b"DRAINING\r\n" * 2
    assert line.stats(b"stats")["draining"] == "true"
    assert line.reserve() == (number, b"x")
    assert line.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"
    served.service.is_draining = False
    line.put()


def test_over_the_gates_bound_there_is_no_memory():
    in_flight = InFlight(10, 1000)
    with Served(in_flight=in_flight) as served, Line(served.number) as line:
        in_flight.enter(500)
        assert line.ask(b"put 0 0 1 600\r\n" + b"x" * 600 + b"\r\n") == b"OUT_OF_MEMORY\r\n"
        line.put(b"x" * 400)
        in_flight.leave(500)
        line.put(b"x" * 600)
        assert (in_flight.requests, in_flight.size_bytes) == (0, 0)


def test_a_full_topic_takes_what_fits(served, line):
    served.call(served.queue.configure("default", max_pending=3))
    said = line.ask(b"put 0 0 9 1\r\nx\r\n" * 5, 5)
    assert re.fullmatch(rb"(INSERTED \d+\r\n){3}(OUT_OF_MEMORY\r\n){2}", said)
    assert line.ask(b"put 0 0 9 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    served.call(served.queue.configure("default", on_full="drop"))
    assert line.ask(b"put 0 0 9 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert served.service.in_flight.requests == 0


def test_bodies_up_to_the_servers_limit():
    with Served(most_body_bytes=100) as served, Line(served.number) as line:
        line.put(b"x" * 100)
        said = line.ask(b"put 0 0 1 101\r\n%b\r\nput 0 0 1 1\r\nx\r\n" % (b"x" * 101), 2)
        assert re.fullmatch(rb"JOB_TOO_BIG\r\nINSERTED \d+\r\n", said)
        assert line.stats(b"stats")["max-job-size"] == "100"


def test_no_more_connections_than_may_be():
    with (
        Served(most_connections=2) as served,
        Line(served.number) as one,
        Line(served.number) as two,
    ):
        assert one.ask(b"list-tube-used\r\n") == two.ask(b"list-tube-used\r\n")
        with Line(served.number) as three:
            assert three.rest() == b""
        assert one.ask(b"list-tube-used\r\n") == b"USING default\r\n"


def test_no_more_waiting_than_may_be():
    with (
        Served(most_waiting=1) as served,
        Line(served.number) as one,
        Line(served.number) as two,
    ):
        one.send(b"reserve\r\n")
        assert waits(one)
        assert two.ask(b"reserve\r\n") == b"OUT_OF_MEMORY\r\n"
        assert two.ask(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
        two.put()
        assert one.read().startswith(b"RESERVED")


def test_no_more_tubes_than_may_be_watched(line):
    line.send(b"".join(b"watch t%d\r\n" % number for number in range(MOST_WATCHED)))
    said = [line.read() for _ in range(MOST_WATCHED)]
    assert said[-2:] == [b"WATCHING %d\r\n" % MOST_WATCHED, b"OUT_OF_MEMORY\r\n"]
    assert line.ask(b"watch t1\r\n") == b"WATCHING %d\r\n" % MOST_WATCHED


def test_what_all_connections_watch_counts_as_under_way():
    in_flight = InFlight(10_000, 10 * WAITING_TOPIC_BYTES)
    with Served(in_flight=in_flight) as served, Line(served.number) as line:
        tubes = b"".join(b"watch t%d\r\n" % number for number in range(10))
        assert line.ask(tubes, 10).endswith(b"WATCHING 11\r\n")
        with Line(served.number) as other:
            assert other.ask(b"watch t1\r\n") == b"OUT_OF_MEMORY\r\n"
            said = line.ask(b"watch t1\r\nignore t1\r\nignore t1\r\n", 3)
            assert said == b"WATCHING 11\r\nWATCHING 10\r\nWATCHING 10\r\n"
            assert other.ask(b"watch t1\r\n") == b"WATCHING 2\r\n"
            assert in_flight.size_bytes == 10 * WAITING_TOPIC_BYTES
            assert set(served.port.desk.hall.chosen) == {"default", *(f"t{n}" for n in range(10))}
        line.socket.close()
        until(lambda: not served.port.desk.hall.sessions)
        assert in_flight.size_bytes == 0
        assert list(served.port.desk.hall.chosen) == ["default"]


def test_what_a_connection_holds_counts_as_under_way():
    in_flight = InFlight(10_000, 200_000)
    with Served(in_flight=in_flight) as served, Line(served.number) as line:
        line.ask(b"put 0 0 60 1\r\nx\r\n" * 1000, 1000)
        line.send(b"reserve-with-timeout 0\r\n" * 200)
        numbers = [int(line.read().split()[1]) for _ in range(200)]
        assert in_flight.size_bytes > 100_000
        line.send(b"reserve-with-timeout 0\r\n" * 200)
        numbers += [int(line.read().split()[1]) for _ in range(200)]
        assert line.ask(b"reserve-with-timeout 0\r\n") == b"OUT_OF_MEMORY\r\n"
        deletes = b"".join(b"delete %d\r\n" % number for number in numbers[:200])
        releases = b"".join(b"release %d 0 0\r\n" % number for number in numbers[200:])
        line.ask(deletes + releases, 400)
        assert in_flight.size_bytes == 0
        assert line.ask(b"reserve-with-timeout 0\r\n").startswith(b"RESERVED")
        line.send(b"reserve-with-timeout 0\r\n" * 200)
        until(lambda: in_flight.size_bytes > 100_000)
        line.socket.close()
        until(lambda: not served.port.desk.hall.sessions)
        assert in_flight.size_bytes == 0


def test_what_a_connection_may_not_reserve_it_cannot_watch(tmp_path):
    (tmp_path / "tokens").write_text(_TOKENS)
    with Served(tokens=Tokens.load(tmp_path / "tokens")) as served, Line(served.number) as line:
        unknown = b"UNKNOWN_COMMAND\r\n"
        for tube in (b"other", b"in.a", b"mine.a"):
            assert line.ask(b"watch %b\r\n" % tube) == unknown
        assert line.ask(b"watch out.a\r\n") == b"WATCHING 2\r\n"
        assert line.ask(b"use other\r\n") == unknown
        assert line.ask(b"list-tube-used\r\n") == b"USING default\r\n"
        for tube in (b"in.a", b"out.a", b"mine.a"):
            assert line.ask(b"use %b\r\n" % tube) == b"USING %b\r\n" % tube
        line.send(b"list-tubes-watched\r\n")
        assert line.read().endswith(b"\r\n---\n- default\n- out.a\n\r\n")
        assert set(served.port.desk.hall.chosen) == {"default", "out.a", "mine.a"}


_TOKENS = """
[anonymous]
put = ["in."]
take = ["out."]
admin = ["mine."]
"""


def test_a_connection_may_do_what_a_caller_without_a_token_may(tmp_path):
    (tmp_path / "tokens").write_text(_TOKENS)
    with Served(tokens=Tokens.load(tmp_path / "tokens")) as served, Line(served.number) as line:
        put = served.call(served.queue.put("out.a", b"x"))
        other = served.call(served.queue.put("other", b"x"))
        unknown = b"UNKNOWN_COMMAND\r\n"
        assert line.ask(b"put 0 0 9 1\r\nx\r\nput 0 0 9 1\r\nx\r\n", 2) == unknown * 2
        assert line.ask(b"reserve\r\nreserve-with-timeout 0\r\n", 2) == unknown * 2
        line.ask(b"use in.a\r\n")
        line.put()
        for command in (b"peek-ready", b"peek-delayed", b"kick 1", b"stats", b"list-tubes"):
            assert line.ask(command + b"\r\n") == unknown
        # What he may not see looks as if it were not there.
        none = b"NOT_FOUND\r\n"
        for tube in (b"in.a", b"other", b"none"):
            assert line.ask(b"pause-tube %b 1\r\n" % tube) == none
            assert line.ask(b"stats-tube %b\r\n" % tube) == none
        for command in (b"delete", b"peek", b"stats-job", b"reserve-job", b"kick-job"):
            for number in (other.number, 99_999):
                assert line.ask(b"%b %d\r\n" % (command, number)) == none
        line.ask(b"watch out.a\r\n")
        assert line.ask(b"reserve\r\n") == unknown
        line.ask(b"ignore default\r\n")
        assert line.reserve() == (put.number, b"x")
        assert line.ask(b"delete %d\r\n" % put.number) == b"DELETED\r\n"
        line.ask(b"use mine.a\r\n")
        assert line.ask(b"kick 1\r\n") == b"KICKED 0\r\n"


def test_a_job_that_falls_due_as_a_reserve_times_out_is_reserved(line):
    for _ in range(3):
        line.send(b"put 0 1 60 1\r\nx\r\nreserve-with-timeout 1\r\n")
        job = line.read().split()[1]
        assert line.read() == b"RESERVED %b 1\r\nx\r\n" % job
        assert line.ask(b"delete %b\r\n" % job) == b"DELETED\r\n"


def test_a_reserve_that_waits_ends_with_its_right(tmp_path):
    path = tmp_path / "tokens"
    path.write_text('[anonymous]\nput = [""]\ntake = [""]\n')
    tokens = Tokens.load(path)
    with Served(tokens=tokens) as served, Line(served.number) as line, Line(served.number) as other:
        line.send(b"watch out\r\nreserve\r\n")
        other.send(b"watch in\r\nignore default\r\nreserve\r\n")
        assert line.read() == other.read() == b"WATCHING 2\r\n"
        assert other.read() == b"WATCHING 1\r\n"
        until(lambda: served.queue.waiting.keys() >= {"out", "in"})

        async def change():
            path.write_text('[anonymous]\nput = [""]\ntake = ["in"]\n')
            tokens.reload()

        served.call(change())
        assert line.read() == b"UNKNOWN_COMMAND\r\n"
        put = served.call(served.queue.put("in", b"x"))
        assert other.read() == b"RESERVED %d 1\r\nx\r\n" % put.number


def test_a_right_that_ends_while_the_quota_is_looked_up_ends_the_put(tmp_path, monkeypatch):
    path = tmp_path / "tokens"
    path.write_text('[anonymous]\nput = [""]\nread = [""]\nquota = {pending = 9}\n')
    tokens = Tokens.load(path)
    with Served(tokens=tokens) as served, Line(served.number) as line:
        stats = served.queue.stats

        async def looked():
            found = await stats()
            path.write_text('[anonymous]\nread = [""]\n')
            tokens.reload()
            return found

        monkeypatch.setattr(served.queue, "stats", looked)
        assert line.ask(b"put 0 0 60 1\r\nx\r\n") == b"UNKNOWN_COMMAND\r\n"
        monkeypatch.undo()
        assert not served.call(served.queue.stats()).topics


def test_a_kick_of_many_jobs_ends_with_its_right(tmp_path, monkeypatch):
    path = tmp_path / "tokens"
    path.write_text('[anonymous]\nadmin = [""]\n')
    tokens = Tokens.load(path)
    with Served(tokens=tokens) as served, Line(served.number) as line:
        queue = served.queue

        async def bury():
            for _ in range(2):
                await queue.put_many("default", [b"x"] * 8000)
            while len(batch := await queue.take("default", 8000)):
                await queue.bury(batch)

        served.call(bury())
        kick = queue.kick

        async def kicked(*given, **more):
            path.write_text('[anonymous]\nput = [""]\n')
            tokens.reload()
            return await kick(*given, **more)

        monkeypatch.setattr(queue, "kick", kicked)
        assert line.ask(b"kick 16000\r\n") == b"UNKNOWN_COMMAND\r\n"
        found = served.call(queue.stats()).topics["default"]
        assert found.ready > 0
        assert found.dead > 0


# --- documents --------------------------------------------------------------------------------


def keys(text: bytes) -> list[str]:
    return [line.split(":")[0] for line in text.decode().split("---\n")[1].strip().splitlines()]


@pytest.mark.parametrize("command", ["stats", "stats-job", "stats-tube"])
def test_the_documents_have_the_keys_of_beanstalkd(served, line, command):
    with beanstalkd() as number, Line(number) as real:
        said = []
        for each in (real, line):
            job = each.put()
            argument = {"stats": "", "stats-job": f" {job}", "stats-tube": " default"}[command]
            said.append(keys(each.ask(f"{command}{argument}\r\n".encode())))
    assert said[0] == said[1]


def test_the_servers_document(served, line):
    line.put()
    line.put(delay=100)
    line.reserve()
    with Line(served.number) as worker:
        worker.send(b"watch a\r\nreserve\r\n")
        worker.read()
        assert waits(worker)
        stats = line.stats(b"stats")
        assert stats["current-jobs-reserved"] == stats["current-jobs-delayed"] == "1"
        assert stats["current-jobs-ready"] == stats["current-jobs-buried"] == "0"
        assert (stats["cmd-put"], stats["cmd-reserve-with-timeout"]) == ("2", "1")
        assert (stats["cmd-reserve"], stats["cmd-stats"]) == ("1", "1")
        assert (stats["current-connections"], stats["total-connections"]) == ("2", "2")
        assert (stats["current-producers"], stats["current-workers"]) == ("1", "2")
        assert (stats["current-waiting"], stats["total-jobs"]) == ("1", "2")
        assert (stats["current-tubes"], stats["draining"]) == ("2", "false")
        assert stats["max-job-size"] == str(MAX_JOB_BYTES)
        assert stats["version"] == "1.13"
        assert stats["pid"] == str(os.getpid())
        assert re.fullmatch("[0-9a-f]{16}", stats["id"])
    assert line.stats(b"stats")["current-waiting"] == "0"


def test_a_tubes_document(served, line):
    line.ask(b"use a\r\n")
    number = line.put()
    line.put(delay=100)
    line.ask(b"watch a\r\n")
    line.reserve()
    line.ask(b"delete %d\r\n" % number)
    line.ask(b"pause-tube a 100\r\n")
    with Line(served.number) as worker:
        worker.send(b"watch a\r\nreserve\r\n")
        worker.read()
        assert waits(worker)
        stats = line.stats(b"stats-tube a")
    assert stats["name"] == "a"
    assert (stats["current-jobs-delayed"], stats["current-jobs-ready"]) == ("1", "0")
    assert (stats["total-jobs"], stats["cmd-delete"]) == ("2", "1")
    assert (stats["current-using"], stats["current-watching"]) == ("1", "2")
    assert (stats["current-waiting"], stats["cmd-pause-tube"]) == ("1", "1")
    assert stats["pause"] == "100"
    assert stats["pause-time-left"] in ("99", "100")


def test_a_jobs_document_in_every_state(line):
    number = line.put(pri=3, delay=50, ttr=20)
    stats = line.stats(b"stats-job %d" % number)
    assert (stats["id"], stats["tube"], stats["state"]) == (str(number), "default", "delayed")
    assert (stats["pri"], stats["ttr"], stats["reserves"]) == ("3", "20", "0")
    assert stats["time-left"] in ("49", "50")
    line.ask(b"kick 1\r\n")
    assert line.stats(b"stats-job %d" % number)["state"] == "ready"
    line.reserve()
    stats = line.stats(b"stats-job %d" % number)
    assert (stats["state"], stats["reserves"]) == ("reserved", "1")
    assert stats["time-left"] in ("19", "20")
    line.ask(b"bury %d 5\r\n" % number)
    stats = line.stats(b"stats-job %d" % number)
    assert (stats["state"], stats["pri"], stats["time-left"]) == ("buried", "5", "0")
    line.ask(b"delete %d\r\n" % number)
    assert line.ask(b"stats-job %d\r\n" % number) == b"NOT_FOUND\r\n"


def test_tubes_are_listed_as_long_as_there_is_a_reason(served, line):
    def listed() -> set[str]:
        return set(re.findall("^- (.*)$", line.ask(b"list-tubes\r\n").decode(), re.MULTILINE))

    with Line(served.number) as other:
        other.ask(b"use used\r\nwatch watched\r\n", 2)
        assert listed() == {"default", "used", "watched"}
        number = other.put()
    for _ in range(100):
        if listed() == {"default", "used"}:
            break
    assert listed() == {"default", "used"}
    line.ask(b"delete %d\r\n" % number)
    assert listed() == {"default"}


# --- rounds -----------------------------------------------------------------------------------


def test_what_many_ask_at_once_is_few_calls_of_the_store(served):
    """Eight connections with pipelines of a hundred commands, each kind of which is a round."""
    calls = {"put": 0, "take": 0, "ack": 0}
    store = served.queue.store

    def counted(name):
        verb = getattr(store, name)

        async def call(*args):
            calls[name] += 1
            return await verb(*args)

        setattr(store, name, call)

    for name in calls:
        counted(name)
    lines = [Line(served.number) for _ in range(8)]
    for line in lines:
        line.send(b"put 0 0 60 1\r\nx\r\n" * 100)
    for line in lines:
        assert all(line.read().startswith(b"INSERTED") for _ in range(100))
    for line in lines:
        line.send(b"reserve\r\n" * 100)
    numbers = [[line.read().split()[1] for _ in range(100)] for line in lines]
    assert len({number for some in numbers for number in some}) == 800
    for line, some in zip(lines, numbers, strict=True):
        line.send(b"".join(b"delete %b\r\n" % number for number in some))
    for line in lines:
        assert all(line.read() == b"DELETED\r\n" for _ in range(100))
        line.close()
    # A connection's part is never cut, and several are often joined.
    assert all(0 < count <= 16 for count in calls.values()), calls


def test_many_threads_at_once_lose_nothing(served):
    done: list[int] = []

    def work() -> None:
        with Line(served.number) as line:
            for _ in range(50):
                line.put(b"x" * 10)
                number, _ = line.reserve(5)
                assert line.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"
                done.append(number)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(done)) == len(done) == 800
    counts = served.call(served.queue.stats()).topics["default"]
    assert (counts.ready, counts.leased, counts.delayed, counts.dead) == (0, 0, 0, 0)


# --- start and stop ---------------------------------------------------------------------------


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_both_event_loops(loop):
    with Served(loop=loop) as served, Line(served.number) as line:
        number = line.put(b"x" * 500_000)
        assert line.reserve() == (number, b"x" * 500_000)
        assert line.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"


def test_over_tls(tmp_path):
    cert, key = make_certificate(tmp_path)
    client = ssl.create_default_context(cafile=str(cert))
    with Served(ssl=tls.context(cert, key)) as served, Line(served.number) as line:
        line.socket = client.wrap_socket(line.socket, server_hostname="127.0.0.1")
        number = line.put(b"x" * 100_000)
        assert line.reserve() == (number, b"x" * 100_000)


def test_stopping_answers_what_waits_and_gives_back_what_is_held(served):
    with Line(served.number) as holder, Line(served.number) as waiter:
        number = holder.put()
        holder.reserve()
        waiter.send(b"watch a\r\nreserve\r\n")
        waiter.read()
        assert waits(waiter)
        served.call(served.port.stop())
        assert waiter.read() == b"TIMED_OUT\r\n"
        assert waiter.rest() == holder.rest() == b""
        (message,) = served.call(served.queue.peek("default"))
        assert (message.number, message.attempt) == (number, 0)
        with pytest.raises(ConnectionRefusedError):
            Line(served.number)


def test_the_server_as_people_start_it(tmp_path):
    with ServerProcess(
        "--beanstalk", "127.0.0.1:0", "--http", "off", store=tmp_path / "s"
    ) as server:
        number = int(server.ready()["beanstalk"].rpartition(":")[2])
        with Line(number) as line, Line(number) as waiter:
            job = line.put(b"hello")
            waiter.ask(b"watch a\r\nignore default\r\n", 2)
            waiter.send(b"reserve\r\n")
            server.signal(signal.SIGUSR1)
            server.said("draining")
            assert line.ask(b"put 0 0 1 1\r\nx\r\n") == b"DRAINING\r\n"
            assert line.reserve() == (job, b"hello")
            assert server.stop() == 0
            assert waiter.read() == b"TIMED_OUT\r\n"
            assert line.rest() == b""
    with Served(lambda: EmbeddedStore(tmp_path / "s")) as served, Line(served.number) as line:
        assert line.stats(b"stats-job %d" % job)["state"] == "ready"
        assert line.reserve() == (job, b"hello")
