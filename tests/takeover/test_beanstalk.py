"""What waits in a beanstalkd moves into a queue, and nothing is lost, doubled or early."""

import asyncio
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import greenstalk
import pytest

import dwell
from dwell.clock import RealClock
from dwell.errors import InvalidInput, InvalidUrl, ServerUnreachable, StoreError
from dwell.message import MAX_BODY_BYTES, MAX_DELAY_MS, State
from dwell.takeover.beanstalk import BeanstalkPlace
from dwell.takeover.process import run
from dwell.takeover.takeover import Takeover
from tests.beanstalk.served import beanstalkd
from tests.server.process import ServerProcess
from tests.spark.conftest import ServerProcess as StoreServer
from tests.waiting import until

JOBS = 3_000


@pytest.fixture
def number():
    with beanstalkd(most_bytes=2 * MAX_BODY_BYTES) as number:
        yield number


@pytest.fixture
def client(number):
    with greenstalk.Client(("127.0.0.1", number), encoding=None) as client:
        yield client


def address(number, *tubes):
    return f"beanstalk://127.0.0.1:{number}?" + "&".join(f"tube={tube}" for tube in tubes)


def moved(folder, url, **how):
    return run(str(folder), url, tell=lambda report: None, **how)


def fill(client, tube="orders", count=JOBS):
    client.use(tube)
    for at in range(count):
        client.put(b"%d" % at, at % 9, 3_600 if at % 3 else 0, 1 + at % 100)


def test_all_that_waits_moves_as_it_is(client, number, tmp_path):
    fill(client)
    client.use("mails")
    client.put(b"", delay=100)
    before_ms = time.time_ns() // 1_000_000
    report = moved(tmp_path, address(number))
    after_ms = time.time_ns() // 1_000_000
    assert (report.moved, report.put["created"]) == (JOBS + 1, JOBS + 1)
    assert report.balances
    assert report.is_whole
    assert report.left.here == 0
    with dwell.open(tmp_path) as queue:
        assert [m.body for m in queue.scan("mails", "delayed").messages] == [b""]
        found = [
            message
            for state in (State.DELAYED, State.READY)
            for page in queue.pages("orders", state)
            for message in page
        ]
    assert sorted(int(m.body) for m in found) == list(range(JOBS))
    for message in found:
        at = int(message.body)
        assert message.priority == at % 9
        assert message.lease_ms == (1 + at % 100) * 1000
        if at % 3:
            assert message.state is State.DELAYED
            assert message.due_ms <= after_ms + 3_601_000
            assert message.due_ms >= before_ms + 3_600_000 - 60_000
        else:
            assert message.due_ms <= after_ms


def test_a_delayed_job_is_never_early(client, number, tmp_path):
    client.use("orders")
    ends = {}
    for delay in range(6, 10):
        for _ in range(20):
            job = client.put(b"", delay=delay)
            ends[job] = time.time_ns() // 1_000_000 + delay * 1000 - 1
    moved(tmp_path, address(number))
    with dwell.open(tmp_path) as queue:
        for message in queue.scan("orders", "delayed").messages:
            due_ms = ends[int(message.id.rpartition("-")[2])]
            # The server's own second, and the time that a put takes to be answered.
            assert due_ms - 1000 <= message.due_ms <= due_ms + 2_500


def test_what_falls_due_soon_is_waited_for(client, number, tmp_path):
    client.use("orders")
    for delay in (0, 1, 2):
        client.put(b"%d" % delay, delay=delay)
    assert moved(tmp_path, address(number)).moved == 3
    with dwell.open(tmp_path) as queue:
        assert sorted(m.body for m in queue.take("orders", 10)) == [b"0", b"1", b"2"]


def test_what_others_hold_or_have_buried_stays(client, number, tmp_path):
    fill(client, count=10)
    client.watch("orders")
    held, buried = client.reserve(), client.reserve()
    client.bury(buried)
    report = moved(tmp_path, address(number))
    assert report.moved == 8
    assert (report.left.leased, report.left.dead) == (1, 1)
    assert report.balances
    client.delete(held)


def test_only_the_tubes_that_are_named_move(client, number, tmp_path):
    for tube in ("a", "b", "c"):
        fill(client, tube, 5)
    assert moved(tmp_path, address(number, "a", "b"), into="all").moved == 10
    with dwell.open(tmp_path) as queue:
        assert set(queue.stats().topics) == {"all"}
    assert client.stats_tube("c")["total-jobs"] == 5


def test_a_tube_that_is_named_twice_is_counted_once(client, number, tmp_path):
    client.use("orders")
    client.put(b"")
    report = moved(tmp_path, address(number, "orders", "orders"))
    assert (report.found.ready, report.moved, report.gone) == (1, 1, 0)


def test_a_dry_run_counts_and_moves_nothing(client, number, tmp_path):
    fill(client, count=9)
    report = moved(tmp_path, address(number), dry_run=True)
    assert (report.found.delayed, report.found.ready, report.moved) == (6, 3, 0)
    told = client.stats()
    assert (told["cmd-put"], told["total-jobs"], told["cmd-delete"]) == (9, 9, 0)


