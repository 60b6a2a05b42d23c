"""What Linux says: the memory of a process, the processor time that it used, the time."""

import os
import re
import time
from pathlib import Path


def own_memory(pid: int | str = "self") -> int:
    """Return how much memory a process has to itself (RssAnon), in bytes."""
    return _status_bytes(pid, "RssAnon")


def resident_memory(pid: int | str = "self") -> int:
    """Return how much memory a process has resident (VmRSS), pages of files included, in bytes."""
    return _status_bytes(pid, "VmRSS")


def _status_bytes(pid: int | str, name: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def cpu_seconds(*pids: int) -> float:
    """Return how long some processes kept a processor busy so far, together."""
    return sum(map(_cpu_seconds, pids))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started."""
    parents = dict(filter(None, map(_parent_of, Path("/proc").glob("[0-9]*"))))
    found, waiting = list[int](), [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, of in parents.items() if of == parent]
        found += children
        waiting += children
    return found


def is_running(pid: int) -> bool:
    """Return whether a process runs, and is not only a number that nobody has taken yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _parent_of(folder: Path) -> tuple[int, int] | None:
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(folder.name), int(fields[1])


def now_ms() -> float:
    """Return the time of this machine, in milliseconds."""
    return time.time_ns() / 1_000_000
