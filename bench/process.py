"""What Linux says: the memory of a process, the processor time that it used, the time."""

import os
import re
import time
from pathlib import Path


def own_memory(pid: int | str = "self") -> int:
    """Return how much memory a process has to itself (RssAnon), in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def cpu_seconds(*pids: int) -> float:
    """Return how long some processes kept a processor busy so far, together."""
    return sum(map(_cpu_seconds, pids))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def now_ms() -> float:
    """Return the time of this machine, in milliseconds."""
    return time.time_ns() / 1_000_000
