"""The tally: what all connections were told, to be held against what the server noted."""

from dataclasses import dataclass, field

TOPICS = ("soak.0", "soak.1", "soak.2", "soak.3")

#: So many messages may be there; then the connections only take.
MOST_PENDING = 20_000

_MOST_ERRORS = 10


@dataclass(slots=True)
class Tally:
    """Counts of answers. ``deleted`` are jobs, of which nobody is told what ended them."""

    created: int = 0
    acked: int = 0
    cancelled: int = 0
    deleted: int = 0
    steps: int = 0
    errors: int = 0
    pending: int = 0
    texts: list[str] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether there is enough to take."""
        return self.pending > MOST_PENDING

    def note(self, error: object) -> None:
        """Count an error, and keep the first ones to be shown."""
        self.errors += 1
        if len(self.texts) < _MOST_ERRORS:
            self.texts.append(f"{type(error).__name__}: {error!s:.300}")
