"""The books of ``make survive`` see what they are for, in histories that are made up."""

import pytest

from tools.survive import disks, page
from tools.survive.books import Books, Row
from tools.survive.rules import Delivery, rule_of

pytestmark = pytest.mark.campaign

LEASE_MS = 100


class History:
    """Lines as actors say them, at made-up times: seconds since the start, both clocks alike."""

    def __init__(self):
        self.books = Books()

    def put(self, at_s, due_s=0.0, expires_s=0.0):
        times = [int(due_s * 1000), int(expires_s * 1000)]
        self.books.enter("p", [[at_s, "put", "a", "t", *times], [at_s, "answered", ["a"]]])

    def take(self, at_s, attempt=1, due_s=0.0, taker="t1"):
        at_ms = int(at_s * 1000)
        times = [int(due_s * 1000), 0, at_ms, at_ms + LEASE_MS, at_ms, at_ms]
        self.books.enter(taker, [[at_s, "taken", "a", attempt, *times]])

    def ack(self, at_s, result="acked", attempt=1):
        lines = [[at_s, "ack", "a", attempt]]
        lines += [[at_s, "acked", "a", attempt, result]] if result else []
        self.books.enter("t1", lines)

    def settle(self, *there):
        return self.books.settle(Row("", "", ""), set(there))


@pytest.fixture
def history():
    history = History()
    history.put(1)
    return history


def test_what_was_acked_is_not_lost_and_what_is_there_neither(history):
    assert not history.settle("a").wrong
    history.take(2)
    history.ack(2)
    assert not history.settle().wrong
    assert history.settle("a").wrong == ["there after its ack was answered: a"]


@pytest.mark.parametrize("taken", [False, True])
def test_what_was_answered_and_is_nowhere_is_lost(history, taken):
    if taken:
        history.take(2)
        # It came too late, so that it is somebody else's now.
        history.ack(3, "stale")
    assert history.settle().lost == 1


def test_who_acks_too_late_undoes_nobody_s_ack(history):
    history.take(2)
    history.take(3, attempt=2)
    history.ack(3.1, attempt=2)
    history.ack(3.2, "stale")
    assert not history.books.pending()
    assert history.settle().lost == 0


def test_an_ack_whose_answer_was_lost_may_be_done(history):
    history.take(2)
    history.ack(2, "")
    assert history.settle().lost == history.settle("a").lost == 0


def test_before_its_due_is_early_and_from_its_expiry_on_expired():
    for at_s, early, expired in ((1.999, 1, 0), (2, 0, 0), (2.999, 0, 0), (3, 0, 1)):
        history = History()
        history.put(1, due_s=2, expires_s=3)
        # Also when the store has made another due of it.
        history.take(at_s, due_s=1)
        row = history.settle("a")
        assert (row.early, row.expired) == (early, expired)
        assert len(row.wrong) == early + expired


def test_each_second_delivery_has_a_rule(history):
    for at_s, attempt in ((2, 1), (2.1, 2), (2.15, 3), (2.3, 3), (2.4, 4)):
        history.take(at_s, attempt)
    # The third came before the lease of the second was over, and twice with the same attempt.
    assert history.settle("a").doubled == {"lease ended": 2, "unexplained": 2}


@pytest.mark.parametrize(
    ("fate", "died_at_s", "failures", "rule"),
    [
        ("", None, [], "lease ended"),
        ("stale", 2.0, [], "lease ended"),
        ("", 2.0, [2.0], "taker died"),
        ("", 9.0, [], "lease ended"),
        ("ack asked", None, [], "answer of an ack lost"),
        ("ack asked", 2.0, [], "taker died"),
        ("ack asked", None, [2.0], "store failed before the ack was answered"),
        ("ack asked", None, [0.5, 9.0], "answer of an ack lost"),
        ("released", None, [], "released"),
        ("acked", None, [2.0], "unexplained"),
    ],
)
def test_the_rules(fate, died_at_s, failures, rule):
    first = Delivery("t", 1.0, 1, 0, 0, 0, 100, 0, 0, fate)
    second = Delivery("u", 3.0, 2, 0, 0, 200, 300, 200, 200)
    assert rule_of(first, second, died_at_s, failures) == rule


@pytest.mark.parametrize(
    ("after_s", "steps", "rule"),
    [
        (0.5, [(1.2, 3600.0), (1.3, -3600.0)], "clock set over the lease's end"),
        (2.0, [(1.2, -3600.0)], "lease ended"),
        (0.5, [(1.2, -3600.0)], "unexplained"),
        (0.5, [(0.1, 3600.0), (1.6, 3600.0)], "unexplained"),
        (0.5, [(1.2, 0.1)], "unexplained"),
    ],
)
def test_a_clock_that_was_set_explains_no_more_than_it_does(after_s, steps, rule):
    first = Delivery("t", 1.0, 1, 0, 0, 0, 1500, 0, 0)
    second = Delivery("u", 1.0 + after_s, 2, 0, 0, 500, 2000, 500, 500)
    assert rule_of(first, second, None, steps=steps) == rule


@pytest.mark.parametrize("failure", disks.FAULTS)
def test_a_disk_that_fails_loses_nothing(failure):
    row = disks.run(failure, 3, 5)
    assert not row.wrong
    assert row.runs
    assert row.puts > 100
    assert failure in "\n".join(page.rows_table([row]))
