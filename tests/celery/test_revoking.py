"""Tasks that are revoked while no worker runs."""

import uuid

import pytest
from celery import Celery
from kombu import pools

from dwell.celery import link
from tests.celery.brokers import emptied


@pytest.fixture(params=["memory", "server", "redis"])
def url(request):
    return emptied(request)


@pytest.fixture
def app(url):
    app = Celery("revoking", broker=f"dwell+{url}", backend="cache+memory://", set_as_current=True)
    yield app
    pools.reset()
    app.close()


@pytest.fixture
def found(url, app):
    """Return a function that looks for the messages of a task."""
    shared = link.acquire(url, {})
    yield lambda *ids: [m for m in shared.run(shared.queue.get, "celery", ids) if m is not None]
    link.release(shared)


def test_a_revoked_task_is_cancelled_and_its_result_says_so(app, found):
    revoked = app.send_task("shop.pay", countdown=3600)
    other = app.send_task("shop.pay", countdown=3600)
    revoked.revoke()
    assert found(revoked.id, other.id)[0].id == other.id
    assert (revoked.state, other.state) == ("REVOKED", "PENDING")


def test_all_messages_of_a_task_are_cancelled(app, found):
    """A message that was put twice, and one of a later retry."""
    task = uuid.uuid4().hex
    for retries in (0, 0, 3):
        app.send_task("shop.pay", countdown=3600, task_id=task, retries=retries)
    ids = (task, f"{task}:1", f"{task}:3")
    assert len(found(*ids)) == 3
    app.control.revoke([task, "unknown"])
    assert found(*ids) == []


def test_messages_of_one_task_do_not_take_each_others_place(app, found):
    task = uuid.uuid4().hex
    for number in range(20):
        app.send_task("shop.pay", (number,), task_id=task)
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        got = [channel.basic_get("celery", no_ack=True) for _ in range(21)]
    assert got.pop() is None
    assert sorted(message.payload[0][0] for message in got) == list(range(20))


def test_a_revocation_for_one_worker_cancels_nothing(app, found):
    task = app.send_task("shop.pay", countdown=3600)
    app.control.revoke(task.id, destination=["celery@one"])
    assert len(found(task.id)) == 1


def test_a_task_without_a_result_is_cancelled_all_the_same(app, found):
    task = app.send_task("shop.pay", countdown=3600, ignore_result=True)
    app.control.revoke(task.id)
    assert found(task.id) == []
    assert app.AsyncResult(task.id).state == "PENDING"
