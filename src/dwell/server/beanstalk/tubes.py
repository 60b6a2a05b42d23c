"""The names of tubes as topics, and the tubes that are paused.

A topic may not hold the characters ``+ / ; $ ( )``, which a tube may: they become ``:`` and two
hexadecimal digits. No tube's name has a ``:``, so two tubes never share a topic. A topic whose name
has another ``:`` is not a tube.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from dwell.clock.clock import monotonic_ms
from dwell.message import MAX_TOPIC_CHARS

DEFAULT_TUBE = "default"

#: How many topics may be paused at a time.
_MOST_PAUSES = 10_000
#: The number of noted tubes from which on deleted tubes are removed.
_MOST_NOTED = 10_000

_FOREIGN = re.compile(r"[+/;$()]")
_ESCAPED = re.compile(r":(2B|2F|3B|24|28|29)")


@lru_cache(maxsize=10_000)
def topic_of(tube: str) -> str | None:
    """Return the topic of a tube's jobs; None if its name would be too long."""
    topic = _FOREIGN.sub(lambda found: f":{ord(found[0]):02X}", tube)
    return topic if len(topic) <= MAX_TOPIC_CHARS else None


@lru_cache(maxsize=10_000)
def tube_of(topic: str) -> str:
    """Return the tube of a topic, or the topic's name if it has no tube."""
    tube = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), topic)
    return tube if is_tube(topic) else topic


def is_tube(topic: str) -> bool:
    """Tell whether a tube can have this topic."""
    return ":" not in _ESCAPED.sub("", topic) and not topic.startswith("-")


class TubeOrder:
    """The order in which the tubes that this port knows were made.

    ``chosen`` are the tubes that connections use or watch now.
    """

    def __init__(self, chosen: Iterable[str]) -> None:
        self._chosen = chosen
        self._noted = {DEFAULT_TUBE: None}
        self._purge_at = _MOST_NOTED

    def note(self, tube: str) -> None:
        """Note a tube that a connection chose."""
        if len(self._noted) >= self._purge_at:
            there = set(self._chosen)
            self._note_only(tube for tube in self._noted if tube in there)
        self._noted[tube] = None

    def ordered(self, tubes: Mapping[str, str]) -> dict[str, str]:
        """Return the existing tubes in order, with their values."""
        # Noted tubes keep their places.
        found = {tube: tubes[tube] for tube in self._noted if tube in tubes} | dict(tubes)
        self._note_only(found)
        return found

    def _note_only(self, tubes: Iterable[str]) -> None:
        """Note these tubes, in their order, and no others."""
        self._noted = {DEFAULT_TUBE: None, **dict.fromkeys(tubes)}
        self._purge_at = 2 * len(self._noted) + _MOST_NOTED


class Pauses:
    """The topics that are paused for callers of this protocol.

    A pause is a span, so setting the wall clock makes it neither longer nor shorter.
    """

    def __init__(self) -> None:
        self._ends_ms: dict[str, int] = {}
        self._delays_s: dict[str, int] = {}

    def pause(self, topic: str, delay_s: int) -> bool:
        """Pause a topic for some seconds; return False if too many topics are paused."""
        if len(self._ends_ms) >= _MOST_PAUSES and topic not in self._ends_ms:
            self.active(list(self._ends_ms))
            if len(self._ends_ms) >= _MOST_PAUSES:
                return False
        self._ends_ms[topic] = monotonic_ms() + delay_s * 1000
        self._delays_s[topic] = delay_s
        return True

    def active(self, topics: Iterable[str]) -> tuple[tuple[str, ...], int | None]:
        """Return the topics that are not paused, and in how many ms the next pause ends."""
        if not self._ends_ms:
            return tuple(topics), None
        left = {topic: self.left_ms(topic) for topic in topics}
        waits = [ms for ms in left.values() if ms]
        return tuple(topic for topic, ms in left.items() if not ms), min(waits, default=None)

    def left_ms(self, topic: str) -> int:
        """Return how much longer a topic is paused; 0 when it is not."""
        end_ms = self._ends_ms.get(topic)
        if end_ms is None:
            return 0
        left_ms = end_ms - monotonic_ms()
        if left_ms <= 0:
            del self._ends_ms[topic], self._delays_s[topic]
        return max(left_ms, 0)

    def delay_s(self, topic: str) -> int:
        """Return for how long a topic was paused; 0 when it is not."""
        return self._delays_s[topic] if self.left_ms(topic) else 0
