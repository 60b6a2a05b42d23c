"""Ledger: what tokens that share a prefix have put since a look at the store, or are putting.

A look finds all puts from before its start. Puts during a look may or may not be found, and count
until the next look.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sum:
    """Messages, bytes and topics that no look has found yet.

    ``topics`` has for each topic how many puts, messages and bytes that are.
    """

    messages: int = 0
    size_bytes: int = 0
    topics: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, topic: str | None, messages: int, size_bytes: int, puts: int = 1) -> None:
        """Add a put; without a topic it is only bytes."""
        self.messages += messages
        self.size_bytes += size_bytes
        if topic is not None:
            self._add_to(topic, (puts, messages, size_bytes))

    def take(self, topic: str | None, messages: int, size_bytes: int) -> None:
        """Take back a put."""
        self.add(topic, -messages, -size_bytes, -1)

    def merge(self, other: "Sum") -> None:
        """Add all that another sum has."""
        self.messages += other.messages
        self.size_bytes += other.size_bytes
        for topic, of in other.topics.items():
            self._add_to(topic, of)

    def _add_to(self, topic: str, of: tuple[int, int, int]) -> None:
        puts, messages, size_bytes = self.topics.get(topic, (0, 0, 0))
        self.topics[topic] = puts + of[0], messages + of[1], size_bytes + of[2]
        if not puts + of[0]:
            del self.topics[topic]


class Ledger:
    """The sums of all tokens for the topics with one prefix that each of them names."""

    __slots__ = ("_before", "brought", "prefix", "under_way")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._before, self.brought, self.under_way = Sum(), Sum(), Sum()

    def meets(self, prefixes: tuple[str, ...]) -> bool:
        """Tell whether any name begins with its prefix and with one of others."""
        return self.prefix.startswith(prefixes) or any(
            prefix.startswith(self.prefix) for prefix in prefixes
        )

    def begin_look(self) -> None:
        """Note that the look will include all puts until now."""
        self._before.merge(self.brought)
        self.brought = Sum()

    def end_look(self) -> None:
        """Note that it was found."""
        self._before = Sum()

    def __contains__(self, topic: object) -> bool:
        return any(topic in one.topics for one in self._sums)

    def topics(self, prefixes: tuple[str, ...], seen: Container[str]) -> set[str]:
        """Return the topics with prefixes that a look has not found yet."""
        return {topic for topic, *_ in self._of(prefixes) if topic not in seen}

    def amount(self, prefixes: tuple[str, ...]) -> tuple[int, int]:
        """Return the messages and bytes in topics with prefixes that no look has found yet."""
        sums = self._sums
        if self.prefix.startswith(prefixes):
            return sum(one.messages for one in sums), sum(one.size_bytes for one in sums)
        found = list(self._of(prefixes))
        return sum(count for _, count, _ in found), sum(size for *_, size in found)

    def _of(self, prefixes: tuple[str, ...]) -> Iterator[tuple[str, int, int]]:
        for one in self._sums:
            for topic, (_, messages, size_bytes) in one.topics.items():
                if topic.startswith(prefixes):
                    yield topic, messages, size_bytes

    @property
    def _sums(self) -> tuple[Sum, ...]:
        return self._before, self.brought, self.under_way
