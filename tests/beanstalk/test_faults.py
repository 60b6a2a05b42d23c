"""Bad input, bad clients and a bad disk, over real sockets: nothing is lost, and nothing grows."""

import asyncio
import contextlib
import os
import random
import re
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dwell.clock import RealClock
from dwell.errors import ServerUnreachable, StoreError, StoreFull
from dwell.message import MAX_BATCH_MESSAGES, Message, Result, State
from dwell.queue import Queue
from dwell.server.beanstalk import arrivals
from dwell.server.beanstalk.desk import Desk
from dwell.server.beanstalk.taken import take_best
from dwell.server.inflight import InFlight
from dwell.server.service import Service
from dwell.server.tokens import Tokens
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from dwell.store.partly import PartlyPut
from dwell.testing.faults import FaultyDisk
from tests.beanstalk.served import Line, Served
from tests.server.process import ServerProcess
from tests.store.test_damage import flip
from tests.turns import MostInATurn
from tests.waiting import PATIENCE_S, until

#: How many connections do nothing; ten thousand where the limit of open files lets them.
IDLE = int(os.environ.get("DWELL_IDLE", "2000"))


def vanish(line: Line) -> None:
    """End a connection as a machine does that loses its power: without a good-bye."""
    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def counts(served: Served, topic: str = "default"):
    return served.call(served.queue.stats()).topics[topic]


def memory_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


# --- bad input --------------------------------------------------------------------------------


_HALVES = [
    b"p",
    b"put 0 0 60 5",
    b"put 0 0 60 5\r\n",
    b"put 0 0 60 5\r\nhel",
    b"put 0 0 60 5\r\nhello\r",
    b"put 0 0 60 9999999\r\nx",
    b"x" * 1000,
    b"reserve\r",
    b"delete 1",
]


@pytest.mark.parametrize("half", _HALVES)
def test_a_command_that_is_never_finished(served, half):
    line = Line(served.number)
    line.send(half)
    vanish(line)
    with Line(served.number) as other:
        other.put()
        assert counts(served).ready == 1
        until(lambda: other.stats(b"stats")["current-connections"] == "1")


def test_any_bytes_from_many_connections(served):
    chance = random.Random(7)
    for _ in range(200):
        line = Line(served.number)
        line.send(chance.randbytes(chance.randrange(1, 2000)))
        if chance.random() < 0.5:
            line.send(b"\r\nput 0 0 1 5\r\nhello")
        vanish(line)
    with Line(served.number) as line:
        number = line.put()
        assert line.reserve() == (number, b"x")


def test_a_slow_sender_holds_up_nobody(served):
    """A byte at a time, a hundred times as fast as one a second."""
    said = []

    def send_slowly() -> None:
        with Line(served.number) as slow:
            for byte in b"put 0 0 60 20\r\n" + b"s" * 20 + b"\r\nlist-tube-used\r\n":
                slow.send(bytes([byte]))
                time.sleep(0.01)
            said.extend([slow.read(), slow.read()])

    thread = threading.Thread(target=send_slowly)
    thread.start()
    with Line(served.number) as line:
        while thread.is_alive():
            started = time.monotonic()
            line.ask(b"list-tube-used\r\n")
            assert time.monotonic() - started < PATIENCE_S
            time.sleep(0.01)
    thread.join()
    assert said[0].startswith(b"INSERTED")
    assert said[1] == b"USING default\r\n"


