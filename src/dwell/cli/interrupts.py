"""Ctrl-C, held back while something is done whose answer must be known."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """Let an interrupt wait for the end of what is done; a second one does not wait.

    Raises KeyboardInterrupt at the end when one came.
    """
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:
        # Only the main thread is interrupted, so there is nothing to hold back in another.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
