"""Delays Ctrl-C during a call whose answer must be known."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType


@contextmanager
def held_back(but_in: CodeType | None = None) -> Iterator[None]:
    """Delay an interrupt until the block ends; a second interrupt is not delayed.

    An interrupt in the code ``but_in``, which handles it, is not delayed either. Raises
    KeyboardInterrupt at the end if an interrupt came.
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
