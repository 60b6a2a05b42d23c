"""A page of a scan, and where the next begins."""

from dataclasses import dataclass, field

import msgspec
import numpy as np

from dwell.batch.batch import Batch
from dwell.message import U64


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a scan stopped: the due time and arrival number of its last message."""

    due_ms: int
    arrival: int

    def __str__(self) -> str:
        """Return it as HTTP has it."""
        return f"{self.due_ms}.{self.arrival}"


@dataclass(slots=True)
class Page:
    """One page of a scan; ``cursor`` asks for the next, and is None after the last.

    ``versions`` has a number for each message, which changes with every change of it, also when
    time changes its state. It is empty if an older server sends none.
    """

    messages: Batch
    cursor: Cursor | None
    versions: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
