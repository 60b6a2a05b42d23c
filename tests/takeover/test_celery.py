"""Tasks of Celery move off a Redis; producers and workers are Celery's own."""

import base64
import json
import os
import time
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.serialization import dumps

import dwell
from dwell.celery.envelope import PUBLISH
from dwell.errors import InvalidUrl, ServerUnreachable
from tests.celery.client import Client
from tests.celery.workers import WorkerProcess
from tests.takeover.sources import FIRST, FIRST_MS, celery_at, contents, everything, moved
from tests.waiting import until

_HELD = "workers hold them until their ETA: stop these, and run it again"
_ENDED = "a worker that has ended held them; their visibility timeout has not passed"


@pytest.fixture
def worker(url, tmp_path):
    """A worker on the Redis that the tasks are to leave."""
    (tmp_path / "worker").mkdir()
    worker = WorkerProcess(tmp_path / "worker", url, broker=url)
    yield worker
    worker.kill()


def found_in(store, topic="celery"):
    with dwell.open(store) as queue:
        return {message.id: message for message in everything(queue, topic)}


def unacked(engine, count):
    until(lambda: engine.ask("HLEN", "unacked") == count)


def test_tasks_that_workers_hold_move_when_these_have_stopped(engine, worker, url, tmp_path):
    """They run at a worker on Dwell, each once and not before its ETA."""
    store, client = url.replace("/0", "/1"), Client(worker)
    # Not before the worker is stopped, on a busy machine either.
    due_s = {f"soon-{number}": time.time() + 8 + number / 10 for number in range(10)}
    for name, at_s in due_s.items():
        client.send("noted", name, eta=datetime.fromtimestamp(at_s, UTC))
    later = client.send("noted", "later", countdown=3600)
    running = client.send("late", "runs", 3)
    unacked(engine, 12)
    until(worker.notes)
    report = moved(store, f"celery+{url}")
    # What runs is its worker's, and no fault.
    assert (report.moved, report.by_reason, report.left.leased) == (0, {_HELD: 11}, 12)
    worker.stop()
    now = client.send("noted", "now")
    report = moved(store, f"celery+{url}")
    assert (report.put["created"], report.left.here, report.is_whole) == (12, 0, True)
    assert ["ends", "runs"] in worker.notes()
    (tmp_path / "second").mkdir()
    second = WorkerProcess(tmp_path / "second", store)
    try:
        until(lambda: len(second.notes()) == 11, second.notes)
        again = found_in(store)
    finally:
        second.stop()
    ran_s = {name: float(at_s) for name, at_s in second.notes()}
    assert set(ran_s) == {*due_s, "now"}
    assert all(ran_s[name] >= at_s for name, at_s in due_s.items())
    assert set(again) == {later.id}
    assert running.id != now.id


def test_tasks_that_a_killed_worker_held_move_unless_they_may_have_begun(
    engine, worker, url, tmp_path
):
    client = Client(worker)
    later = client.send("noted", "later", eta=FIRST)
    begun = client.send("late", "runs", 60)
    unacked(engine, 2)
    until(worker.notes)
    worker.kill()
    report = moved(tmp_path / "new", f"celery+{url}")
    assert (report.moved, report.by_reason, report.is_whole) == (1, {_ENDED: 1}, False)
    report = moved(tmp_path / "new", f"celery+{url}?visibility_timeout=0")
    assert (report.moved, report.left.here, report.is_whole) == (1, 0, True)
    found = found_in(tmp_path / "new")
    assert found[later.id].due_ms == FIRST_MS
    # It may have been done in part, and can know that.
    assert found[begun.id].json()["properties"]["delivery_info"]["redelivered"]


def test_a_worker_without_remote_control_is_seen(engine, url, tmp_path):
    worker = WorkerProcess(tmp_path, url, "--without-gossip", "--without-mingle", broker=url)
    try:
        Client(worker).send("noted", "later", eta=FIRST)
        unacked(engine, 1)
        with redis.Redis.from_url(url) as client:
            ours = [c["id"] for c in client.client_list(_type="pubsub")]
            for number in ours:
                client.client_kill_filter(_id=number)
            report = moved(tmp_path / "new", f"celery+{url}")
        assert report.by_reason == {_HELD: 1}
    finally:
        worker.kill()


