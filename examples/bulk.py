"""Load many messages with times of their own: 100,000, or as many as the first argument says.

Prints::

    loaded 100,000
    still waiting: 99,940
    due already: 60
"""

import sys
import tempfile
import time

import numpy as np

import dwell

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
BATCH = 10_000

with tempfile.TemporaryDirectory() as folder, dwell.open(folder) as queue:
    # One message a second, the first 60 of them due already.
    start_ms = time.time_ns() // 1_000_000 - 60_000
    for first in range(0, COUNT, BATCH):
        numbers = np.arange(first, min(first + BATCH, COUNT))
        bodies = [b'{"user":%d}' % number for number in numbers.tolist()]
        due_ms = start_ms + np.where(numbers < 60, numbers, 3_600 + numbers) * 1_000
        queue.put_many("reminders", bodies, due=due_ms)
    print(f"loaded {COUNT:,}")
    stats = queue.stats().topics["reminders"]
    print(f"still waiting: {stats.delayed:,}")
    print(f"due already: {len(queue.take('reminders', BATCH))}")
