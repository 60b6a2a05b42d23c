"""Ctrl-C, held back while something is done whose answer must be known."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType


@contextmanager
def held_back(but_in: CodeType | None = None) -> Iterator[None]:
    """Let an interrupt wait for the end of what is done; a second one does not wait.

    Nor does one that comes in the code ``but_in``, which knows what to do then. Raises
    KeyboardInterrupt at the end when one came.
    """
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came or _is_in(frame, but_in):
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


def _is_in(frame: FrameType | None, code: CodeType | None) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
