"""The names of tubes as topics, and the tubes that are paused.

A topic may not hold the characters ``+ / ; $ ( )``, which a tube may: they become ``:`` and two
hexadecimal digits. No tube's name holds ``:``, so no two tubes are one topic, and a topic whose
name has other uses for it is no tube.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from dwell.clock.clock import monotonic_ms
from dwell.message import MAX_TOPIC_CHARS

DEFAULT_TUBE = "default"

#: How many topics may be paused at a time.
_MOST_PAUSES = 10_000
#: From how many noted tubes on it is looked which of them are still there.
_MOST_NOTED = 10_000

_FOREIGN = re.compile(r"[+/;$()]")
_ESCAPED = re.compile(r":(2B|2F|3B|24|28|29)")


@lru_cache(maxsize=10_000)
def topic_of(tube: str) -> str | None:
    """Return the topic that holds a tube's jobs; None when its name would be too long."""
    topic = _FOREIGN.sub(lambda found: f":{ord(found[0]):02X}", tube)
    return topic if len(topic) <= MAX_TOPIC_CHARS else None


@lru_cache(maxsize=10_000)
def tube_of(topic: str) -> str:
    """Return the tube whose jobs a topic holds, or the topic as it is when there is none."""
    tube = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), topic)
    return tube if is_tube(topic) else topic


def is_tube(topic: str) -> bool:
    """Tell whether a tube can have this topic."""
    return ":" not in _ESCAPED.sub("", topic) and not topic.startswith("-")


class TubeOrder:
    """The order in which tubes came to be, of those that this port has heard of.

    ``chosen`` are those that connections use or watch now.
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
        """Return all tubes that there are in order, with what they are mapped to."""
        # Those that are noted keep their places.
        found = {tube: tubes[tube] for tube in self._noted if tube in tubes} | dict(tubes)
        self._note_only(found)
        return found

    def _note_only(self, tubes: Iterable[str]) -> None:
        """Note these tubes, in their order, and no others."""
        self._noted = {DEFAULT_TUBE: None, **dict.fromkeys(tubes)}
        self._purge_at = 2 * len(self._noted) + _MOST_NOTED


class Pauses:
    """The topics that give nothing for a time, to those that come by this protocol.

    The time is a span, so a wall clock that is set makes it neither longer nor shorter.
    """

    def __init__(self) -> None:
        self._ends_ms: dict[str, int] = {}
        self._delays_s: dict[str, int] = {}

    def pause(self, topic: str, delay_s: int) -> bool:
        """Let a topic give nothing for some seconds; tell whether there was room to note it."""
        if len(self._ends_ms) >= _MOST_PAUSES and topic not in self._ends_ms:
            self.active(list(self._ends_ms))
            if len(self._ends_ms) >= _MOST_PAUSES:
                return False
        self._ends_ms[topic] = monotonic_ms() + delay_s * 1000
        self._delays_s[topic] = delay_s
        return True

    def active(self, topics: Iterable[str]) -> tuple[tuple[str, ...], int | None]:
        """Return the topics that are not paused, and in how many ms the first other one is not."""
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
