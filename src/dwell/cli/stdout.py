"""Standard output, which may be closed or lose its reader."""

import errno
import os
import sys
from typing import TextIO


class OutputClosed(Exception):
    """The reader of the output has gone, as ``head`` does when it has enough."""


def flush() -> None:
    """Flush the output; raises OutputClosed, or OSError without a standard output."""
    try:
        stdout().flush()
    except BrokenPipeError:
        raise OutputClosed from None


def stdout() -> TextIO:
    """Return standard output; raises OSError if it was closed before the start."""
    # Python has no object for a standard output that was closed before the start.
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")
    return sys.stdout
