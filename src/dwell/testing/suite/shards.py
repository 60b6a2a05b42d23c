"""Rules that hold within a shard, and not across several.

They are the order, all or none, and ``max_pending``; and an id is found only under the key of its
put. A suite of a store of several shards sets ``shards = 4``, and skips them.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from dwell.testing.rig import Suite


def skip_over_shards(suite: Suite) -> None:
    """Skip the rest of a test when the suite's store has several shards."""
    if getattr(suite, "shards", 1) > 1:
        pytest.skip("holds within a shard")


def within_a_shard(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of a suite as one of a rule that holds within a shard."""

    @functools.wraps(test)
    def run(self: Suite, **arguments: Any) -> None:
        skip_over_shards(self)
        test(self, **arguments)

    return run
