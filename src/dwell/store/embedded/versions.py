"""Versions: a number for the row of a message, a different one after any change.

``takes`` is new with each take, put and replacement, so it covers the body, the error, and
everything else that only these change. The rest is mixed in; two versions are equal by chance once
in 2**64.
"""

import numpy as np

from dwell.message import U64, Rows
from dwell.store.embedded.ids import mixed
from dwell.store.embedded.table import Table

_STATE_SHIFT = np.uint64(32)
_ATTEMPT_SHIFT = np.uint64(40)


def versions_of(table: Table, rows: Rows) -> U64:
    """Return the version of each row's message."""
    words = table.state[rows].astype(np.uint64) << _STATE_SHIFT
    words |= table.attempt[rows].astype(np.uint64) << _ATTEMPT_SHIFT
    words |= table.takes[rows]
    for column in (table.seq, table.due_ms, table.priority, table.expires_ms):
        words = mixed(words) ^ column[rows].astype(np.uint64)
    return mixed(words)
