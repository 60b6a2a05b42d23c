"""Unread: how much of what was written the other end has not taken, as Linux tells it."""

import fcntl
import socket
import sys
import termios

#: Where the bytes that were acked stand in struct tcp_info.
_ACKED_AT = 120


def acked_bytes(sock: socket.socket) -> int:
    """Return how much of what was sent the other end's system has (Linux: tcpi_bytes_acked)."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
    except OSError:
        return 0
    return int.from_bytes(info[_ACKED_AT:], sys.byteorder)


def queued_bytes(sock: socket.socket | None) -> int:
    """Return what the system keeps of what a socket was given (Linux: SIOCOUTQ); 0 if unknown.

    A transport that is being torn down has no socket any more.
    """
    if sock is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0