def test_puts_that_are_coming_count_at_the_gate():
    in_flight = InFlight(100, 1 << 20)
    with (
        Served(in_flight=in_flight) as served,
        Line(served.number) as first,
        Line(served.number) as second,
    ):
        head, body = b"put 0 0 60 600000\r\n", b"x" * 600_000
        first.send(head + body)
        until(lambda: in_flight.size_bytes == len(head + body))
        assert in_flight.requests == 1
        # The second one does not fit beside it, and is refused when all of it was passed over.
        second.send(head + body + b"\r\nlist-tube-used\r\n")
        assert (second.read(), second.read()) == (b"OUT_OF_MEMORY\r\n", b"USING default\r\n")
        assert first.ask(b"\r\n").startswith(b"INSERTED")
        assert (in_flight.requests, in_flight.size_bytes) == (0, 0)
        second.send(head + body)
        until(lambda: in_flight.size_bytes == len(head + body))
        vanish(second)
        until(lambda: (in_flight.requests, in_flight.size_bytes) == (0, 0))


def test_a_put_that_comes_without_memory_is_refused_alone(monkeypatch):
    in_flight = InFlight(100, 1 << 20)
    enter, refused = in_flight.enter, []

    def entered(size_bytes, *requests):
        if in_flight.size_bytes + size_bytes > 100_000:
            refused.append(size_bytes)
            raise StoreFull("the memory is full")
        enter(size_bytes, *requests)

    monkeypatch.setattr(in_flight, "enter", entered)
    with Served(in_flight=in_flight) as served, Line(served.number) as line:
        number = line.put()
        assert line.reserve() == (number, b"x")
        line.send(b"put 0 0 60 600000\r\n" + b"x" * 500_000)
        until(lambda: refused)
        line.send(b"x" * 100_000 + b"\r\nlist-tube-used\r\n")
        assert (line.read(), line.read()) == (b"OUT_OF_MEMORY\r\n", b"USING default\r\n")
        assert line.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"


def test_jobs_that_may_be_put_are_not_said_to_have_had_no_room(caplog):
    with Served() as served, Line(served.number) as line:
        put, seen = served.queue.store.put, 0

        async def partly(puts, on_conflict):
            nonlocal seen
            lost = np.arange(seen, seen + len(puts)) >= 2
            seen += len(puts)
            raise PartlyPut(ServerUnreachable("no answer"), await put(puts, on_conflict), lost)

        served.queue.store.put = partly
        said = line.ask(b"put 0 0 9 1\r\nx\r\n" * 5, 5)
        assert re.fullmatch(rb"(INSERTED \d+\r\n){2}(INTERNAL_ERROR\r\n){3}", said)
        assert "jobs may be put or not: no answer" in caplog.text


def test_a_put_whose_body_does_not_come_in_time_ends_the_connection(monkeypatch):
    monkeypatch.setattr(arrivals, "LONGEST_S", 0.3)
    in_flight = InFlight(100, 1 << 20)
    with (
        Served(in_flight=in_flight) as served,
        Line(served.number) as idle,
        Line(served.number) as slow,
    ):
        for _ in range(3):
            # One that comes late, but in time, is as good as any other.
            slow.send(b"put 0 0 60 5\r\nhel")
            time.sleep(0.2)
            assert slow.ask(b"lo\r\n").startswith(b"INSERTED")
        slow.send(b"list-tube-used\r\nput 0 0 60 5\r\nhel")
        assert slow.rest() == b"USING default\r\n"
        assert (in_flight.requests, in_flight.size_bytes) == (0, 0)
        assert idle.ask(b"list-tube-used\r\n") == b"USING default\r\n"


# --- connections ------------------------------------------------------------------------------


