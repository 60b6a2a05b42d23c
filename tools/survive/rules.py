"""The rules that allow a second delivery: at least once says that there may be one, and when."""

from collections.abc import Sequence
from dataclasses import dataclass

#: The rules, in the order in which the report names them.
RULES = (
    "released",
    "lease ended",
    "clock set over the lease's end",
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


#: How long after it was handed out a taker may say so, in seconds.
_LATE_S = 0.2


def rule_of(
    before: Delivery,
    after: Delivery,
    died_at_s: float | None,
    failures: Sequence[float] = (),
    steps: Sequence[tuple[float, float]] = (),
) -> str:
    """Return which rule allows a delivery after another one of the same message.

    ``steps`` are when the store's clock was set, and by how many seconds.
    """
    if before.attempt == after.attempt or before.fate == "acked":
        return "unexplained"
    if before.fate in ("released", "release asked"):
        return "released"
    if after.from_ms < before.until_ms:
        return _over_a_step(before, after, steps)
    has_died = died_at_s is not None and died_at_s <= after.at_s
    if before.fate == "ack asked":
        if any(before.at_s <= failed_s <= after.at_s for failed_s in failures):
            return "store failed before the ack was answered"
        return "taker died" if has_died else "answer of an ack lost"
    return "taker died" if has_died and not before.fate else "lease ended"


def _over_a_step(before: Delivery, after: Delivery, steps: Sequence[tuple[float, float]]) -> str:
    """Return which rule allows a delivery before the lease is over by the clock as it is then."""
    between = [by_s for at_s, by_s in steps if before.at_s - _LATE_S <= at_s <= after.at_s]
    lease_s = (before.until_ms - before.from_ms) / 1000
    if any(by_s > lease_s for by_s in between):
        return "clock set over the lease's end"
    if between and after.at_s - before.at_s >= lease_s - _LATE_S:
        return "lease ended"
    # Nobody but the holder may end a lease before its time.
    return "unexplained"
