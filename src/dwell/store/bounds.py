"""The bound on the size of answers: no larger than a put may be."""

import numpy as np

from dwell.message import MAX_BATCH_BYTES


def within(sizes: np.ndarray, most_bytes: int = MAX_BATCH_BYTES) -> int:
    """Return how many of the first messages fit in ``most_bytes``; at least one."""
    if sizes.sum(dtype=np.int64) <= most_bytes:
        return len(sizes)
    ends = np.cumsum(sizes, dtype=np.int64)
    return max(int(np.searchsorted(ends, most_bytes, side="right")), 1)
