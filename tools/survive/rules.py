"""The rules that allow a second delivery: at least once says that there may be one, and when."""

from collections.abc import Sequence
from dataclasses import dataclass

#: The rules, in the order in which the report names them.
RULES = (
    "released",
    "lease ended",
    "taker died",
    "store failed before the ack was answered",
    "answer of an ack lost",
)


@dataclass(slots=True)
class Delivery:
    """One message as one taker was handed it; times in ``_ms`` are of the store's clock.

    It was handed out between ``asked_ms`` and ``answered_ms``, as the taker's own look at that
    clock says, and at ``from_ms`` by what the store says of the lease.
    """

    holder: str
    at_s: float
    attempt: int
    due_ms: int
    expires_ms: int
    from_ms: int
    until_ms: int
    asked_ms: int
    answered_ms: int
    #: What the holder did with it, and when it said so.
    fate: str = ""
    fate_at_s: float = 0.0

    def is_early(self, due_ms: int) -> bool:
        """Tell whether it came before what its put had asked for, or before what it says itself."""
        due_ms = max(due_ms, self.due_ms)
        return due_ms > self.answered_ms or due_ms > self.from_ms

    def is_late(self, expires_ms: int) -> bool:
        """Tell whether it came when it had expired."""
        return 0 < expires_ms <= max(self.asked_ms, self.from_ms)


def rule_of(
    before: Delivery, after: Delivery, died_at_s: float | None, failures: Sequence[float]
) -> str:
    """Return which rule allows a delivery after another one of the same message."""
    if before.attempt == after.attempt or before.fate == "acked":
        return "unexplained"
    if before.fate in ("released", "release asked"):
        return "released"
    if after.from_ms < before.until_ms:
        # Nobody but the holder may end a lease before its time.
        return "unexplained"
    has_died = died_at_s is not None and died_at_s <= after.at_s
    if before.fate == "ack asked":
        if any(before.at_s <= failed_s <= after.at_s for failed_s in failures):
            return "store failed before the ack was answered"
        return "taker died" if has_died else "answer of an ack lost"
    return "taker died" if has_died and not before.fate else "lease ended"