def test_what_a_killed_takeover_left_for_itself_is_deleted(client, number, tmp_path):
    """Jobs of others in its tube stay there."""
    fill(client, count=9)
    client.use("dwell-takeover")
    for body in (b"", b"", b"others"):
        client.put(body, 0, 3_600, 1)
    client.put(b"", 0, 0, 60)
    report = moved(tmp_path, address(number), dry_run=True)
    assert (report.found.delayed, report.found.ready) == (6, 3)
    assert client.stats_tube("dwell-takeover")["current-jobs-delayed"] == 3
    report = moved(tmp_path, address(number))
    assert (report.moved, report.balances, report.is_whole) == (9, True, True)
    told = client.stats_tube("dwell-takeover")
    assert (told["current-jobs-delayed"], told["current-jobs-ready"]) == (1, 1)
    with dwell.open(tmp_path) as queue:
        assert list(queue.stats().topics) == ["orders"]


def test_what_is_too_large_stays_and_stops_nothing(client, number, tmp_path):
    client.use("orders")
    client.put(b"x" * (MAX_BODY_BYTES + 1))
    client.put(b"y" * (MAX_BODY_BYTES + 1), delay=3600)
    client.put(b"z" * MAX_BODY_BYTES)
    report = moved(tmp_path, address(number))
    assert (report.moved, report.held_back) == (1, 2)
    assert (report.left.ready, report.left.delayed) == (1, 1)
    assert report.balances
    assert not report.is_whole


def test_a_huge_job_holds_up_no_other(tmp_path):
    size = (1 << 28) + 1
    with beanstalkd(most_bytes=1 << 30) as number:
        with socket.create_connection(("127.0.0.1", number)) as peer:
            peer.sendall(b"put 1 3600 60 %d\r\n" % size)
            for _ in range(1 << 8):
                peer.sendall(b"x" * (1 << 20))
            peer.sendall(b"x\r\nput 1 3600 60 1\r\ny\r\n")
            until(lambda: b"INSERTED 2" in peer.recv(100))
        report = moved(tmp_path, address(number))
    assert (report.moved, report.held_back, report.left.delayed) == (1, 1, 1)
    assert report.balances


def test_a_tube_that_can_be_no_topic_needs_another_name(client, number, tmp_path):
    fill(client, "a/b", 1)
    with pytest.raises(InvalidUrl, match=r"tube 'a/b': needs --into"):
        moved(tmp_path, address(number))
    assert moved(tmp_path, address(number), into="a.b").moved == 1


@pytest.mark.parametrize("url", ["beanstalk://", "beanstalk://h/x", "beanstalk://h?tub=x"])
def test_a_bad_address_is_refused(url, tmp_path):
    with pytest.raises(InvalidInput, match=r"url: got .* expected beanstalk://HOST:PORT"):
        moved(tmp_path, url)


def test_a_server_that_is_not_there_is_told(tmp_path):
    with pytest.raises(StoreError, match=r"beanstalkd at 127\.0\.0\.1:1: "):
        moved(tmp_path, "beanstalk://127.0.0.1:1")


def test_a_server_of_another_kind_is_told(tmp_path):
    with ServerProcess(store=tmp_path / "other") as server:
        place = server.url("").removeprefix("http://")
        with pytest.raises(StoreError, match="it is none, as it said b'HTTP"):
            moved(tmp_path / "own", f"beanstalk://{place}")


