"""Reckonings: compute in a thread that can be abandoned what schedules are to do now."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dwell.errors import InvalidInput, InvalidSchedule
from dwell.message import MAX_DELAY_MS, Message
from dwell.queue.schedules.schedule import (
    AHEAD_MS,
    NEVER_MS,
    Schedule,
    schedule_of,
    since_ms,
)
from dwell.queue.schedules.sidethread import begun
from dwell.queue.schedules.times import Plan, plan


class Work(NamedTuple):
    """A schedule that was taken, and its plan."""

    message: Message
    schedule: Schedule
    to_do: Plan


class Bad(NamedTuple):
    """A message that is to be buried, and the reason."""

    message: Message
    reason: str


class Cut(NamedTuple):
    """The progress of a reckoning: results, the message in work, and messages not yet started."""

    found: Sequence[Work | Bad]
    slow: Message | None
    left: Sequence[Message]


class Reckoning:
    """Computes the plans of messages, one after the other.

    ``fired`` has the last fired moments of schedules whose messages do not tell them;
    ``forward_ms`` is as for :func:`since_ms`.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        now_ms: int,
        fired: Mapping[str, int] | None = None,
        forward_ms: int | None = None,
    ) -> None:
        self._messages, self._now_ms, self._fired = messages, now_ms, fired or {}
        self._forward_ms = forward_ms
        self._found: list[Work | Bad] = []
        self._begun, self._is_cut = 0, False
        self._lock = threading.Lock()
        self._done = begun(self._reckon)

    async def wait(self, most_s: float) -> bool:
        """Wait up to ``most_s`` seconds; return whether the reckoning is complete."""
        try:
            await asyncio.wait({self._done}, timeout=most_s)
        except asyncio.CancelledError:
            self.end()
            raise
        return self._done.done()

    def end(self) -> None:
        """Abandon the thread."""
        self._done.cancel()

    def cut(self) -> Cut:
        """Stop after the message in work, and return the progress; :attr:`last` is its result."""
        with self._lock:
            self._is_cut = True
            found, begun = list(self._found), self._begun
        slow = self._messages[len(found)] if begun > len(found) else None
        return Cut(found, slow, self._messages[begun:])

    @property
    def last(self) -> Work | Bad:
        """The last result."""
        return self._found[-1]

    def _reckon(self) -> None:
        for message in self._messages:
            with self._lock:
                if self._is_cut:
                    break
                self._begun += 1
            found = self._reckoned(message)
            with self._lock:
                self._found.append(found)

    def _reckoned(self, message: Message) -> Work | Bad:
        """Return the plan of a message, or the reason why the message is not a valid schedule."""
        try:
            schedule = schedule_of(message)
            since = since_ms(message, self._now_ms, schedule, self._forward_ms)
            since = max(since, self._fired.get(message.id, -1))
            return Work(message, schedule, _plan_of(schedule, since, self._now_ms))
        except InvalidInput as error:
            return Bad(message, str(error))
        except Exception as error:
            # One bad message must not stop the other schedules.
            return Bad(message, f"schedule {message.id}: {type(error).__name__}: {error}")


def _plan_of(schedule: Schedule, since: int, now_ms: int) -> Plan:
    how = (schedule.misfire, schedule.grace_ms)
    if schedule.paused:
        # The message of a paused schedule was rescheduled by hand.
        return Plan(since, [], None, now_ms + NEVER_MS)
    # The last firer may have died before the schedule could tell which messages were put.
    knows_passed = schedule.overlap != "queue"
    found = plan(schedule.times, since, now_ms, *how, ahead_ms=AHEAD_MS, knows_passed=knows_passed)
    if found.next_ms is not None and found.next_ms - now_ms > MAX_DELAY_MS:
        raise InvalidSchedule(f"schedule {schedule.name}: fires next in more than 100 years")
    return found