def test_rights_that_are_missing_are_told_or_made_up_for(engine, url, tmp_path):
    text = message(headers={"id": "held", "eta": "2099-01-01T00:00:00+00:00"})
    engine.ask("HSET", "unacked", "tag", f'[{text}, "", "celery"]')
    engine.ask("ZADD", "unacked_index", 5, "tag")
    given = ("on", ">secret", "~*", "+@all", "-@admin")
    engine.ask("ACL", "SETUSER", "mover", "reset", *given, "resetchannels")
    source = f"celery+{url}?queue=celery".replace("://", "://mover:secret@")
    # Without an answer, nobody knows whether a worker holds it.
    with pytest.raises(ServerUnreachable, match="no permissions"):
        moved(tmp_path, source)
    engine.ask("ACL", "SETUSER", "mover", "allchannels")
    with redis.Redis.from_url(url) as client, client.pubsub() as subscribed:
        subscribed.psubscribe("/0.celery.pidbox")
        subscribed.parse_response()
        assert moved(tmp_path, source).by_reason == {_HELD: 1}
    until(lambda: not engine.ask("PUBSUB", "NUMPAT"))
    assert moved(tmp_path, source).moved == 1


def test_queues_are_moved_by_their_names_exchanges_and_prefix(url, tmp_path):
    shared = Exchange("shop", "topic")
    with celery_at(url, global_keyprefix="app:") as app:
        eta = FIRST
        for queue in ("mails", "or ders@x"):
            app.send_task("a", task_id=f"to {queue}", queue=queue, eta=eta)
        app.send_task(
            "a",
            task_id="routed",
            exchange=shared,
            routing_key="pay.eur",
            declare=[Queue("pays", shared, "pay.#")],
        )
    with pytest.raises(InvalidUrl, match="has no queues of Celery"):
        moved(tmp_path, f"celery+{url}")
    one = moved(tmp_path, f"celery+{url}?global_keyprefix=app:&queue=mails")
    assert (one.moved, one.left.here) == (1, 0)
    report = moved(tmp_path, f"celery+{url}?global_keyprefix=app:")
    assert (report.moved, report.is_whole) == (2, True)
    # As dwell.celery names the topics of its queues.
    assert set(found_in(tmp_path, "or:20ders:40x")) == {"to or ders@x"}
    assert set(found_in(tmp_path, "pays")) == {"routed"}


def test_priorities_keep_their_order(url, tmp_path):
    with celery_at(url) as app:
        for priority in (9, 0, 6, 3, 1):
            app.send_task("a", task_id=f"p{priority}", priority=priority)
    assert moved(tmp_path, f"celery+{url}").is_whole
    with dwell.open(tmp_path) as queue:
        assert [m.id for m in queue.take("celery", 9)] == ["p0", "p1", "p3", "p6", "p9"]


def test_messages_of_every_kind_are_as_a_producer_on_dwell_has_them(url, tmp_path):
    """But for times and what names the program; a pickle stays what it is."""
    eta = FIRST + timedelta(microseconds=1)

    def send(app):
        for serializer in ("json", "yaml", "pickle"):
            app.send_task("a", ("é",), task_id=serializer, serializer=serializer, eta=eta)
        with app.connection() as connection, connection.SimpleQueue("celery") as plain:
            plain.put({"any": "thing"}, headers={"x": "y"}, delivery_tag="plain")

    there = tmp_path / "there"
    with celery_at(url) as app:
        send(app)
        tags = [json.loads(one)["properties"]["delivery_tag"] for one in listed(url)]
    report = moved(tmp_path / "new", f"celery+{url}")
    assert (report.moved, report.is_whole) == (4, True)
    found = found_in(tmp_path / "new")
    (plain,) = found.keys() & set(tags)
    assert found.pop(plain).json()["headers"] == {"x": "y"}
    import dwell.celery  # noqa: F401 - the scheme of the URL

    with celery_at(f"dwell+file://{there}") as app:
        send(app)
    expected = found_in(there)
    for task in ("json", "yaml", "pickle"):
        ours, theirs = found[task], expected[task]
        assert ours.due_ms == theirs.due_ms == FIRST_MS + 1
        assert (ours.priority, ours.max_attempts) == (theirs.priority, theirs.max_attempts)
        assert neutral(ours) == neutral(theirs)


def neutral(message):
    content = message.json()
    for name in ("delivery_tag", "reply_to"):
        content["properties"].pop(name)
    # What is moved was published by others.
    content["properties"].pop(PUBLISH, None)
    content["headers"].pop("origin")
    return content


def listed(url, key="celery"):
    with redis.Redis.from_url(url) as client:
        return client.lrange(key, 0, -1)


def message(**changes):
    """Return a message of kombu, as JSON."""
    headers = {"task": "a", "id": "odd", "eta": None, "retries": 0}
    properties = {"delivery_tag": "tag", "delivery_info": {"exchange": "", "routing_key": "celery"}}
    properties |= {"body_encoding": "base64"}
    whole = {
        "body": base64.b64encode(b"[[], {}, {}]").decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers | changes.pop("headers", {}),
        "properties": properties | changes.pop("properties", {}),
    }
    return json.dumps(whole | changes)


