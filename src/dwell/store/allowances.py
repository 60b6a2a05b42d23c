"""Allowances: how many messages of a topic may be taken now, where its settings bound that.

``most_leased`` follows from what is leased. ``rate`` is a bucket of tokens (Turner 1986): it fills
with so many a second up to a tenth of a second's worth, or one, and each message taken costs one.
So in any span of ``t`` seconds at most ``rate * t + max(rate / 10, 1)`` are taken. A bucket stays
when settings change, or else whoever changes them often would have no rate.
"""

import heapq
from math import ceil
from typing import Generic, NamedTuple, TypeVar

from dwell.message import TopicSettings

#: What a topic is named by.
Name = TypeVar("Name", int, str)

#: What a taker finds at least who was told to come again, as a part of a second's worth.
_WORTH_WAKING = 0.01

#: How many times that no longer hold may be kept.
_SPARE = 64


class _Bucket(NamedTuple):
    """How many tokens there were, when, and how many came a second then."""

    tokens: float
    at_ms: int
    rate: int


class Allowances(Generic[Name]):
    """The buckets of topics that have a rate; who opens a store finds them full."""

    def __init__(self) -> None:
        self._buckets: dict[Name, _Bucket] = {}
        #: When those topics may be taken from again that had more than was allowed.
        self._again_ms: dict[Name, int] = {}
        #: These times, and some that no longer hold.
        self._times: list[tuple[int, Name]] = []

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
        self._buckets[name] = _Bucket(self._tokens(name, rate, now_ms) - number, now_ms, rate)

    def come_again(self, name: Name, rate: int, now_ms: int) -> bool:
        """Note that there is more to be taken than the rate may allow; tell if it is next."""
        missing = max(rate * _WORTH_WAKING, 1) - self._tokens(name, rate, now_ms)
        if missing <= 0:
            return False
        again_ms = now_ms + ceil(missing * 1000 / rate)
        if not self._holds(again_ms, name):
            self._note(again_ms, name)
        return self._times[0] == (again_ms, name)

    def next_ms(self) -> int | None:
        """Return when a topic can be taken from again first."""
        while self._times and not self._holds(*self._times[0]):
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None

    def come(self, now_ms: int) -> list[Name]:
        """Return the topics that can be taken from again, and forget that they were waited for.

        Of one from which others took meanwhile it is to be noted anew that there is more.
        """
        found: list[Name] = []
        while self._times and self._times[0][0] <= now_ms:
            again_ms, name = heapq.heappop(self._times)
            if self._holds(again_ms, name):
                del self._again_ms[name]
                found.append(name)
        return found

    def turn_back(self, now_ms: int) -> None:
        """Let nobody wait for a time that was near, and is far as the clock went back."""
        self._again_ms = dict.fromkeys(self._again_ms, now_ms)
        self._sort()
        for name, bucket in self._buckets.items():
            self._buckets[name] = bucket._replace(at_ms=min(bucket.at_ms, now_ms))

    def look_again(self, name: Name) -> None:
        """Let a topic that is waited for come at once, as its settings have changed."""
        if name in self._again_ms:
            self._note(0, name)

    def _note(self, again_ms: int, name: Name) -> None:
        self._again_ms[name] = again_ms
        heapq.heappush(self._times, (again_ms, name))
        if len(self._times) > 2 * len(self._again_ms) + _SPARE:
            self._sort()

    def _holds(self, again_ms: int, name: Name) -> bool:
        return self._again_ms.get(name) == again_ms

    def _sort(self) -> None:
        self._times = [(again_ms, name) for name, again_ms in self._again_ms.items()]
        heapq.heapify(self._times)

    def _tokens(self, name: Name, rate: int, now_ms: int) -> float:
        """Return how many tokens there are, of which the bucket holds so many."""
        most = max(rate / 10, 1)
        bucket = self._buckets.get(name)
        if bucket is None:
            return most
        # When a rate was changed is not known, so until it is first looked at the lower one counts.
        added = min(rate, bucket.rate) * max(now_ms - bucket.at_ms, 0) / 1000
        tokens = min(bucket.tokens + added, most)
        if rate != bucket.rate:
            self._buckets[name] = _Bucket(tokens, now_ms, rate)
        return tokens
