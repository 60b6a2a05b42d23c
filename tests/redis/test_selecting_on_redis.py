"""Selecting, over Redis with several shards."""

import pytest

from dwell.clock import RealClock
from tests.redis.test_redis_suite import new_store
from tests.selections import CHANGES, check, check_change, run


@pytest.fixture(params=[1, 3])
def make_store(request, redis_url):
    """Return what makes a store of so many shards."""
    return lambda: new_store(redis_url, RealClock(), shards=request.param)


@pytest.mark.parametrize("face", ["python", "http"])
def test_a_selection_gives_what_a_plain_filter_gives(make_store, face, monkeypatch):
    run(make_store, face, monkeypatch, check)


@pytest.mark.parametrize("face", ["python", "http"])
def test_what_is_changed_is_what_a_plain_filter_gives(make_store, face, monkeypatch):
    run(make_store, face, monkeypatch, check_change, CHANGES)