@pytest.mark.parametrize(
    ("eta", "due_ms"),
    [
        # A worker takes an ETA without a zone for UTC, whatever the app's zone is.
        ("2099-01-01T00:00:00", FIRST_MS),
        ("2099-01-01T00:00:00.000001+00:00", FIRST_MS + 1),
        ("2098-12-31T19:00:00-05:00", FIRST_MS),
        ("1950-01-01T00:00:00+00:00", 0),
    ],
)
def test_an_eta_is_the_due(engine, url, tmp_path, monkeypatch, eta, due_ms):
    monkeypatch.setattr(Celery("zoned").conf, "timezone", "Asia/Tokyo")
    engine.ask("RPUSH", "celery", message(headers={"eta": eta}))
    protocol_1 = base64.b64encode(
        json.dumps({"task": "a", "id": "old", "eta": eta, "args": [], "kwargs": {}}).encode()
    ).decode()
    old = json.loads(message(body=protocol_1)) | {"headers": {}}
    engine.ask("RPUSH", "celery", json.dumps(old))
    assert moved(tmp_path, f"celery+{url}?queue=celery").moved == 2
    assert {id_: m.due_ms for id_, m in found_in(tmp_path).items()} == dict.fromkeys(
        ("odd", "old"), due_ms
    )


_ODD = [
    b"",
    b"\xff",
    b"no JSON",
    b"[1]",
    b"null",
    b"[" * 100_000,
    message(properties={"delivery_tag": 7}),
    message(body=7),
    message(headers={"id": "x" * 500, "retries": 10**30}, properties={"delivery_tag": "y" * 500}),
    message(headers={"eta": "9999-12-31T23:59:59+00:00"}),
    message(body="x" * (2 << 20)),
    json.dumps(json.loads(message()) | {"headers": [1]}),
    json.dumps(json.loads(message()) | {"properties": None}),
]


@pytest.mark.parametrize("number", ["1e999", "-1e999", '"x"', "null", "[]"])
@pytest.mark.parametrize("field", ["priority", "expiration"])
def test_odd_numbers_hold_up_nothing(engine, url, tmp_path, field, number):
    odd = message(properties={field: "MARK"}).replace('"MARK"', number)
    engine.ask("RPUSH", "celery", odd, message(headers={"id": "good"}))
    report = moved(tmp_path, f"celery+{url}?queue=celery")
    assert (report.moved, report.balances) == (2, True)
    assert set(found_in(tmp_path)) == {"good", "odd"}


def test_odd_messages_end_nothing(engine, url, tmp_path):
    for at, text in enumerate(_ODD):
        engine.ask("RPUSH", "celery", text)
        engine.ask("HSET", "unacked", f"tag-{at}", text)
        engine.ask("ZADD", "unacked_index", at, f"tag-{at}")
    for at, text in enumerate(["7", "[1, 2, 3]", f'[{message()}, "none", "x"]', f"[{message()}]"]):
        engine.ask("HSET", "unacked", f"form-{at}", text)
        engine.ask("ZADD", "unacked_index", at, f"form-{at}")
    # One has no content, one no time.
    engine.ask("ZADD", "unacked_index", 1, "gone")
    engine.ask("HSET", "unacked", "timeless", message())
    engine.ask("RPUSH", "celery", message(headers={"id": "good"}))
    engine.ask("HSET", "unacked", "fine", f'[{message(headers={"id": "held"})}, "", "celery"]')
    engine.ask("ZADD", "unacked_index", 1, "fine")
    before = contents(url)
    assert moved(tmp_path, f"celery+{url}?queue=celery", dry_run=True)
    assert contents(url) == before
    report = moved(tmp_path, f"celery+{url}?queue=celery")
    assert (report.moved, report.balances, report.is_whole) == (2, True, False)
    # An empty text in the hash is taken for none.
    assert report.held_back == 2 * len(_ODD) - 1 + 4
    assert any(reason.startswith("body: got 2") for reason in report.by_reason), report.by_reason
    assert set(found_in(tmp_path)) == {"good", "held"}


@pytest.mark.parametrize("change", ["taken again", "restored", "replaced"])
def test_an_unacked_message_that_changes_is_not_removed(engine, url, tmp_path, monkeypatch, change):
    from dwell.takeover import celery as place

    text = message(headers={"id": "held", "eta": "2099-01-01T00:00:00+00:00"})
    engine.ask("HSET", "unacked", "tag", f'[{text}, "", "celery"]')
    engine.ask("ZADD", "unacked_index", 5, "tag")
    remove, changes = place.CeleryPlace.let_go, iter([1])

    async def let_go(self, load, places):
        if not next(changes, None):
            pass
        elif change == "taken again":
            engine.ask("ZADD", "unacked_index", 6, "tag")
        elif change == "replaced":
            newer = text.replace("2099", "2098")
            engine.ask("HSET", "unacked", "tag", f'[{newer}, "", "celery"]')
        else:
            with Connection(url) as connection:
                connection.default_channel.qos.restore_by_tag("tag")
        return await remove(self, load, places)

    monkeypatch.setattr(place.CeleryPlace, "let_go", let_go)
    report = moved(tmp_path, f"celery+{url}?queue=celery")
    assert report.balances
    assert (report.left.here, report.others) == (0, 0)
    (found,) = found_in(tmp_path).values()
    assert found.id == "held"
    assert (found.due_ms < FIRST_MS) == (change == "replaced")
    assert report.elsewhere == (change == "restored")


