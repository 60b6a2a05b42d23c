"""The counts of a relay."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dwell.histogram import Histogram
from dwell.message import I64

#: Upper bounds of the lateness of records that left, in seconds.
_LATE_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0)

#: The trouble of a part that has not been tried yet.
NOT_YET = "starting"
#: Of how many records that stay it is known that they were counted.
_MOST_KNOWN = 10_000


@dataclass
class Tally:
    """Counts since the start."""

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
    #: Records that stay in the source, because no dead letter can have all of them.
    unkept: int = 0
    late: Histogram = field(default_factory=lambda: Histogram(_LATE_S))
    lanes: int = 0
    #: The present troubles, by the part that has them: the relay is not ready while there are any.
    trouble: dict[str, str] = field(default_factory=dict)
    _unkept: dict[str, None] = field(default_factory=dict)

    def is_news(self, who: str, why: object) -> bool:
        """Note a trouble of a part; tell whether it is new."""
        is_new = self.trouble.get(who) in (None, NOT_YET)
        self.trouble[who] = str(why)
        return is_new

    def is_unkept(self, origin: str) -> bool:
        """Count a record that stays in the source; tell whether it is new.

        Another run of the relay, or a delivery under another name, counts it again.
        """
        if origin in self._unkept:
            return False
        if len(self._unkept) == _MOST_KNOWN:
            del self._unkept[next(iter(self._unkept))]
        self._unkept[origin] = None
        self.unkept += 1
        return True

    def add_late(self, due_ms: I64, now_ms: int) -> None:
        """Count how late records left; a due before the arrival counts from the arrival."""
        self.late.add_many(np.maximum(now_ms - due_ms, 0) / 1000)
