"""Sockets in the file system: only processes that may write to the file can connect."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

#: The prefix of an address that is a path.
PREFIX = "unix:"
#: The limit of the system for such a path.
MOST_BYTES = 107


class UnixSocket(socket.socket):
    """A socket at a path, with a mode of its file; closing it deletes the file.

    The socket of a server that was killed is replaced. Raises OSError if another process listens on
    the path, or if it is not a socket. The lock file ``PATH.lock`` is held while the socket is
    open, so that only one of several servers that start at once gets the path.
    """

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path, self._inode, self._lock = path, 0, -1
        try:
            self._lock = _locked(f"{path}.lock")
            _remove_stale(path)
            self.bind(path)
            # Nobody can connect before it listens, so the mode is set in time.
            os.chmod(path, mode)
            self._inode = os.stat(path).st_ino
        except OSError:
            self._close()
            raise

    def close(self) -> None:
        """Remove the file, unless it is another's by now, and close."""
        if self.fileno() >= 0:
            with contextlib.suppress(OSError):
                if os.stat(self._path).st_ino == self._inode:
                    os.unlink(self._path)
        self._close()

    def _close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            # The file stays: a process that waits for its lock has it open already.
            os.close(lock)
        super().close()


def _locked(path: str) -> int:
    """Return a locked file; raises OSError if another process holds the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
    return fd


def _is_bound(path: str) -> bool:
    """Tell whether the system knows a socket at a path, which need not listen yet."""
    try:
        known = Path("/proc/net/unix").read_text(errors="surrogateescape")
    except OSError:
        return False
    # Each line has seven fields, and the path as it was given, if there is one.
    paths = [line.split(maxsplit=7)[7:] for line in known.splitlines()]
    return any([name] in paths for name in (path, os.path.abspath(path), os.path.realpath(path)))


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens on; raises OSError for anything else at the path."""
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
            if not _is_bound(path):
                os.unlink(path)
                return
        except OSError:
            # Its queue of connections is full, or it is of another type, so it is there.
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
