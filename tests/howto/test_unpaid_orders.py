"""The page on unpaid orders: paid or closed, and in the end one of them, whatever is lost."""

import threading

import pytest

import dwell
from tests.howto.losing import AFTER, BEFORE, Losing, run

#: The due of every order in these tests, in minutes: it is due at once.
NOW = 0.0


@pytest.fixture
def orders(code):
    return code("unpaid-orders", "orders")


@pytest.fixture
def db(orders):
    db = orders.connect()
    yield db
    db.close()


def close_due(orders, db, queue):
    """Do what the worker does, until nothing is due; return what was closed."""
    closed = []
    while batch := queue.take(orders.TOPIC, 100):
        closed += [message.id for message in batch if orders.close(db, message.id)]
        queue.ack(batch)
    return closed


def states(db):
    return dict(db.execute("SELECT id, state FROM orders").fetchall())


def test_what_is_not_paid_is_closed_and_cannot_be_paid(orders, db):
    with dwell.open("memory:") as queue:
        orders.place(db, queue, "a", NOW)
        orders.place(db, queue, "b")
        assert close_due(orders, db, queue) == ["a"]
        assert not orders.pay(db, queue, "a")
        assert orders.pay(db, queue, "b")
        assert queue.get(orders.TOPIC, "b") is None
        assert orders.pay(db, queue, "b"), "who asks again is told the same"
        assert not orders.pay(db, queue, "c"), "nobody placed it"


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_lost_put_is_owed_and_swept(orders, db, when):
    with dwell.open("memory:") as queue:
        orders.place(db, Losing(queue, "put_many", when), "a", NOW)
        orders.sweep(db, queue)
        orders.sweep(db, queue)
        assert close_due(orders, db, queue) == ["a"]
        assert states(db) == {"a": "closed"}


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_lost_cancel_leaves_the_order_paid(orders, db, when):
    with dwell.open("memory:") as queue:
        orders.place(db, queue, "a", NOW)
        assert orders.pay(db, Losing(queue, "cancel", when), "a")
        assert close_due(orders, db, queue) == []
        assert states(db) == {"a": "paid"}


def test_an_order_that_was_placed_twice_is_one(orders, db):
    with dwell.open("memory:") as queue:
        orders.place(db, queue, "a", NOW)
        assert orders.pay(db, queue, "a")
        orders.place(db, queue, "a", NOW)
        assert states(db) == {"a": "paid"}


def test_a_late_sweep_moves_no_due(orders, db):
    clock = dwell.SimulatedClock(0)
    with dwell.open("memory:", clock=clock) as queue:
        orders.place(db, Losing(queue, "put_many", BEFORE), "a")
        (due_ms,) = db.execute("SELECT due_ms FROM orders").fetchone()
        clock.advance(due_ms - 1)
        orders.sweep(db, queue)
        assert len(queue.take(orders.TOPIC)) == 0
        clock.advance(1)
        assert close_due(orders, db, queue) == ["a"]


def test_payment_and_closing_at_the_same_time(orders, db):
    """Of many orders each is paid or closed, and who paid was told so."""
    ids = [f"order-{number}" for number in range(50)]
    paid = []

    def pay_all(queue):
        own = orders.connect()
        paid.extend(id_ for id_ in reversed(ids) if orders.pay(own, queue, id_))
        own.close()

    with dwell.open("memory:") as queue:
        for id_ in ids:
            orders.place(db, queue, id_, NOW)
        payer = threading.Thread(target=pay_all, args=[queue])
        payer.start()
        closed = close_due(orders, db, queue)
        payer.join()
        closed += close_due(orders, db, queue)
    assert sorted(paid + closed) == sorted(ids)
    assert states(db) == {id_: "paid" if id_ in paid else "closed" for id_ in ids}


_KILLED = """
import sys
import dwell, orders
from tests.howto.losing import Losing

what, verb, when = sys.argv[1:]
db = orders.connect()
with dwell.open("./queue") as queue:
    losing = Losing(queue, verb, when, kill=True)
    if what == "place":
        orders.place(db, losing, "a", 0.0)
    orders.place(db, queue, "a", 0.0)
    if what == "pay":
        orders.pay(db, losing, "a")
    for message in losing.take(orders.TOPIC, lease="1s"):
        orders.close(db, message.id)
        losing.ack(message)
"""


@pytest.mark.parametrize(
    ("what", "verb", "in_the_end"),
    [
        ("place", "put_many", "closed"),
        ("pay", "cancel", "paid"),
        ("close", "take", "closed"),
        ("close", "ack", "closed"),
    ],
)
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_killed_at_each_point(orders, db, what, verb, when, in_the_end):
    run(_KILLED, what, verb, when, exit_code=9)
    with dwell.open("./queue") as queue:
        orders.sweep(db, queue)
        if when == AFTER and verb == "take":
            # The lease of who was killed ends by itself.
            batch = queue.take(orders.TOPIC, wait="20s")
            assert [orders.close(db, message.id) for message in batch] == [True]
            queue.ack(batch)
        close_due(orders, db, queue)
    assert states(db) == {"a": in_the_end}
