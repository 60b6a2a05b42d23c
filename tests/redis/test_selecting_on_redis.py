"""Selecting, over Redis with several shards."""

import pytest

from dwell.clock import RealClock
from tests.redis.test_redis_suite import new_store
from tests.selections import CHANGES, check, check_change, run

PAIRS = pytest.mark.parametrize(
    ("make_store", "face"), [(1, "http"), (3, "python")], indirect=["make_store"]
)


@pytest.fixture
def make_store(request, redis_url):
    """Return what makes a store of so many shards."""
    return lambda: new_store(redis_url, RealClock(), shards=request.param)


@PAIRS
def test_a_selection_gives_what_a_plain_filter_gives(make_store, face, monkeypatch):
    run(make_store, face, monkeypatch, check)


@PAIRS
def test_what_is_changed_is_what_a_plain_filter_gives(make_store, face, monkeypatch):
    run(make_store, face, monkeypatch, check_change, CHANGES)
