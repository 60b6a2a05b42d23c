"""A signal from one thread to another that an event loop can wait for, as a file descriptor."""

import contextlib
import os
import select


class Signal:
    """Is set by any thread, and waited for by one."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def set(self) -> None:
        """Wake whoever waits, or the next who does."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Wait from now on, until it is set again."""
        with contextlib.suppress(OSError):
            os.eventfd_read(self.fd)

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is set, for a number of seconds at most; tell whether it was."""
        return bool(self._poll.poll(None if seconds is None else max(seconds, 0) * 1000))

    def close(self) -> None:
        """Give the descriptor back."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
