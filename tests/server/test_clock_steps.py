"""A server whose clock is set while it runs: who waits gets what fell due."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dwell
from tests.beanstalk.served import Line
from tests.http.wire import request
from tests.server.process import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.campaign

HOUR_S = 3_600
#: A second is what is promised, and what a quiet machine shows; a busy one may take longer.
#: Without the promise it takes a minute.
PATIENCE_S = 30
WAIT_MS = 60_000

#: Each way to wait for a message of a topic: it returns the body of the first one that comes.
WAYS = ("poll", "push", "client", "reserve")


class SteppedServer:
    """``dwell serve`` whose wall clock is set while it runs, by libfaketime."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ahead"
        self.step(0)
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        env = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.process = ServerProcess("--beanstalk", "127.0.0.1:0", store=folder / "store", env=env)

    def step(self, ahead_s: int) -> None:
        """Let the clock be so many seconds ahead of the true time."""
        # It is read at every look at the clock, so it must never be empty.
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}")
        new.rename(self._file)

    def address(self, port: str) -> tuple[str, int]:
        host, number = self.process.ready()[port].rsplit(":", 1)
        return host, int(number)

    def waiting(self) -> int:
        """Return how many takers wait, by every way."""
        text = self.process.ask("GET", "/metrics")[1].decode()
        lines = [line for line in text.splitlines() if line.startswith("dwell_waiting_takers")]
        # The server itself waits for schedules that fall due.
        lines = [line for line in lines if "dwell:schedules" not in line]
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)


@pytest.fixture
def server(tmp_path) -> Iterator[SteppedServer]:
    server = SteppedServer(tmp_path)
    with server.process:
        server.process.ready()
        yield server


class Waiter:
    """Somebody who waits for a message of a topic in one of the ways, in a thread of his own."""

    def __init__(self, server: SteppedServer, way: str, topic: str) -> None:
        self.way, self.topic = way, topic
        self.got = threading.Event()
        self.at_s = 0.0
        self._server = server
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            if getattr(self, f"_{self.way}")():
                self.at_s = time.monotonic()
                self.got.set()

    def _poll(self) -> bool:
        return bool(self._server.process.take(self.topic, WAIT_MS)[1]["messages"])

    def _client(self) -> bool:
        with dwell.open(self._server.process.url("")) as queue:
            return bool(len(queue.take(self.topic, wait=f"{WAIT_MS}ms")))

    def _reserve(self) -> bool:
        with Line(self._server.address("beanstalk")[1], timeout=60) as line:
            line.ask(b"watch %b\r\nignore default\r\n" % self.topic.encode(), 2)
            return line.reserve(60) is not None

    def _push(self) -> bool:
        with socket.create_connection(self._server.address("http"), 60) as stream:
            stream.sendall(request("POST", "/v1/push", {"topics": self.topic, "credit": 1}))
            data = b""
            while b"event: messages" not in data:
                data += stream.recv(1 << 16) or b"event: messages"
            return b'"receipt"' in data


def wait_all(server: SteppedServer) -> list[Waiter]:
    """Let somebody wait in each way for each kind of message."""
    kinds = ("due", "leased")
    return [Waiter(server, way, f"{way}.{kind}") for way in WAYS for kind in kinds]


def fill(server: SteppedServer) -> None:
    """Put, for each way, a message that is due in half an hour, and one whose lease ends then."""
    with dwell.open(server.process.url("")) as queue:
        for way in WAYS:
            queue.put(f"{way}.due", "x", delay="30m")
            queue.put(f"{way}.leased", "x")
            assert len(queue.take(f"{way}.leased", lease="30m")) == 1


def check_all_get_theirs(waiters: list[Waiter]) -> None:
    stepped_s = time.monotonic()
    for waiter in waiters:
        left_s = stepped_s + PATIENCE_S - time.monotonic()
        assert waiter.got.wait(max(left_s, 0)), f"{waiter.way}: nothing of {waiter.topic}"
    print(f"the last one got his {max(each.at_s for each in waiters) - stepped_s:.3f} s later")


def until_waiting(server: SteppedServer, count: int) -> None:
    until(lambda: server.waiting() == count, seconds=30)


def test_takers_get_what_falls_due_at_a_step_forward(server):
    fill(server)
    waiters = wait_all(server)
    until_waiting(server, len(waiters))
    server.step(HOUR_S)
    check_all_get_theirs(waiters)


def test_takers_get_what_fell_due_while_nobody_waited(server):
    fill(server)
    server.step(HOUR_S)
    check_all_get_theirs(wait_all(server))


def test_takers_get_what_falls_due_after_a_step_back_and_forth(server):
    server.step(-HOUR_S)
    fill(server)
    waiters = wait_all(server)
    until_waiting(server, len(waiters))
    server.step(-2 * HOUR_S)
    # It has looked at the clock when it says what time it is.
    while server.process.ask("GET", "/v1/store")[1]["now_ms"] > (time.time() - HOUR_S) * 1000:
        time.sleep(0.01)
    time.sleep(1.2)
    assert not any(waiter.got.is_set() for waiter in waiters)
    server.step(0)
    check_all_get_theirs(waiters)


def test_a_step_back_makes_no_wait_and_no_pause_longer(server):
    with (
        Line(server.address("beanstalk")[1], timeout=30) as line,
        Line(server.address("beanstalk")[1], timeout=30) as other,
    ):
        line.ask(b"use t\r\nwatch t\r\nignore default\r\n", 3)
        other.ask(b"use t\r\n")
        # It was due long before the clock that comes.
        server.process.ask("POST", "/v1/topics/t/messages", {"body": "x", "due_ms": 1000})
        assert other.ask(b"pause-tube t 8\r\n") == b"PAUSED\r\n"
        line.send(b"reserve-with-timeout 20\r\n")
        until(lambda: other.stats(b"stats-tube t")["current-waiting"] == "1", seconds=30)
        server.step(-HOUR_S)
        assert line.read().startswith(b"RESERVED ")
        line.send(b"reserve-with-timeout 8\r\n")
        until(lambda: other.stats(b"stats-tube t")["current-waiting"] == "1", seconds=30)
        server.step(-2 * HOUR_S)
        assert line.read() in (b"TIMED_OUT\r\n", b"DEADLINE_SOON\r\n")