@pytest.mark.parametrize(
    "answer",
    [
        b"\r\n",
        b"x" * 100_000 + b"\r\n",
        b"OK\r\n",
        b"OK -10\r\n",
        b"OK 99999999999\r\n",
        b"OK 29\r\n---\nid: abcd\nmax-job-size: 0\n\r\n",
        b"OK 34\r\n---\nid: a \xff b\nmax-job-size: 65535\n\r\n",
    ],
)
def test_what_no_beanstalkd_answers_is_told(answer, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:

        def say():
            peer = listener.accept()[0]
            with peer:
                peer.recv(100)
                peer.sendall(answer)
                peer.recv(1)

        said = pool.submit(say)
        told = "no beanstalkd answers so: |it is none, as it said "
        with pytest.raises(ServerUnreachable, match=told):
            moved(tmp_path, f"beanstalk://127.0.0.1:{listener.getsockname()[1]}")
        said.result()


def test_the_first_answer_that_is_not_understood_is_the_cause(tmp_path):
    """What comes after it may be the rest of it."""
    names = [f"current-jobs-{one}" for one in ("delayed", "ready", "reserved", "buried")]
    counts = "".join(f"{name}: 0\n" for name in (*names, "total-jobs", "cmd-delete"))
    lists = [f"---\n{text}".encode() for text in ("id: abcd\nmax-job-size: 65535\n", counts)]
    lists = [b"OK %d\r\n%b\r\n" % (len(one), one) for one in lists]
    answers = [lists[0], b"WATCHING 1\r\n", lists[1], b"OK 99999999999\r\n", b"x" * 100]
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:

        def say():
            peer = listener.accept()[0]
            with peer:
                for answer in answers:
                    peer.recv(1_000)
                    peer.sendall(answer)

        said = pool.submit(say)
        with pytest.raises(ServerUnreachable, match="99999999999 bytes"):
            moved(tmp_path, f"beanstalk://127.0.0.1:{listener.getsockname()[1]}?tube=a")
        said.result()


def test_a_server_that_drains_itself_is_emptied(client, number, tmp_path):
    fill(client, count=300)
    client.use("mails")
    client.put(b"", delay=100)
    os.kill(client.stats()["pid"], signal.SIGUSR1)
    until(lambda: client.stats()["draining"] in ("true", True))
    report = moved(tmp_path, address(number, "orders", "mails"))
    assert (report.moved, report.left.here) == (301, 0)
    assert report.balances
    assert report.is_whole


def test_a_delay_that_means_never_holds_up_no_other(client, number, tmp_path):
    client.use("orders")
    for delay in (0, 2**32 - 1, 3_600):
        client.put(b"%d" % delay, delay=delay)
    server = StoreServer(tmp_path)
    try:
        assert moved(server.url, address(number)).moved == 3
        now_ms = time.time_ns() // 1_000_000
        with dwell.open(server.url) as queue:
            latest = max(one.due_ms for one in queue.scan("orders", "delayed").messages)
    finally:
        server.stop()
    day_ms = 24 * 3_600_000
    assert now_ms + MAX_DELAY_MS - 2 * day_ms < latest <= now_ms + MAX_DELAY_MS


def test_a_job_that_is_given_back_with_a_delay_is_not_early(client, number, tmp_path):
    """A worker has it between the look and the reservation of the takeover."""

    class Slow(BeanstalkPlace):
        async def _look(self, numbers):
            jobs = await super()._look(numbers)
            looks.append(jobs)
            # The first finds the job, and the second is that of the reservation.
            if len(looks) == 2:
                client.release(client.reserve(), delay=3_600)
            return jobs

    async def moving():
        async with dwell.open(tmp_path) as queue:
            place = Slow(address(number, "orders"), RealClock())
            return await Takeover(place, queue, lambda report: None).run()

    looks = []
    fill(client, count=1)
    client.watch("orders")
    before_ms = time.time_ns() // 1_000_000
    assert asyncio.run(moving()).moved == 1
    with dwell.open(tmp_path) as queue:
        (message,) = queue.scan("orders", "delayed").messages
    assert len(looks) > 2
    assert message.due_ms >= before_ms + 3_600_000 - 1_000


def test_a_second_run_puts_nothing_twice(client, number, tmp_path):
    """The first one dies after it has put what it then cannot delete."""

    class Dying(BeanstalkPlace):
        async def let_go(self, load, places):
            raise KeyboardInterrupt

    async def die():
        place = Dying(address(number), RealClock())
        async with dwell.open(tmp_path) as queue:
            await Takeover(place, queue, lambda report: None).run()

    fill(client, count=100)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(die())
    report = moved(tmp_path, address(number))
    assert report.moved == 100
    assert report.put["kept"] > 0
    assert report.balances
    with dwell.open(tmp_path) as queue:
        counts = queue.stats().topics["orders"]
    assert counts.ready + counts.delayed == 100


@pytest.mark.campaign
def test_workers_there_and_here_do_each_job_once(client, number, tmp_path):
    """Both go on working while it moves."""
    done: list[int] = []
    jobs = 600

    async def work_there(stop):
        def one():
            try:
                job = worker.reserve(timeout=0)
            except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError):
                return
            worker.delete(job)
            done.append(int(job.body))

        while not stop.is_set():
            await asyncio.to_thread(one)

    async def work_here(queue, stop):
        while not stop.is_set():
            batch = await queue.take("orders", 50, wait="100ms")
            results = await queue.ack(batch) if len(batch) else []
            assert all(str(result) == "acked" for result in results)
            done.extend(int(body) for body in batch.bodies)

    async def both():
        stop = asyncio.Event()
        async with dwell.open(tmp_path) as queue:
            workers = [asyncio.create_task(work_there(stop))]
            workers += [asyncio.create_task(work_here(queue, stop))]
            place = BeanstalkPlace(address(number), RealClock())
            report = await Takeover(place, queue, lambda report: None).run()
            while len(done) < jobs:
                await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*workers)
        return report

    client.use("orders")
    for at in range(jobs):
        client.put(b"%d" % at, 5, 0 if at % 2 else 1 + at % 4)
    with greenstalk.Client(("127.0.0.1", number), encoding=None, watch=["orders"]) as worker:
        report = asyncio.run(asyncio.wait_for(both(), 60))
    assert sorted(done) == list(range(jobs))
    assert report.balances
    assert report.found.gone + report.gone + report.moved == jobs
