"""What answers are bounded by: a store reads no more at once than a put may bring."""

import numpy as np

from dwell.message import MAX_BATCH_BYTES


def within(sizes: np.ndarray, most_bytes: int = MAX_BATCH_BYTES) -> int:
    """Return how many of the first messages, of these sizes, are so many bytes; one at least."""
    if sizes.sum(dtype=np.int64) <= most_bytes:
        return len(sizes)
    ends = np.cumsum(sizes, dtype=np.int64)
    return max(int(np.searchsorted(ends, most_bytes, side="right")), 1)
