"""Pauses between the tries of a request: as many as were asked for, and knocks between them."""

import random
from itertools import pairwise

import pytest

from dwell.client import pauses
from dwell.client.pauses import Pauses


@pytest.fixture
def now(monkeypatch):
    """A time that only passes when a test lets it."""
    at = [1000.0]
    monkeypatch.setattr(pauses.time, "monotonic", lambda: at[0])
    return at


def _tries(now, retries: int, is_refused: bool, seed: int) -> list[float]:
    """Return after how long each try is made, where all fail."""
    random.seed(seed)
    began, tries, of = now[0], [], Pauses(retries)
    while True:
        tries.append(now[0] - began)
        pause_s = of.next_s(is_refused=is_refused)
        if pause_s is None:
            return tries
        assert pause_s > 0
        now[0] += pause_s


@pytest.mark.parametrize("seed", range(20))
def test_a_request_is_tried_as_often_as_was_asked_for(now, seed):
    assert [len(_tries(now, retries, False, seed)) for retries in (0, 1, 7)] == [1, 2, 8]


@pytest.mark.parametrize("seed", range(20))
def test_who_knocks_hears_soon_that_a_server_is_back(now, seed):
    """No pause is much longer than the server has been away, and patience is no shorter."""
    patient = _tries(now, 9, False, seed)[-1]
    tries = _tries(now, 9, True, seed)
    for before, after in pairwise(tries):
        assert after - before <= max(0.08, 0.16 * before)
    assert 0.5 * patient <= tries[-1] <= 2 * patient
    assert len(tries) < 80


def test_what_a_server_asks_for_is_heeded(now):
    assert Pauses(1).next_s(is_refused=False, after_s=3) > 3
