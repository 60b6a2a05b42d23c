"""Allowances: how many messages of a topic may be taken now, where its settings bound that.

``most_leased`` follows from what is leased. ``rate`` is a bucket of tokens (Turner 1986): it fills
with so many a second up to a tenth of a second's worth, or one, and each message taken costs one.
So in any span of ``t`` seconds at most ``rate * t + max(rate / 10, 1)`` are taken.
"""

from math import ceil
from typing import Generic, TypeVar

from dwell.message import TopicSettings

#: What a topic is named by.
Name = TypeVar("Name", int, str)

#: What a taker finds at least who was told to come again, as a part of a second's worth.
_WORTH_WAKING = 0.01


class Allowances(Generic[Name]):
    """The buckets of topics that have a rate; who opens a store finds them full."""

    def __init__(self) -> None:
        self._buckets: dict[Name, tuple[float, int]] = {}
        #: When those topics may be taken from again that had more than was allowed.
        self._again_ms: dict[Name, int] = {}

    def left(self, name: Name, settings: TopicSettings, leased: int, now_ms: int) -> int | None:
        """Return how many messages of a topic may be taken now, None where nothing bounds it."""
        bounds = []
        if settings.most_leased:
            bounds.append(max(settings.most_leased - leased, 0))
        if settings.rate:
            bounds.append(int(self._tokens(name, settings.rate, now_ms)))
        return min(bounds, default=None)

    def spend(self, name: Name, rate: int, number: int, now_ms: int) -> None:
        """Note that so many messages were taken."""
        self._buckets[name] = (self._tokens(name, rate, now_ms) - number, now_ms)

    def come_again(self, name: Name, rate: int, now_ms: int) -> None:
        """Note that there was more to be taken than the rate allowed."""
        missing = max(rate * _WORTH_WAKING, 1) - self._tokens(name, rate, now_ms)
        if missing > 0:
            self._again_ms[name] = now_ms + ceil(missing * 1000 / rate)

    def next_ms(self) -> int | None:
        """Return when a topic can be taken from again first."""
        return min(self._again_ms.values(), default=None)

    def come(self, now_ms: int) -> list[Name]:
        """Return the topics that can be taken from again, and forget that they were waited for."""
        found = [name for name, again_ms in self._again_ms.items() if again_ms <= now_ms]
        for name in found:
            del self._again_ms[name]
        return found

    def turn_back(self, now_ms: int) -> None:
        """Let nobody wait for a time that was near, and is far as the clock went back."""
        self._again_ms = dict.fromkeys(self._again_ms, now_ms)
        for name, (tokens, at_ms) in self._buckets.items():
            self._buckets[name] = tokens, min(at_ms, now_ms)

    def forget(self, name: Name) -> None:
        """Forget a topic whose settings have changed."""
        self._buckets.pop(name, None)
        self._again_ms.pop(name, None)

    def _tokens(self, name: Name, rate: int, now_ms: int) -> float:
        most = max(rate / 10, 1)
        tokens, at_ms = self._buckets.get(name, (most, now_ms))
        return min(tokens + rate * max(now_ms - at_ms, 0) / 1000, most)
