"""Tasks that are revoked while no worker runs."""

import asyncio
import uuid

import pytest
from celery import Celery
from kombu import pools

import dwell
from dwell.celery import link
from dwell.celery.envelope import message_id
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


def waiting(url):
    """Return the ids of the messages that wait."""
    shared = link.acquire(url, {})
    pages = [shared.run(shared.queue.scan, "celery", state) for state in ("delayed", "ready")]
    link.release(shared)
    return [id_ for page in pages for id_ in page.messages.ids]


def done_next(app):
    """Take a message that waits, and ack it as it is taken."""
    with app.connection_for_read() as connection:
        assert connection.default_channel.basic_get("celery", no_ack=True) is not None


def test_a_task_that_is_retried_for_ever_is_cancelled(app, url):
    """Though the ids of its earlier turns are remembered."""
    task = str(uuid.uuid4())
    for retries in range(20):
        app.send_task("shop.poll", task_id=task, retries=retries)
        done_next(app)
    for retries in (20, 10_000):
        app.send_task("shop.poll", task_id=task, retries=retries, countdown=3600)
    assert len(waiting(url)) == 2
    app.control.revoke(task)
    assert waiting(url) == []


def test_tasks_whose_ids_look_like_those_of_its_retries_stay(app, found):
    whole = app.send_task("shop.pay", countdown=3600, task_id="order-17")
    parts = [
        app.send_task("shop.pay", countdown=3600, task_id=f"order-17:{part}") for part in (1, 2, 15)
    ]
    app.send_task("shop.pay", countdown=3600, task_id="order-17", retries=3)
    whole.revoke()
    ids = [f"order-17:{number}" for number in range(1, 16)]
    assert [message.id for message in found("order-17", *ids)] == [part.id for part in parts]
    assert {part.state for part in parts} == {"PENDING"}


def test_more_tasks_than_one_call_takes_are_cancelled_at_once(app, found):
    with app.producer_or_acquire() as producer, producer.batch():
        tasks = [app.send_task("shop.pay", countdown=3600, producer=producer) for _ in range(700)]
    app.control.revoke([task.id for task in tasks])
    assert found(*[task.id for task in tasks]) == []


def test_a_queue_that_an_older_version_let_in_stops_no_revocation(app, found, url):
    task = app.send_task("shop.pay", countdown=3600)
    shared = link.acquire(url, {})
    name = "q" * 201
    shared.run(shared.queue.put, "kombu.queues", name.encode(), id=name, due=4_102_444_800_000)
    link.release(shared)
    task.revoke()
    assert found(task.id) == []


@pytest.mark.parametrize("odd", ["job-" + "x" * 300, ""])
def test_an_id_that_no_message_has_stops_no_revocation(app, found, odd):
    task = app.send_task("shop.pay", countdown=3600)
    app.control.revoke([odd, task.id])
    assert found(task.id) == []


def test_messages_of_one_task_do_not_take_each_others_place(app, found):
    task = uuid.uuid4().hex
    for number in range(20):
        app.send_task("shop.pay", (number,), task_id=task)
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        got = [channel.basic_get("celery", no_ack=True) for _ in range(21)]
    assert got.pop() is None
    assert sorted(message.payload[0][0] for message in got) == list(range(20))


def turns(task):
    """Return the ids that the messages of a task have in turn."""
    return [message_id(task, turn) for turn in range(16)]


@pytest.fixture
def repeating(monkeypatch):
    """Let a client repeat each put: its answer was lost, and then the message is there."""
    for verb in ("put", "put_many"):
        real = getattr(dwell.Queue, verb)

        async def twice(*args, real=real, **words):
            await real(*args, **words)
            return await real(*args, **words)

        monkeypatch.setattr(dwell.Queue, verb, twice)


def test_a_put_that_the_client_repeats_is_one_message(app, found, repeating):
    task = app.send_task("shop.pay", countdown=3600).id
    app.send_task("shop.pay", countdown=3600, task_id=task, retries=1)
    assert [one.id for one in found(*turns(task))] == [task, f"{task}:1"]


