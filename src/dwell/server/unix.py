"""Sockets in the file system: a port that only who may write to its file can reach."""

import contextlib
import errno
import os
import socket
import stat

#: What an address begins with that is a path.
PREFIX = "unix:"
#: How long such a path may be, for the system.
MOST_BYTES = 107


class UnixSocket(socket.socket):
    """A socket at a path, with a mode of its file; the file goes with it.

    What a server that was killed has left there is replaced. Raises OSError where another listens,
    or where the path is something else.
    """

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path, self._inode = path, 0
        try:
            _remove_stale(path)
            self.bind(path)
            # Nobody can connect before it listens, so nobody comes in while all might.
            os.chmod(path, mode)
            self._inode = os.stat(path).st_ino
        except OSError:
            super().close()
            raise

    def close(self) -> None:
        """Remove the file, unless it is another's by now, and close."""
        if self.fileno() >= 0:
            with contextlib.suppress(OSError):
                if os.stat(self._path).st_ino == self._inode:
                    os.unlink(self._path)
        super().close()


def _remove_stale(path: str) -> None:
    """Remove a socket on which nobody listens; raises OSError for anything else that is there."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            # Its queue of connections is full, so it is there.
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
