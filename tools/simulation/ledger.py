"""The ledger: what clients were told and what they asked for, known without any store or model."""

from collections import Counter
from dataclasses import dataclass, field

from dwell.batch.batch import Batch
from tools.simulation.history import Broken


@dataclass(slots=True)
class Ledger:
    """The messages that clients put with ids of their own, never the same twice."""

    #: What was answered, and what may be gone since: an ack, a cancel or a replace was sent for it.
    kept: dict[str, str] = field(default_factory=dict)
    maybe_gone: set[str] = field(default_factory=set)
    tally: Counter[str] = field(default_factory=Counter)
    #: Ids whose due or expiry may have changed since they were put.
    changed: set[str] = field(default_factory=set)
    receipts: set[bytes] = field(default_factory=set)

    def note_put(self, topic: str, ids: list[str], results: list[str]) -> None:
        """Take note of the answer to a put."""
        for id_, result in zip(ids, results, strict=True):
            if result in ("created", "kept", "replaced"):
                self.tally["answered puts"] += 1
                self.kept[id_] = topic

    def note_take(self, batch: Batch, from_ms: int, until_ms: int) -> None:
        """Take note of what was taken between two looks at the clock, which was not set then."""
        self.tally["takes"] += len(batch)
        for message in batch:
            if message.due_ms > until_ms:
                raise Broken("early", f"{message.id} due {message.due_ms} came at {until_ms}")
            if 0 < message.expires_ms <= from_ms:
                raise Broken("expired", f"{message.id} came after it had expired")
            if message.attempt > 1:
                self.tally["delivered again"] += 1

    def check_drained(self, drained: set[str]) -> None:
        """Check that everything is accounted for, when nothing is left in the store."""
        lost = sorted(set(self.kept) - self.maybe_gone - drained)
        if lost:
            raise Broken("lost", f"answered, and nowhere: {lost}")
