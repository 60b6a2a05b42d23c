"""What tasks of Celery do over a server and over a Redis, with real workers."""

import contextlib
import time
import uuid

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from tests.celery.client import client_of, counts, store_of
from tests.celery.workers import WorkerProcess
from tests.waiting import PATIENCE_S, until


@pytest.fixture(
    scope="module", params=[("server", "prefork"), ("redis", "prefork"), ("server", "gevent")]
)
def worker(request, tmp_path_factory):
    store, pool = request.param
    url = request.getfixturevalue(f"{store}_url")
    worker = WorkerProcess(tmp_path_factory.mktemp("worker"), url, "-P", pool, lease="2s")
    yield worker
    worker.stop()


@pytest.fixture
def client(worker):
    with client_of(worker) as client:
        yield client


def answer(result):
    return result.get(timeout=PATIENCE_S, interval=0.05)


def test_canvases_of_tasks_come_to_their_results(client):
    """Chords and groups count in the result backend, so they are as exact as that is."""
    add, total = client.task("add"), client.task("total")
    assert answer(client.send("add", 1, 2)) == 3
    assert answer(chain(client.task("add", 1, 2), add.clone((3,)))()) == 6
    ten = [client.task("add", number, number) for number in range(10)]
    assert answer(group(ten, app=client.app)()) == [2 * number for number in range(10)]
    assert answer(chord(ten, total, app=client.app)()) == 90


@pytest.mark.parametrize("name", ["retried", "retried_late"])
def test_a_task_is_retried_under_the_same_id(client, name):
    assert answer(client.send(name)) == 3


def test_a_task_that_is_replaced_has_the_result_of_the_other(client):
    assert answer(client.send("replaced")) == 42


def test_a_countdown_is_held_by_the_store_and_by_no_worker(worker, client):
    sent_s = time.time()
    result = client.send("noted", "later", countdown=3600)
    with store_of(worker) as queue:
        message = queue.get("celery", result.id)
        assert str(message.state) == "delayed"
        assert sent_s + 3600 <= message.due_ms / 1000 <= time.time() + 3601
        # The body is JSON, so that predicates can find a task by its name or arguments.
        assert message.json()["headers"]["task"] == "tests.celery.shop.noted"
        result.revoke()
        assert queue.get("celery", result.id) is None


def test_no_task_runs_before_its_eta(worker, client):
    least_s = {}
    for number in range(20):
        countdown = 0.5 + number / 20
        least_s[f"eta-{number}"] = time.time() + countdown
        client.send("noted", f"eta-{number}", countdown=countdown)
    mine = until(lambda: found if len(found := noted(worker, "eta-")) == 20 else None)
    assert all(float(mine[name]) >= at_s for name, at_s in least_s.items())


def noted(worker, prefix):
    return {words[0]: words[1] for words in worker.notes() if words[0].startswith(prefix)}


def test_a_revoked_countdown_is_gone_at_once_and_says_so(worker, client):
    result = client.send("noted", "never", countdown=3600)
    result.revoke()
    with pytest.raises(TaskRevokedError):
        answer(result)
    with store_of(worker) as queue:
        assert queue.get("celery", result.id) is None


def test_a_long_task_with_a_late_ack_runs_once(worker, client):
    """It takes three times its lease, which is kept alive."""
    result = client.send("late", "long", 6)
    answer(result)
    assert [words[0] for words in worker.notes() if words[1] == "long"] == ["begins", "ends"]
    with store_of(worker) as queue:
        until(lambda: counts(queue) == (0, 0, 0, 0), lambda: queue.stats().topics)


def test_what_is_refused_is_dead_or_comes_again(worker, client):
    refused = client.send("refused")
    with store_of(worker) as queue:
        until(lambda: (found := queue.get("celery", refused.id)) and str(found.state) == "dead")
        assert queue.get("celery", refused.id).last_error == "rejected"
        queue.cancel("celery", refused.id)
    assert answer(client.send("refused_once")) == "done"


def test_a_task_whose_process_dies_comes_again(request, client):
    if request.node.callspec.params["worker"][1] == "gevent":
        pytest.skip("the process is the worker; test_celery_kills.py kills workers")
    assert answer(client.send("dies_once")) == "done"


def test_workers_answer_to_remote_control(worker, client):
    control = client.app.control
    (pong,) = control.ping(limit=1, timeout=5)
    (name,) = pong
    inspect = control.inspect([name], timeout=PATIENCE_S)
    assert inspect.stats()[name]["broker"]["transport"] == "dwell"

    def queues():
        return [one["name"] for one in inspect.active_queues()[name]]

    assert queues() == ["celery"]
    queue = f"further-{uuid.uuid4().hex}"
    control.add_consumer(queue, destination=[name], reply=True, timeout=5)
    assert answer(client.send("add", 1, 1, queue=queue)) == 2
    control.cancel_consumer(queue, destination=[name], reply=True, timeout=5)
    # A worker with greenlets does so up to two seconds later.
    until(lambda: queues() == ["celery"])
    client.send("noted", "kept", queue=queue)
    client.send("noted", "kept", queue=queue, countdown=3600)
    with client.app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge(queue) == 2


def test_events_are_received(client):
    seen = []
    client.app.control.enable_events(reply=True, limit=1, timeout=5)
    with client.app.connection_for_read() as source:
        handlers = {"task-succeeded": lambda event: seen.append(event["uuid"])}
        receiver = client.app.events.Receiver(source, handlers)
        with receiver.consumer_context() as (connection, _, _):
            result = client.send("add", 20, 22)
            until(lambda: _drained(connection) and result.id in seen)
    client.app.control.disable_events(reply=True, limit=1, timeout=5)


def _drained(connection):
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=1)
    return True
