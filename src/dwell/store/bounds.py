"""What answers are bounded by: a store reads no more at once than a put may bring."""

import numpy as np

from dwell.message import MAX_BATCH_BYTES


def within(sizes: np.ndarray, most_bytes: int = MAX_BATCH_BYTES) -> int:
    """Return how many of the first messages, of these sizes, are so many bytes; at least one."""
    ends = np.cumsum(sizes, dtype=np.int64)
    return max(int(np.searchsorted(ends, most_bytes, side="right")), 1)
