"""Standard output, which may have been closed, or be read no more."""

import errno
import os
import sys
from typing import TextIO


class OutputClosed(Exception):
    """Whoever read the output has gone, as ``head`` does when it has enough."""


def flush() -> None:
    """Hand on what was printed; raises OutputClosed, or OSError where there is no output."""
    try:
        stdout().flush()
    except BrokenPipeError:
        raise OutputClosed from None


def stdout() -> TextIO:
    """Return it; raises OSError where there is none."""
    # Python has no object for a standard output that was closed before the start.
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")
    return sys.stdout
