"""A Redis with schedules of another system, which is only read."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

import redis

from dwell.calendar.epoch import from_ms
from dwell.clock import Clock
from dwell.errors import InvalidSchedule, InvalidUrl
from dwell.given import values
from dwell.queue.schedules.words import made
from dwell.takeover.entries import Entry, options_of
from dwell.takeover.redislink import understood
from dwell.urls import has_host, shown

_PATIENCE_S = 10.0


class RedisSource(ABC):
    """Schedules of a system; ``OPTIONS`` names what an address may say, with the defaults."""

    SYSTEM: ClassVar[str]
    SCHEME: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, str]]

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        rest, options = options_of(url.removeprefix(f"{self.SCHEME}+"), self.OPTIONS)
        parts = urlsplit(rest)
        if parts.scheme not in ("redis", "rediss") or not has_host(url) or parts.query:
            said = "&".join(f"{name}={name.upper()}" for name in self.OPTIONS)
            form = f"{self.SCHEME}+redis://HOST:PORT/DB[?{said}]"
            raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected {form}")
        self.options = {**self.OPTIONS, **options}
        self.topic = None if topic is None else values.topic(topic)
        self.where = f"{self.SYSTEM} at {parts.hostname}:{parts.port or 6379}"
        self._url, self._clock = rest, clock

    @abstractmethod
    def read(self, client: Any) -> Iterator[Entry]:
        """Yield the entries; raises InvalidUrl for another system."""

    def entries(self) -> Iterator[Entry]:
        """Yield the entries; raises InvalidUrl or ServerUnreachable."""
        # redis-py declares the answers of all its modes at once.
        client: Any = redis.Redis.from_url(
            self._url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S
        )
        with understood(self.where), contextlib.closing(client):
            yield from self.read(client)

    def check_next(self, entry: Entry, next_ms: int) -> None:
        """Raise InvalidSchedule if a schedule would not run when the other system runs it next."""
        now_ms = self._clock.now_ms()
        schedule = made(entry.name, entry.topic, entry.body, entry.words, now_ms)
        # In another zone it may also run then, but runs before that.
        found_ms = schedule.times.after(min(now_ms, next_ms - 1))
        if found_ms != next_ms:
            found = "never" if found_ms is None else f"at {from_ms(found_ms):%Y-%m-%dT%H:%M:%SZ}"
            raise InvalidSchedule(
                f"zone: got {schedule.zone}, where it runs {found}, expected the one where "
                f"{self.SYSTEM} runs it at {from_ms(next_ms):%Y-%m-%dT%H:%M:%SZ}: give &zone=NAME"
            )


def either_day(line: str) -> str:
    """Return a line of a system that runs on each day of the month or weekday that is listed.

    So does Dwell, as cron does, unless one of these fields begins with ``*``. Raises
    InvalidSchedule for a line with a step there, which the two systems read differently.
    """
    fields = line.split()
    days = fields[-3::2] if len(fields) in (5, 6) else []
    are_limits = [field not in ("*", "?") for field in days]
    if all(are_limits) and any(field.startswith("*") for field in days):
        allowed = "days that are listed where a weekday is too, such as 1-31/2 instead of */2"
        raise InvalidSchedule(f"cron: got {line!r:.80}, expected {allowed}")
    return line
