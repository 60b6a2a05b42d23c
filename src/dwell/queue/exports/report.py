"""The report of an import: counts by topic, which balance."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    """The counts of one topic.

    ``kept`` messages have ids that exist already, and a full topic drops the ``dropped`` messages.
    """

    read: int = 0
    created: int = 0
    kept: int = 0
    dropped: int = 0
    rejected: int = 0
    skipped: int = 0

    def add(self, name: str, count: int) -> None:
        """Count messages that something became of; they are read when it did."""
        self.read += count
        setattr(self, name, getattr(self, name) + count)

    @property
    def balances(self) -> bool:
        """Tell whether something became of each message that was read."""
        ends = self.created + self.kept + self.dropped + self.rejected + self.skipped
        return self.read == ends


@dataclass
class Imported:
    """The counts of an import, by topic; ``is_whole`` when the export was read to its end.

    ``total`` has the counts of all topics together. ``settings`` names the topics that got the
    settings of the export, and ``strange_settings`` the settings that this version does not know.
    """

    rows: int = 0
    topics: dict[str, Tally] = field(default_factory=dict)
    settings: list[str] = field(default_factory=list)
    is_whole: bool = False
    total: Tally = field(default_factory=Tally)
    strange_settings: list[str] = field(default_factory=list)

    def count(self, topic: str, name: str, count: int) -> None:
        """Count messages of a topic."""
        self.topics[topic].add(name, count)
        self.total.add(name, count)

    @property
    def balances(self) -> bool:
        """Tell whether every message of the export was read, and something became of each."""
        return all(one.balances for one in self.topics.values()) and self.total.read == self.rows
