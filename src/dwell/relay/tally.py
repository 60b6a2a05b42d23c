"""The counts of a relay."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dwell.message import I64

#: Upper bounds of the lateness at which records left, in milliseconds.
LATE_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000)

#: The trouble of a part that has not been tried yet.
NOT_YET = "starting"


@dataclass
class Tally:
    """Counts since the start; ``late`` has one number for each end of :data:`LATE_MS`, and more."""

    read: int = 0
    #: Of the records read: held, used for a cancel, or dead letters by now.
    settled: int = 0
    held: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    repeated: int = 0
    #: Events of the queue that were gone before they were sent.
    lost: int = 0
    #: Records that became dead letters, by the refusing part.
    dead: Counter[str] = field(default_factory=Counter)
    #: Dead letters that are kept nowhere: their topic drops them, or no sink accepts them.
    dropped: int = 0
    late: list[int] = field(default_factory=lambda: [0] * (len(LATE_MS) + 1))
    late_ms: int = 0
    lanes: int = 0
    #: The present troubles, by the part that has them: the relay is not ready while there are any.
    trouble: dict[str, str] = field(default_factory=dict)

    def is_news(self, who: str, why: object) -> bool:
        """Note a trouble of a part; tell whether it is new."""
        is_new = self.trouble.get(who) in (None, NOT_YET)
        self.trouble[who] = str(why)
        return is_new

    def add_late(self, due_ms: I64, now_ms: int) -> None:
        """Count how late records left; a due before the arrival counts from the arrival."""
        late_ms = np.maximum(now_ms - due_ms, 0)
        places = np.searchsorted(LATE_MS, late_ms)
        for place, count in enumerate(np.bincount(places, minlength=len(self.late)).tolist()):
            self.late[place] += count
        self.late_ms += int(late_ms.sum())
