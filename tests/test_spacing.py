"""Spacing of wakes: a token bucket for each topic, of which idle ones are forgotten."""

from dwell.queue import spacing
from dwell.queue.spacing import Spacing


def test_topics_whose_last_wake_says_nothing_any_more_are_forgotten():
    one = Spacing()
    one.seconds = 0.004
    for at in range(20_000):
        one.spend(f"t{at}", at / 1000)
    assert len(one._next_at) < 2 * spacing._MOST_TOPICS


def test_forgetting_changes_no_wake(monkeypatch):
    monkeypatch.setattr(spacing, "_MOST_TOPICS", 3)
    few, many = Spacing(), Spacing()
    few.seconds = many.seconds = 0.004
    few._forget_at, many._forget_at = 3, 10**9
    for at in range(2_000):
        name, now = f"t{at * 7 % 11}", at / 3000
        assert few.is_early(name, now) == many.is_early(name, now)
        assert few.spend(name, now) == many.spend(name, now)
    assert len(few._next_at) < 12
