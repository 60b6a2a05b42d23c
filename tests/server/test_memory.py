"""A server that may have little memory: it refuses in time, answers everybody, and does not end."""

import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.server.process import COMMAND, ServerProcess

#: What the process may have beyond what it has when it does nothing.
ROOM_BYTES = 90 << 20
SECONDS = 8
_BODY = "x" * 4000


def address_space_bytes(process: int) -> int:
    """Return how much of the address space a process has, which is what a limit counts."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[0])
    return pages * 4096


@pytest.fixture(scope="module")
def limit_bytes(tmp_path_factory) -> int:
    with ServerProcess(store=tmp_path_factory.mktemp("idle") / "store") as server:
        server.ready()
        return address_space_bytes(server.process.pid) + ROOM_BYTES


class Load:
    """Threads that ask for what takes much memory; ``statuses`` counts the answers."""

    def __init__(self, server: ServerProcess) -> None:
        host, number = server.ready()["http"].rsplit(":", 1)
        self._address = host, int(number)
        self._ends_at = time.monotonic() + SECONDS
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.unanswered: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(12)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        receipts: list[str] = []
        while time.monotonic() < self._ends_at:
            verb, path, body = self._ask(chance, receipts)
            try:
                data = self._call(verb, path, body)
            except TimeoutError:
                self.unanswered["no answer in time"] += 1
                return
            except (OSError, http.client.HTTPException) as error:
                self.unanswered[type(error).__name__] += 1
                continue
            if path == "/v1/take" and b'"messages"' in data:
                receipts += [each["receipt"] for each in json.loads(data)["messages"]]

    def _ask(self, chance: random.Random, receipts: list[str]) -> tuple[str, str, object]:
        kind = chance.choice(("put", "large put", "take", "ack", "list", "stats"))
        if kind == "put":
            return "POST", "/v1/topics/t/messages", [{"body": _BODY}] * 100
        if kind == "large put":
            return "POST", "/v1/topics/t/messages", [{"body": _BODY}] * 3000
        if kind == "take":
            return "POST", "/v1/take", {"topics": "t", "limit": 3000, "lease": "1h"}
        if kind == "ack" and receipts:
            some, receipts[:] = receipts[:1000], receipts[1000:]
            return "POST", "/v1/ack", {"receipts": some}
        if kind == "list":
            return "GET", "/v1/topics/t/messages?state=ready&limit=3000", None
        return "GET", "/v1/stats", None

    def _call(self, verb: str, path: str, body: object) -> bytes:
        connection = http.client.HTTPConnection(*self._address, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(verb, path, data, {"content-type": "application/json"})
            answer = connection.getresponse()
            found = answer.read()
            self.statuses[verb + " " + path.split("?")[0], answer.status] += 1
            return found
        finally:
            connection.close()


@pytest.mark.campaign
def test_a_server_with_little_memory_refuses_in_time(tmp_path, limit_bytes):
    limited = ["sh", "-c", f'ulimit -v {limit_bytes // 1024}; exec "$@"', "sh", *COMMAND]
    given = ["serve", str(tmp_path / "store"), "--http", "127.0.0.1:0", "--beanstalk", "off"]
    with ServerProcess(command=[*limited, *given, "--log-format", "json"]) as server:
        load = Load(server)
        load.run()
        print(load.statuses, load.unanswered, server.other[-5:], file=sys.stderr)
        assert server.process.poll() is None, server.other[-20:]
        found = {status for _, status in load.statuses}
        assert 200 in found
        failures = [line for line in server.logs if line.get("level") == "error"]
        assert found <= {200, 429, 503, 507}, failures[-3:]
        assert not load.unanswered
        assert server.ask("GET", "/healthz")[0] == 200


def test_threads_take_no_address_space_where_it_is_limited():
    """The C library reserves 64 MiB for each thread, of which a few would take all there is."""
    code = """
import os, resource, threading
from pathlib import Path
from dwell.server.allocator import keep_memory

def used():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
keep_memory()
threading.stack_size(1 << 20)
before, there, go = used(), threading.Barrier(9), threading.Event()

def work():
    kept = [bytearray(1000) for _ in range(100)]
    there.wait()
    go.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
there.wait()
print(used() - before)
go.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 << 20
