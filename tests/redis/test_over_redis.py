"""What stands on a store, on Redis: server and client, worker, command line."""

import asyncio
import json
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dwell
from dwell.worker import Worker
from tests.http.served import ServedStore
from tests.http.test_http_suite import Groups
from tests.redis.servers import redis_server
from tests.redis.test_redis_suite import new_store
from tests.server.process import ServerProcess

DWELL = str(Path(sys.executable).with_name("dwell"))


@pytest.mark.campaign
class TestServedRedis(Groups):
    @pytest.fixture(autouse=True)
    def server(self, redis_url):
        self.url = redis_url

    async def make_store(self, clock):
        return ServedStore(new_store(self.url, clock))


@pytest.fixture
def own_url(redis_url):
    return f"{redis_url}?prefix={uuid.uuid4().hex}"


def run(url: str, *words: str, given: str = "") -> str:
    done = subprocess.run(
        [DWELL, "--store", url, *words], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_line(own_url):
    run(own_url, "put", "orders", "hello", "--id", "o1", "--delay", "1h")
    assert "o1" in run(own_url, "list", "orders")
    run(own_url, "reschedule", "orders", "o1", "--delay", "0s")
    taken = json.loads(run(own_url, "--json", "take", "orders").splitlines()[0])
    assert taken["id"] == "o1"
    assert "acked" in run(own_url, "ack", taken["receipt"])
    assert "orders" in run(own_url, "stats")


def test_worker(own_url):
    done: list[str] = []

    async def play() -> None:
        async with dwell.open(own_url) as queue:
            worker = Worker(queue)

            @worker.on("jobs")
            async def handle(message: dwell.Message) -> None:
                done.append(message.id)
                if len(done) == 100:
                    worker.stop()

            await queue.put_many("jobs", ["x"] * 100, ids=[f"j{n}" for n in range(100)])
            await asyncio.wait_for(worker.serve(), 30)
            assert (await queue.stats()).totals["ack"] == 100

    asyncio.run(play())
    assert sorted(done) == sorted(f"j{n}" for n in range(100))


def test_two_servers_share_one_store(own_url, tmp_path):
    """What is put into one is given out by the other, also to who waits there already."""
    with (
        ServerProcess(store=own_url, cwd=tmp_path) as one,
        ServerProcess(store=own_url, cwd=tmp_path) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        one.ready(), other.ready()
        waiting = threads.submit(other.take, "t", 10_000)
        time.sleep(0.3)
        start = time.monotonic()
        assert one.put("t", "hello")[0] == 200
        status, answer = waiting.result()
        assert status == 200
        assert [message["body"] for message in answer["messages"]] == ["hello"]
        assert time.monotonic() - start < 9
        assert (one.stop(), other.stop()) == (0, 0)


def test_a_server_hides_the_password(tmp_path):
    with (
        redis_server(requirepass="secret") as engine,
        ServerProcess(store=engine.url, cwd=tmp_path) as server,
    ):
        assert "secret" not in json.dumps(server.ready())
        assert server.stop() == 0
        assert not any("secret" in json.dumps(line) for line in server.logs)


def test_a_backup_is_refused_without_the_password(tmp_path):
    with redis_server(requirepass="opensesame") as server:
        url = f"redis://:opensesame@127.0.0.1:{server.port}/0"
        done = subprocess.run(
            [DWELL, "--store", url, "backup", str(tmp_path / "copy")],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("InvalidUrl: url: got 'redis://***@127.0.0.1:")
    assert "opensesame" not in done.stderr
