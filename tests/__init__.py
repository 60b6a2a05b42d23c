"""All tests; DWELL_RUNS makes searches that many times as long (``make machines``)."""

import os

#: How much longer than usual a search among the runs of a machine is.
RUNS = int(os.environ.get("DWELL_RUNS", "1"))
