"""Allowances: how many messages of a topic may be taken now, if its settings limit that.

``most_leased`` counts the current leases. ``rate`` is a bucket of tokens (Turner 1986): it fills at
``rate`` tokens a second up to a tenth of a second's worth, or one, and each message taken costs
one. So in any span of ``t`` seconds at most ``rate * t + max(rate / 10, 1)`` are taken. A bucket is
kept when settings change, because frequent changes would otherwise bypass the rate.
"""

import heapq
from math import ceil
from typing import Generic, NamedTuple, TypeVar

from dwell.message import TopicSettings

#: The type of a topic's name in a store.
Name = TypeVar("Name", int, str)

#: A waiting taker is woken for no less than this, as a part of a second's worth.
_WORTH_WAKING = 0.01

#: How many outdated times may be kept.
_SPARE = 64


class _Bucket(NamedTuple):
    """The tokens at a time, and the rate then."""

    tokens: float
    at_ms: int
    rate: float


class Allowances(Generic[Name]):
    """The buckets of topics with a rate; they are full when a store is opened."""

    def __init__(self) -> None:
        self._buckets: dict[Name, _Bucket] = {}
        #: When to retry topics that had more ready messages than their rate allowed.
        self._again_ms: dict[Name, int] = {}
        #: These times, and some that are outdated.
        self._times: list[tuple[int, Name]] = []

    def left(self, name: Name, settings: TopicSettings, leased: int, now_ms: int) -> int | None:
        """Return how many messages of a topic may be taken now, None without a limit."""
        bounds = []
        if settings.most_leased:
            bounds.append(max(settings.most_leased - leased, 0))
        if settings.rate:
            bounds.append(int(self._tokens(name, settings.rate, now_ms)))
        return min(bounds, default=None)

    def spend(self, name: Name, rate: float, number: int, now_ms: int) -> None:
        """Note that ``number`` messages were taken."""
        self._buckets[name] = _Bucket(self._tokens(name, rate, now_ms) - number, now_ms, rate)

    def come_again(self, name: Name, rate: float, now_ms: int) -> bool:
        """Note that more is ready than the rate may allow; tell if this retry time is the next."""
        missing = max(rate * _WORTH_WAKING, 1) - self._tokens(name, rate, now_ms)
        if missing <= 0:
            return False
        again_ms = now_ms + ceil(missing * 1000 / rate)
        if not self._holds(again_ms, name):
            self._note(again_ms, name)
        return self._times[0] == (again_ms, name)

    def next_ms(self) -> int | None:
        """Return the earliest retry time of a topic."""
        while self._times and not self._holds(*self._times[0]):
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None

    def come(self, now_ms: int) -> list[Name]:
        """Return the topics whose retry time has come, and drop their retry times.

        If others have taken from a topic since, it must be noted again that more is ready.
        """
        found: list[Name] = []
        while self._times and self._times[0][0] <= now_ms:
            again_ms, name = heapq.heappop(self._times)
            if self._holds(again_ms, name):
                del self._again_ms[name]
                found.append(name)
        return found

    def turn_back(self, now_ms: int) -> None:
        """Move all retry times to now, because the clock went back and they are far away."""
        self._again_ms = dict.fromkeys(self._again_ms, now_ms)
        self._sort()
        for name, bucket in self._buckets.items():
            self._buckets[name] = bucket._replace(at_ms=min(bucket.at_ms, now_ms))

    def forget(self, name: Name) -> None:
        """Begin anew with a topic, because another one has its name now."""
        self._buckets.pop(name, None)
        self._again_ms.pop(name, None)

    def look_again(self, name: Name) -> None:
        """Retry a waiting topic at once, because its settings have changed."""
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

    def _tokens(self, name: Name, rate: float, now_ms: int) -> float:
        """Return how many tokens are in the bucket, at most its capacity."""
        most = max(rate / 10, 1)
        bucket = self._buckets.get(name)
        if bucket is None:
            return most
        # The time of a rate change is unknown, so the lower rate counts until the next look.
        added = min(rate, bucket.rate) * max(now_ms - bucket.at_ms, 0) / 1000
        tokens = min(bucket.tokens + added, most)
        if rate != bucket.rate:
            self._buckets[name] = _Bucket(tokens, now_ms, rate)
        return tokens
