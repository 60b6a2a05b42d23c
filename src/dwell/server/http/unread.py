"""Unread bytes: how many written bytes the other end has not acknowledged, by Linux."""

import fcntl
import socket
import sys
import termios

#: The offset of the acknowledged bytes in struct tcp_info, and the state at its start after a reset
#: by the other end.
_ACKED_AT, _TCP_CLOSE = 120, 7


def acked_bytes(sock: socket.socket) -> int:
    """Return how many sent bytes the other system has acknowledged (Linux: tcpi_bytes_acked)."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
    except OSError:
        return 0
    return int.from_bytes(info[_ACKED_AT:], sys.byteorder)


def is_reset(sock: socket.socket | None) -> bool:
    """Tell whether the other end has reset a connection; False if that is unknown."""
    try:
        return (
            sock is not None
            and sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
        )
    except OSError:
        return False


def queued_bytes(sock: socket.socket | None) -> int:
    """Return how many bytes of a socket the system still holds (Linux: SIOCOUTQ); 0 if unknown.

    A transport that is being torn down has lost its socket.
    """
    if sock is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0