def test_pickles_are_never_unpickled(engine, url, tmp_path, monkeypatch):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trap"),)

    kind, coding, body = dumps([[Trap()], {}, {}], serializer="pickle")
    kinds = {"content-type": kind, "content-encoding": coding}
    text = message(**kinds, body=base64.b64encode(body).decode())
    engine.ask("RPUSH", "celery", text)
    assert moved(tmp_path / "new", f"celery+{url}?queue=celery").moved == 1
    (found,) = found_in(tmp_path / "new").values()
    assert base64.b64decode(found.json()["body"]) == body
    assert not (tmp_path / "trap").exists()


def test_wrong_options_are_refused(tmp_path):
    for text in ("visibility_timeout=soon", "visibility_timeout=-1", "prefix=a", "queue="):
        with pytest.raises(InvalidUrl, match="got"):
            moved(tmp_path, f"celery+redis://127.0.0.1:1/0?{text}")


@pytest.mark.parametrize("popped", [2, 30])
def test_a_list_that_is_pushed_and_popped_while_messages_are_put(
    engine, url, tmp_path, monkeypatch, popped
):
    from dwell.takeover import celery as place

    texts = [message(headers={"id": f"now-{number}"}) for number in range(200)]
    # One is there twice, and some stay in between.
    engine.ask("LPUSH", "celery", *(f"odd {n}" for n in range(20)), *texts[:100])
    engine.ask("LPUSH", "celery", *(f"odd {n}" for n in range(20, 40)), *texts[100:], texts[150])
    remove, changes = place.CeleryPlace.let_go, iter([1])

    async def let_go(self, load, places):
        if next(changes, None):
            engine.ask("RPOP", "celery", 20 + popped)
            engine.ask("LPUSH", "celery", *(f"new {n}" for n in range(2_000)), texts[0])
            engine.ask("RPUSH", "celery", texts[1], "odd last")
        return await remove(self, load, places)

    monkeypatch.setattr(place.CeleryPlace, "let_go", let_go)
    report = moved(tmp_path, f"celery+{url}?queue=celery")
    assert (report.moved, report.elsewhere, report.balances) == (203 - popped, popped - 2, True)
    new, odd = [f"new {n}" for n in range(2_000)], [f"odd {n}" for n in range(20, 40)]
    assert engine.ask("LRANGE", "celery", 0, -1) == [*new[::-1], *odd[::-1], "odd last"]


def test_a_task_in_two_queues_of_one_topic_is_two_messages(engine, url, tmp_path):
    with celery_at(url) as app:
        for name in ("left", "right"):
            app.send_task("shop.pay", (name,), task_id="t-1", queue=name)
    report = moved(tmp_path, f"celery+{url}", into="tasks")
    assert (report.moved, report.put["created"]) == (2, 2)
    assert set(found_in(tmp_path, "tasks")) == {"left/t-1", "right/t-1"}


def test_bodies_that_kombu_cannot_read_stop_no_other(engine, url, tmp_path):
    with celery_at(url) as app:
        app.send_task("shop.pay", (1,), task_id="t-1", queue="celery")
    message = json.loads(engine.ask("LINDEX", "celery", "0"))
    del message["headers"]["task"], message["headers"]["id"]
    for body in ('{"task": "a", "__type__": "x"}', '{"task": ' + "[" * 2_000 + "]" * 2_000 + "}"):
        odd = message | {"body": base64.b64encode(body.encode()).decode()}
        odd["properties"] = message["properties"] | {"delivery_tag": f"odd-{len(body)}"}
        engine.ask("RPUSH", "celery", json.dumps(odd))
    report = moved(tmp_path, f"celery+{url}")
    assert report.balances
    assert "t-1" in found_in(tmp_path)


def test_a_queue_or_a_separator_that_is_unknown_is_refused(engine, url, tmp_path):
    with celery_at(url) as app:
        app.send_task("shop.pay", (1,), queue="celery")
    with pytest.raises(InvalidUrl, match="queue: got 'celary', and the queues there are celery"):
        moved(tmp_path, f"celery+{url}?queue=celary")
    engine.ask("SADD", "_kombu.binding.own", "a:b:c")
    with pytest.raises(InvalidUrl, match="a binding of exchange 'own' is not as kombu has it"):
        moved(tmp_path, f"celery+{url}")
