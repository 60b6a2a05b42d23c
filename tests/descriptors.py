"""Descriptors: the files that this process has open, of which others may end at any time."""

import contextlib
import os
from pathlib import Path


def descriptors_in(folder: Path) -> int:
    """Return how many descriptors of files in a folder are open, nameless files included."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        # The descriptor of the list itself is closed by now.
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/")
    return count
