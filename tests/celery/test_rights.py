"""Two applications with tokens of their own at one server."""

import hashlib
import time

import pytest
from celery import Celery
from kombu import Connection, Consumer, Exchange, Queue, pools

import dwell
from dwell.celery import upkeep
from dwell.errors import Forbidden, StoreFull
from tests.spark.conftest import ServerProcess
from tests.waiting import until

_RIGHTS = """[[token]]
name = "{name}"
sha256 = "{sha256}"
put = ["{name}.", "kombu."]
take = ["{name}.", "kombu."]
read = ["{name}.", "kombu."]
admin = ["{name}.", "kombu."]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rights")
    tokens = folder / "tokens.toml"
    tokens.touch(0o600)
    rights = [_RIGHTS.format(name=name, sha256=digest(name)) for name in ("shop", "mail")]
    tokens.write_text("".join(rights))
    server = ServerProcess(folder, "--token-file", str(tokens))
    yield server.url
    server.stop()
    pools.reset()


def secret(name):
    return "-".join([name] * 5)


def digest(name):
    return hashlib.sha256(secret(name).encode()).hexdigest()


def options(name):
    return {"store": {"token": secret(name)}}


def app(url, name):
    made = Celery(name, broker=f"dwell+{url}", backend="cache+memory://", set_as_current=False)
    made.conf.broker_transport_options = options(name)
    made.conf.task_default_queue = f"{name}.tasks"
    return made


def test_tasks_are_revoked_though_another_application_has_queues(served):
    shop, mail = app(served, "shop"), app(served, "mail")
    other = mail.send_task("send", countdown=3600)
    task = shop.send_task("pay", countdown=3600)
    task.revoke()
    with dwell.open(served, **options("shop")["store"]) as queue:
        assert queue.get("shop.tasks", task.id) is None
    with dwell.open(served, **options("mail")["store"]) as queue:
        assert queue.get("mail.tasks", other.id) is not None
    shop.close()
    mail.close()


@pytest.mark.parametrize("kind", ["fanout", "topic"])
def test_an_exchange_reaches_ones_own_queue_behind_that_of_another(served, kind):
    exchange, got = Exchange(f"all-{kind}", kind, delivery_mode="transient"), []
    with (
        Connection(f"dwell+{served}", transport_options=options("shop")) as shop,
        Connection(f"dwell+{served}", transport_options=options("mail")) as mail,
    ):
        Queue(f"shop.{kind}", exchange, "#")(shop.default_channel).declare()
        # Nobody must have it.
        mail.Producer(exchange=exchange).publish("early", routing_key="any")
        own = Queue(f"mail.{kind}", exchange, "#")
        with Consumer(mail, [own], callbacks=[lambda body, _: got.append(body)]):
            mail.Producer(exchange=exchange).publish("event", routing_key="any")
            mail.Producer(exchange=exchange).publish("task", routing_key="any", delivery_mode=2)
            while len(got) < 2:
                mail.drain_events(timeout=60)
    assert got == ["event", "task"]


def test_a_task_that_no_queue_takes_is_refused(served):
    exchange = Exchange("routed", "direct")
    with (
        Connection(f"dwell+{served}", transport_options=options("shop")) as shop,
        Connection(f"dwell+{served}", transport_options=options("mail")) as mail,
    ):
        Queue("shop.routed", exchange, "pay")(shop.default_channel).declare()
        with pytest.raises(Forbidden):
            mail.Producer(exchange=exchange).publish("task", routing_key="pay")


@pytest.fixture
def full(tmp_path):
    """Yield the URL of a server with a token whose quota lets no topic begin behind the third."""
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    everywhere = _RIGHTS.replace("{name}.", "")
    shop, mail = (everywhere.format(name=one, sha256=digest(one)) for one in ("shop", "mail"))
    tokens.write_text(f"{shop}{mail}quota = {{topics = 3}}\n")
    server = ServerProcess(tmp_path, "--token-file", str(tokens))
    yield server.url
    server.stop()
    pools.reset()


def test_a_queue_without_room_in_a_quota_cuts_off_no_others(full, caplog):
    exchange = Exchange("news", "topic")
    with Connection(f"dwell+{full}", transport_options=options("shop")) as shop:
        for name in ("one", "two"):
            Queue(name, exchange, "#")(shop.default_channel).declare()
        shop.Producer().publish("first", routing_key="one")
    with Connection(f"dwell+{full}", transport_options=options("mail")) as mail:
        for _ in range(2):
            mail.Producer(exchange=exchange).publish(
                "news", routing_key="any", retry=True, retry_policy={"max_retries": 2}
            )
        with pytest.raises(StoreFull):
            mail.Producer().publish("alone", routing_key="two")
    with dwell.open(full, **options("shop")["store"]) as store:
        topics = store.stats().topics
        assert (topics["one"].ready, "two" in topics) == (3, False)
    told = [one.getMessage() for one in caplog.records if one.name == "dwell.celery.channel"]
    assert [text.partition(": ")[0] for text in told] == ["two"]


def is_untouched(row):
    return row.attempt == 0 and row.state is dwell.State.READY


def test_a_sweep_leaves_expired_queues_of_others_to_them(served, monkeypatch):
    monkeypatch.setattr(upkeep, "_SWEEP_S", 0.2)
    with Connection(f"dwell+{served}", transport_options=options("mail")) as mail:
        Queue("mail.short", expires=0.1)(mail.default_channel).declare()
        mail.Producer().publish("x", routing_key="mail.short")
    with Connection(f"dwell+{served}", transport_options=options("shop")) as shop:
        queue = Queue("shop.short", expires=0.1)(shop.default_channel)
        queue.declare()
        shop.Producer().publish("x", routing_key="shop.short")
        due = time.monotonic() + 0.3
        until(lambda: time.monotonic() > due)
        with (
            Consumer(shop, [Queue("shop.other")]),
            dwell.open(served, **options("shop")["store"]) as store,
        ):
            until(lambda: not store.stats().topics["shop.short"].ready)
            # A sweep leases both rows, and releases this one when it has cleared the other queue.
            until(lambda: is_untouched(store.get("kombu.queues", "mail.short")))
    with Connection(f"dwell+{served}", transport_options=options("mail")) as mail:
        # Its owner may declare it again, with another life.
        mail.default_channel.queue_declare("mail.short", arguments={"x-expires": 60_000})