def test_many_idle_connections_cost_little():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + 500
    if wanted > hard:
        pytest.skip(f"{wanted} open files are needed, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with ServerProcess("--beanstalk", "127.0.0.1:0", "--http", "off", store="memory:") as server:
        number = int(server.ready()["beanstalk"].rpartition(":")[2])
        with Line(number) as line:
            work(line, 100)
            before = memory_bytes(server.process.pid)
            idle = [socket.create_connection(("127.0.0.1", number)) for _ in range(IDLE)]
            try:
                connected = str(IDLE + 1)
                until(lambda: line.stats(b"stats")["current-connections"] == connected)
                assert (memory_bytes(server.process.pid) - before) / IDLE < 6 * 1024
                started = time.monotonic()
                work(line, 100)
                assert time.monotonic() - started < PATIENCE_S
            finally:
                for each in idle:
                    each.close()
        assert server.stop() == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def work(line: Line, count: int) -> None:
    for _ in range(count):
        number = line.put()
        assert line.reserve() == (number, b"x")
        line.ask(b"delete %d\r\n" % number)


def test_a_client_that_takes_and_vanishes(served):
    with Line(served.number) as line:
        for _ in range(50):
            line.put(ttr=3600)
    for _ in range(20):
        line = Line(served.number)
        line.send(b"reserve\r\n" * 10)
        line.read()
        vanish(line)
    until(lambda: counts(served).ready == 50)
    assert counts(served).leased == 0


def test_clients_that_vanish_at_any_moment_lose_nothing(served):
    """Jobs come all the time; takers vanish while they ask, while they wait and after they took."""
    chance = random.Random(11)
    put: set[int] = set()
    done: set[int] = set()
    is_over = threading.Event()

    def produce() -> None:
        with Line(served.number) as line:
            for _ in range(400):
                put.add(line.put())
                time.sleep(0.001)
        is_over.set()

    def vanish_often(seed: int) -> None:
        own = random.Random(seed)
        # As many as the server can see off before the test is over, on a busy machine too.
        for _ in range(100):
            if is_over.is_set():
                break
            line = Line(served.number)
            line.send(b"reserve\r\n" * own.randrange(1, 5))
            time.sleep(own.random() * 0.01)
            vanish(line)

    threads = [threading.Thread(target=produce)]
    threads += [threading.Thread(target=vanish_often, args=(chance.random(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Line(served.number) as line:
        while (job := line.reserve(1)) is not None:
            assert line.ask(b"delete %d\r\n" % job[0]) == b"DELETED\r\n"
            done.add(job[0])
    assert done == put


@pytest.mark.parametrize(
    "command",
    [b"stats\r\n", b"list-tubes-watched\r\n", b"peek-ready\r\n", b"foo\r\n", b"reserve\r\n"],
)
def test_a_client_that_never_reads_its_replies(served, command):
    with Line(served.number) as line:
        for _ in range(100):
            line.put(b"x" * 100_000)
        before = memory_bytes(os.getpid())
        deaf = Line(served.number)
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.send(b"".join(b"watch %d%b\r\n" % (n, b"w" * 190) for n in range(500)))
        deaf.socket.setblocking(False)
        sent, quiet = 0, 0
        while quiet < 10:
            # In the end the server takes no more.
            if select.select([], [deaf.socket], [], 0.05)[1]:
                sent += deaf.socket.send(command * 1000)
                quiet = 0
            else:
                quiet += 1
            assert sent < 50_000_000
        assert memory_bytes(os.getpid()) - before < 40_000_000
        assert line.ask(b"list-tube-used\r\n") == b"USING default\r\n"
        # When it reads after all, the replies are there.
        deaf.socket.settimeout(10)
        assert deaf.read() == b"WATCHING 2\r\n"
        vanish(deaf)
        until(lambda: counts(served).ready == 100)


def test_what_came_behind_a_reserve_is_counted_until_it_is_done():
    with Served() as served, Line(served.number) as line:
        unparsed = served.service.unparsed
        line.send(b"reserve-with-timeout 60\r\n" + b"stats-tube default\r\n" * 1000)
        until(lambda: 15_000 < unparsed.size_bytes < 40_000)
        with Line(served.number) as other:
            other.ask(b"put 0 0 60 1\r\nx\r\n")
        until(lambda: unparsed.size_bytes == 0)
        assert line.ask(b"list-tube-used\r\n").startswith(b"RESERVED")
        line.send(b"reserve-with-timeout 60\r\n" + b"stats-tube default\r\n" * 1000)
        until(lambda: unparsed.size_bytes)
        vanish(line)
        until(lambda: unparsed.size_bytes == 0)


# --- the disk ---------------------------------------------------------------------------------


def test_a_full_disk_takes_no_jobs_and_gives_those_it_has(tmp_path):
    disk = FaultyDisk()

    def store() -> EmbeddedStore:
        return EmbeddedStore(tmp_path / "store", disk=disk, segment_bytes=1 << 20)

    with Served(store) as served, Line(served.number) as line:
        disk.arm("full", 0)
        put = []
        while (reply := line.ask(b"put 0 0 60 50000\r\n%b\r\n" % (b"x" * 50_000))) != (
            b"OUT_OF_MEMORY\r\n"
        ):
            put.append(int(reply.split()[1]))
            assert len(put) < 1000
        assert len(put) > 3
        assert line.ask(b"put 0 0 60 50000\r\n%b\r\n" % (b"x" * 50_000)) == b"OUT_OF_MEMORY\r\n"
        assert line.ask(b"list-tube-used\r\n") == b"USING default\r\n"
        for number in put:
            assert line.reserve() == (number, b"x" * 50_000)
            assert line.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"
        disk.free()
        line.put(b"x" * 50_000)


def test_a_disk_that_fails_is_an_internal_error_and_loses_nothing_that_was_answered(tmp_path):
    disk = FaultyDisk()
    with (
        Served(lambda: EmbeddedStore(tmp_path / "store", disk=disk)) as served,
        Line(served.number) as line,
    ):
        numbers = [line.put(b"%d" % number) for number in range(10)]
        line.reserve()
        disk.arm("sync", 0)
        for command in (
            b"put 0 0 1 1\r\nx\r\n",
            b"reserve-with-timeout 0\r\n",
            b"delete %d\r\n" % numbers[0],
            b"delete %d\r\n" % numbers[5],
            b"kick-job %d\r\n" % numbers[5],
        ):
            assert line.ask(command) in (b"INTERNAL_ERROR\r\n", b"NOT_FOUND\r\n"), command
    with Served(lambda: EmbeddedStore(tmp_path / "store", disk=disk)) as served:
        page = served.call(served.queue.scan("default", State.READY))
        leased = served.call(served.queue.scan("default", State.LEASED))
        there = {int(m.number) for m in (*page.messages, *leased.messages)}
        # What was not answered may be there or not.
        assert set(numbers[1:5]) | set(numbers[6:]) <= there


_PUT = b"put 0 0 60 1\r\nx\r\n"
_LONG = b"x" * 500


@pytest.mark.parametrize(
    ("begin", "answer"),
    [
        (b"POST / HTTP/1.1\r\nhost: x\r\n\r\n", b""),
        (b"POST /%b HTTP/1.1\r\nhost: x\r\n\r\n" % _LONG, b"BAD_FORMAT\r\n"),
        (
            b"list-tube-used\r\nPOST /%b HTTP/1.1\r\n\r\n" % _LONG,
            b"USING default\r\nBAD_FORMAT\r\n",
        ),
        (b"put %b\r\n" % _LONG, b"BAD_FORMAT\r\n"),
        (b"EHLO x\r\n", b"UNKNOWN_COMMAND\r\n"),
        (b"{}\r\n", b"UNKNOWN_COMMAND\r\n"),
    ],
)
def test_what_speaks_another_protocol_is_hung_up_on(served, begin, answer):
    with Line(served.number) as line:
        line.send(begin + _PUT)
        line.socket.settimeout(10)
        came = b""
        with contextlib.suppress(ConnectionResetError):
            while more := line.socket.recv(1000):
                came += more
        assert came == answer
    assert served.call(served.queue.stats()).topics == {}


def test_a_connection_that_holds_more_than_a_batch_gives_back_all(served):
    count = MAX_BATCH_MESSAGES + 500
    with Line(served.number) as line:
        served.call(served.queue.put_many("default", [b"x"] * MAX_BATCH_MESSAGES, lease="1h"))
        served.call(served.queue.put_many("default", [b"x"] * 500, lease="1h"))
        for _ in range(count // 500):
            replies = line.ask(b"reserve-with-timeout 0\r\n" * 500, 500)
            assert replies.count(b"RESERVED") == 500
        until(lambda: ready_and_leased(served) == (0, count))
    until(lambda: ready_and_leased(served) == (count, 0))


def test_a_reserve_whose_connection_is_gone_gives_back_what_it_took(served):
    for number in range(20):
        line = Line(served.number)
        if number % 2:
            served.call(served.queue.put("default", b"x", lease="1h"))
        line.send(b"reserve\r\n")
        if number % 2 == 0:
            served.call(served.queue.put("default", b"x", lease="1h"))
        vanish(line)
    until(lambda: ready_and_leased(served) == (20, 0))


class Silent:
    """A connection whose other end neither reads nor sends."""

    def write(self, data):
        pass

    close = pause_reading = resume_reading = lambda self: None


async def test_jobs_on_their_way_to_a_connection_that_ends_are_given_back():
    async with asyncio.timeout(PATIENCE_S), Queue(MemoryStore(RealClock())) as queue:
        desk = Desk(Service(queue, Tokens(), InFlight(100, 1 << 28), 0))
        session = desk.welcome(Silent())
        session.feed(b"reserve\r\n")
        while session.wait is None:
            await asyncio.sleep(0)
        await queue.put("default", b"x")
        while not session.wait.done():
            await asyncio.sleep(0)
        session.end()
        while (await queue.stats()).topics["default"].ready == 0:
            await asyncio.sleep(0)
        await desk.settled()


def ready_and_leased(served: Served) -> tuple[int, int]:
    return counts(served).ready, counts(served).leased


async def test_what_one_topic_gave_is_handed_out_when_another_one_fails():
    class Halved(MemoryStore):
        async def take(self, topics, limit, lease_ms, owner):
            if "bad" in topics:
                raise StoreError("this topic is on a disk that is gone")
            return await super().take(topics, limit, lease_ms, owner)

    async with Queue(Halved(RealClock())) as queue:
        await queue.put("bad", "x")
        await queue.put("good", "y")
        batches = await take_best(queue, ("bad", "good"), 10)
        assert [list(batch.bodies) for batch in batches] == [[b"y"]]
        with pytest.raises(StoreError):
            await take_best(queue, ("bad", "good"), 10)


def test_commands_let_others_have_their_turn(served):
    turns = MostInATurn(served.port.desk.hall.commands.total)
    watching = asyncio.run_coroutine_threadsafe(turns.watch(), served.loop)
    with Line(served.number) as line:
        replies = line.ask(b"list-tube-used\r\n" * 4_000, 4_000)
    assert replies == b"USING default\r\n" * 4_000
    watching.cancel()
    assert 0 < turns.most <= 32


def test_the_tubes_of_many_connections_that_go_are_dropped_in_turns(served, monkeypatch):
    chosen, dropped = served.port.desk.hall.chosen, 0
    drop, turns = type(chosen).drop, MostInATurn(lambda: dropped)

    def count(self, tube):
        nonlocal dropped
        dropped += 1
        drop(self, tube)

    async def end(lines):
        for line in lines:
            line.close()

    monkeypatch.setattr(type(chosen), "drop", count)
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Line(served.number)) for _ in range(20)]
        for line in lines:
            line.ask(b"".join(b"watch t%d\r\n" % n for n in range(999)), 999)
        watching = asyncio.run_coroutine_threadsafe(turns.watch(), served.loop)
        # All of them in one turn.
        asyncio.run_coroutine_threadsafe(end(lines), served.loop).result()
        until(lambda: list(chosen) == ["default"] and turns.seen == dropped)
        watching.cancel()
    assert 900 < turns.most <= 2 * 2_000 + 20


def test_refused_commands_of_many_connections_share_a_turn(tmp_path):
    (path := tmp_path / "tokens").write_text('[anonymous]\nput = ["own"]\n')
    with Served(tokens=Tokens.load(path)) as served, contextlib.ExitStack() as stack:
        turns = MostInATurn(served.port.desk.hall.commands.total)
        lines = [stack.enter_context(Line(served.number)) for _ in range(8)]
        watching = asyncio.run_coroutine_threadsafe(turns.watch(), served.loop)
        for line in lines:
            line.send(b"put 0 0 1 1\r\nx\r\n" * 4_000)
        for line in lines:
            assert line.ask(b"", 4_000) == b"UNKNOWN_COMMAND\r\n" * 4_000
        watching.cancel()
    # Two runs in a turn: of the connection whose turn it is, and of one that was read. The watch
    # comes before or after the first, and may see a third between two looks.
    assert 0 < turns.most <= 3_000


@pytest.mark.parametrize("settings", [{"paused": True}, {"most_leased": 1}])
def test_a_job_that_may_not_be_reserved_waits_as_it_did(settings):
    with Served() as served, Line(served.number) as line:
        served.call(served.queue.configure("default", **settings))
        line.put(b"first")
        line.ask(b"reserve-with-timeout 0\r\n")
        number = line.put(b"in an hour", delay=3600)
        assert line.ask(b"reserve-job %d\r\n" % number) == b"NOT_FOUND\r\n"
        stats = line.stats(b"stats-job %d" % number)
        assert stats["state"] == "delayed"
        assert 3590 < int(stats["time-left"]) <= 3600


HELD_BACK = {
    "paused": ({"paused": True}, {}),
    "most_leased": ({"most_leased": 1}, {}),
    "rate": ({"rate": 1}, {}),
    "ordered": ({"ordered": True}, {"key": "k"}),
}


@pytest.mark.parametrize("state", ["buried", "ready", "delayed"])
@pytest.mark.parametrize("limit", HELD_BACK)
def test_a_job_that_is_held_back_is_left_as_it_is(limit, state):
    settings, more = HELD_BACK[limit]
    if limit == "rate" and state == "ready":
        pytest.skip("it may be taken when a second has passed")
    with Served() as served, Line(served.number) as line:
        queue, get = served.queue, lambda: served.call(served.queue.get("default", "held"))

        async def bury() -> None:
            await queue.bury(await queue.take("default"), reason="of old", priority=9)

        served.call(queue.put("default", b"x", id="held", **more))
        if state == "buried":
            served.call(bury())
        served.call(queue.put("default", b"y", id="first", priority=1, **more))
        if state == "delayed":
            served.call(queue.reschedule("default", "held", delay="1h"))
        # Another one of the key, or as many as may be, is taken.
        served.call(queue.take("default"))
        served.call(queue.configure("default", **settings))
        before, done = get(), served.call(queue.stats()).totals
        assert line.ask(b"reserve-job %d\r\n" % before.number) == b"NOT_FOUND\r\n"
        assert get() == before
        # It was not made ready and put back either: a kill in between would leave it ready.
        assert served.call(queue.stats()).totals == done


@pytest.mark.parametrize("state", ["buried", "delayed"])
@pytest.mark.parametrize("limit", ["most_leased", "rate", "ordered"])
def test_a_job_that_is_not_ready_is_not_made_ready_in_a_topic_with_a_limit(limit, state):
    settings, more = HELD_BACK[limit]
    with Served() as served, Line(served.number) as line:
        queue = served.queue

        async def put() -> Message:
            await queue.configure("default", **settings)
            await queue.put("default", b"x", id="held", delay="1h", **more)
            if state == "buried":
                await queue.reschedule("default", "held", delay=0)
                await queue.bury(await queue.take("default"))
            return await queue.get("default", "held")

        before = served.call(put())
        # There is room now, but others may take it before this job is ready.
        assert line.ask(b"reserve-job %d\r\n" % before.number) == b"NOT_FOUND\r\n"
        assert served.call(queue.get("default", "held")) == before


def test_a_job_without_a_key_is_reserved_from_an_ordered_topic_before_it_is_due():
    with Served() as served, Line(served.number) as line:
        served.call(served.queue.configure("default", ordered=True))
        number = line.put(b"x", delay=3600)
        reply = line.ask(b"reserve-job %d\r\n" % number)
        assert reply == b"RESERVED %d 1\r\nx\r\n" % number


class MovedMeanwhile(MemoryStore):
    """A store in which another client moves a job just before or after a verb reaches it."""

    verb = ""
    due_ms = 0

    async def _meet(self, verb: str, topic: str, ids: Sequence[bytes]) -> None:
        if verb == self.verb:
            self.verb = ""
            due_ms = np.full(len(ids), self.due_ms, np.int64)
            assert list(await super().reschedule(topic, ids, due_ms)) == [Result.MOVED]

    async def get(self, topic, ids):
        found = await super().get(topic, ids)
        await self._meet("get", topic, ids)
        return found

    async def reschedule(self, topic, ids, due_ms, versions=None):
        await self._meet("reschedule", topic, ids)
        return await super().reschedule(topic, ids, due_ms, versions)

    async def take_ids(self, topic, ids, *how):
        await self._meet("take_ids", topic, ids)
        return await super().take_ids(topic, ids, *how)


@pytest.mark.parametrize(
    ("command", "verb"),
    [(b"reserve-job", verb) for verb in ("get", "reschedule", "take_ids")]
    + [(b"kick-job", verb) for verb in ("get", "reschedule")],
)
def test_a_due_that_another_client_sets_meanwhile_stays(command, verb):
    store = MovedMeanwhile(RealClock())
    with Served(lambda: store) as served, Line(served.number) as line:
        queue = served.queue
        number = line.put(b"in an hour", delay=3600)
        store.due_ms, store.verb = queue.clock.now_ms() + 36_000_000, verb
        assert line.ask(b"%b %d\r\n" % (command, number)) == b"NOT_FOUND\r\n"
        assert store.verb == ""
        (name,) = served.call(queue.named([number]))
        assert served.call(queue.get(*name)).due_ms == store.due_ms


def test_a_kick_brings_back_as_many_as_are_asked_for_however_large():
    with Served() as served, Line(served.number) as line:

        async def bury() -> None:
            for _ in range(40):
                await served.queue.put("default", b"x" * 1_000_000)
            while len(batch := await served.queue.take("default", 40)):
                await served.queue.bury(batch)

        served.call(bury())
        assert line.ask(b"kick 38\r\n") == b"KICKED 38\r\n"
        assert line.stats(b"stats-tube default")["current-jobs-buried"] == "2"


def test_a_damaged_job_hides_no_other(tmp_path):
    """The first delayed and the first buried job are damaged, and the next are shown."""
    folder = tmp_path / "store"

    def opened():
        return EmbeddedStore(folder)

    with Served(opened) as served, Line(served.number) as line:
        for number, state in enumerate(["delayed", "delayed", "buried", "buried"]):
            body = b"%s job %d" % (state.encode(), number)
            line.put(body, delay=3600 + number if state == "delayed" else 0)
            if state == "buried":
                job, _ = line.reserve()
                assert line.ask(b"bury %d 1\r\n" % job) == b"BURIED\r\n"
    flip(folder, b"delayed job 0")
    flip(folder, b"buried job 2")
    with Served(opened) as served, Line(served.number) as line:
        for state, number in ((b"delayed", 1), (b"buried", 3)):
            answer = line.ask(b"peek-%s\r\n" % state)
            assert answer.endswith(b"\r\n%s job %d\r\n" % (state, number))