def test_a_batch_that_the_client_repeats_is_put_once(app, found, repeating):
    task = uuid.uuid4().hex
    with app.producer_or_acquire() as producer, producer.batch():
        for number in range(3):
            app.send_task("shop.pay", (number,), task_id=task, producer=producer)
    assert [one.id for one in found(*turns(task))] == [task, f"{task}:1", f"{task}:2"]


def test_a_publish_that_kombu_repeats_is_one_message(app, found, monkeypatch):
    real, lost = dwell.Queue.put, ["once"]

    async def unanswered(self, topic, *args, **words):
        answer = await real(self, topic, *args, **words)
        if topic == "celery" and lost:
            lost.pop()
            raise dwell.ServerUnreachable("the answer was lost")
        return answer

    monkeypatch.setattr(dwell.Queue, "put", unanswered)
    task = app.send_task("shop.pay", countdown=3600)
    assert not lost
    assert [one.id for one in found(*turns(task.id))] == [task.id]


@pytest.fixture
def failing(monkeypatch):
    """Return a function that lets the next put fail, after what is done with its message if any."""
    real, next_one = dwell.Queue.put, []

    async def put(self, topic, *args, **words):
        if topic != "celery" or not next_one:
            return await real(self, topic, *args, **words)
        then, reaches = next_one.pop()
        if then is not None:
            await real(self, topic, *args, **words)
            await asyncio.to_thread(then)
        error = dwell.ServerUnreachable("the answer was lost")
        error.may_be_done = reaches
        raise error

    monkeypatch.setattr(dwell.Queue, "put", put)
    return lambda then=None, *, reaches=True: next_one.append((then, reaches))


@pytest.mark.parametrize("text", ["{}", "order-{}"])
@pytest.mark.parametrize("retries", [0, 1, 18])
def test_a_task_that_is_done_when_its_publish_is_repeated_is_one(app, url, failing, text, retries):
    failing(lambda: done_next(app))
    app.send_task("shop.pay", task_id=text.format(uuid.uuid4()), retries=retries)
    assert waiting(url) == []


@pytest.mark.parametrize("retries", [0, 15, 30])
def test_a_repeat_is_put_though_its_id_is_remembered_of_an_earlier_one(app, url, failing, retries):
    task = f"order-{uuid.uuid4()}"
    for number in (retries, retries + 15):
        app.send_task("shop.pay", task_id=task, retries=number)
        done_next(app)
    failing()
    app.send_task("shop.pay", task_id=task, retries=retries)
    assert len(waiting(url)) == 1


def test_a_repeat_of_what_did_not_reach_the_server_is_put(app, url, failing):
    """Though a task of its id is done."""
    task = str(uuid.uuid4())
    app.send_task("shop.pay", task_id=task)
    done_next(app)
    failing(reaches=False)
    app.send_task("shop.pay", task_id=task)
    assert waiting(url) == [task]


def test_a_task_that_is_sent_again_is_another(app, url):
    task = str(uuid.uuid4())
    for _ in range(2):
        app.send_task("shop.pay", task_id=task)
        done_next(app)
    app.send_task("shop.pay", task_id=task)
    assert waiting(url) == [task]


def test_a_message_that_a_consumer_forwards_is_another(app, found):
    """With all its properties, and before it is acked."""
    task = app.send_task("shop.pay")
    with app.connection_for_write() as connection:
        got = connection.default_channel.basic_get("celery")
        sent = got.properties | {"content_type": got.content_type}
        words = {name: sent[name] for name in sent if name not in ("delivery_info", "priority")}
        connection.Producer().publish(
            got.body, routing_key="celery", headers=got.headers, content_encoding="utf-8", **words
        )
        assert [one.id for one in found(*turns(task.id))] == [task.id, f"{task.id}:1"]


def test_a_revocation_for_one_worker_cancels_nothing(app, found):
    task = app.send_task("shop.pay", countdown=3600)
    app.control.revoke(task.id, destination=["celery@one"])
    assert len(found(task.id)) == 1


def test_a_task_without_a_result_is_cancelled_all_the_same(app, found):
    task = app.send_task("shop.pay", countdown=3600, ignore_result=True)
    app.control.revoke(task.id)
    assert found(task.id) == []
    assert app.AsyncResult(task.id).state == "PENDING"
