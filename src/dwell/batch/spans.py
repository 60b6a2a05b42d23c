"""Spans of time of one length, and how many moments fall into each."""

import msgspec
import numpy as np

from dwell.message import I64


class Spans(msgspec.Struct, frozen=True):
    """``count`` spans of ``span_ms`` each, one after another from ``start_ms`` on."""

    start_ms: int
    span_ms: int
    count: int

    @property
    def end_ms(self) -> int:
        """Where the last of them ends."""
        return self.start_ms + self.span_ms * self.count

    def none(self) -> I64:
        """Return that nothing falls into any of them."""
        return np.zeros(self.count, np.int64)

    def counted(self, moments_ms: I64) -> I64:
        """Return how many of some moments fall into each span."""
        inside = (moments_ms >= self.start_ms) & (moments_ms < self.end_ms)
        places = (moments_ms[inside] - self.start_ms) // self.span_ms
        return np.bincount(places, minlength=self.count).astype(np.int64)
