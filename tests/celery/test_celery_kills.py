"""Workers of Celery, servers and Redis that are killed: no task is lost, and none runs early."""

import signal
import time

import pytest

from tests.celery.client import client_of, counts, store_of
from tests.celery.workers import WorkerProcess
from tests.redis.servers import redis_server
from tests.spark.conftest import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.campaign


@pytest.fixture(params=["server", "redis"])
def server(request, tmp_path):
    """A server, or a Redis with its disk, which a test may kill and start again."""
    if request.param == "redis":
        with redis_server(appendonly="yes", appendfsync="always") as server:
            yield server
        return
    server = ServerProcess(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def started(server, tmp_path):
    """Return a function that starts workers, each ended with the test."""
    workers = []

    def start(*options, name="worker", **settings):
        folder = tmp_path / name
        folder.mkdir()
        workers.append(WorkerProcess(folder, server.url, *options, **settings))
        return workers[-1]

    yield start
    for worker in workers:
        if worker.process.poll() is None:
            worker.kill()


def begun_and_ended(worker):
    notes = worker.notes()
    begun = {words[1] for words in notes if words[0] == "begins"}
    return begun, {words[1] for words in notes if words[0] == "ends"}


def test_tasks_of_a_killed_worker_are_run_by_the_next(started):
    worker = started(lease="2s")
    names = {f"task-{number}" for number in range(30)}
    with client_of(worker) as client, store_of(worker) as queue:
        for name in names:
            client.send("late", name, 0.2)
        for kills in range(3):
            until(lambda most=3 * kills: len(begun_and_ended(worker)[1]) > most)
            worker.kill()
            worker.start()
        until(lambda: begun_and_ended(worker)[1] == names)
        until(lambda: counts(queue) == (0, 0, 0, 0), lambda: queue.stats().topics)
    # Only what had begun when its worker was killed has begun twice, and was told so: two tasks
    # that ran, and tasks that had ended whose acks were still to be sent.
    begins = [words for words in worker.notes() if words[0] == "begins"]
    assert len(begins) <= len(names) + 3 * (2 + 2)
    again = [words[1] for words in begins if words[2] == "False"]
    assert len(again) == len(set(again))


def test_countdowns_outlive_the_worker_and_the_client(started):
    worker = started(lease="2s")
    sent_s = time.time()
    with client_of(worker) as client:
        for number in range(10):
            client.send("noted", f"{number}", countdown=4)
    worker.kill()
    worker.start()
    until(lambda: len(worker.notes()) == 10)
    assert all(float(at_s) >= sent_s + 4 for _, at_s in worker.notes())
    assert len({name for name, _ in worker.notes()}) == 10


def test_a_worker_that_ends_gives_back_at_once_what_it_had_not_begun(started):
    """Its leases would last for an hour."""
    worker = started(lease="1h", prefetch="10")
    with client_of(worker) as client, store_of(worker) as queue:
        for number in range(20):
            client.send("late", f"task-{number}", 1)
        until(lambda: len(begun_and_ended(worker)[0]) == 2)
        worker.stop()
        begun, ended = begun_and_ended(worker)
        assert begun == ended
        assert counts(queue) == (0, 20 - len(begun), 0, 0)


def test_two_workers_share_what_there_is(started):
    """What one has taken ahead goes back when a long task comes, and the other has it."""
    worker = started(lease="1h", prefetch="1")
    second = started("-n", "second@%h", name="second", lease="1h", prefetch="1")
    with client_of(worker) as client:
        for number in range(300):
            client.send("noted", f"short-{number}")
        for number in range(4):
            client.send("late", f"long-{number}", 4)
        for number in range(300):
            client.send("noted", f"after-{number}")
        every = 600
        until(
            lambda: (
                sum(len(w.notes()) - len(begun_and_ended(w)[0]) for w in (worker, second)) >= every
            ),
        )


def test_a_server_that_is_killed_costs_no_task(server, started):
    worker = started(lease="5s")
    names = {f"task-{number}" for number in range(30)}
    with client_of(worker) as client:
        for number, name in enumerate(sorted(names)):
            client.send("late", name, 0.1, countdown=number % 3)
        until(lambda: len(begun_and_ended(worker)[1]) > 3)
        server.kill()
        time.sleep(1)
        server.start()
        until(lambda: begun_and_ended(worker)[1] == names)
        assert worker.process.poll() is None
    with store_of(worker) as queue:
        until(lambda: counts(queue) == (0, 0, 0, 0), lambda: queue.stats().topics)


def test_a_worker_waits_for_a_server_that_is_away(server, started):
    worker = started()
    server.kill()
    server.start()
    with client_of(worker) as client:
        assert client.send("add", 20, 22).get(timeout=60) == 42
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(60) == 0


def test_results_come_by_rpc(started):
    """Celery keeps the results in the queue of whoever waits for them."""
    worker = started(results="rpc://")
    with client_of(worker) as client:
        results = [client.send("add", number, 1) for number in range(10)]
        assert [one.get(timeout=60) for one in results] == list(range(1, 11))
