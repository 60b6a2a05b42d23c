"""Schedules that a worker's code declares: put when it starts, taken back when the code is gone."""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dwell.errors import InvalidInput, InvalidSchedule
from dwell.message import Result
from dwell.queue import Queue
from dwell.queue.schedules.schedules import Schedules


@dataclass(frozen=True)
class Declared:
    """One schedule of a worker: ``words`` are what :meth:`Schedules.put` takes beside the name."""

    name: str
    topic: str
    body: object
    words: dict[str, Any] = field(default_factory=dict)


#: What a schedule may say beside what a worker says itself.
_WORDS = [
    name
    for name, parameter in inspect.signature(Schedules.put).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name not in ("cron", "every", "rrule", "app")
]


def check_words(words: Iterable[str]) -> None:
    """Refuse what a schedule does not have; raises InvalidInput."""
    if unknown := sorted(set(words) - set(_WORDS)):
        raise InvalidInput(f"every: got {unknown[0]!r}, expected one of {', '.join(_WORDS)}")


async def declare(queue: Queue, app: str, declared: list[Declared]) -> None:
    """Put the schedules of an app, and remove those of the same app that are not among them.

    Raises InvalidSchedule, also for a name that another app, or somebody by hand, has taken.
    """
    schedules = queue.schedules
    for one in declared:
        try:
            found = await schedules.get(one.name)
        except InvalidSchedule:
            # Newer code has put it, or somebody by hand; it is replaced.
            found = None
        if found is not None and found.schedule.app != app:
            owner = found.schedule.app or "nobody's code"
            raise InvalidSchedule(f"schedule {one.name}: belongs to {owner}, expected {app}")
        await schedules.put(one.name, one.topic, one.body, app=app, **one.words)
    names = {one.name for one in declared}
    old = [p.schedule.name async for p in schedules.each(app) if p.schedule.name not in names]
    for name in old:
        assert await schedules.remove(name) in (Result.CANCELLED, Result.UNKNOWN)
