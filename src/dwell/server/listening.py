"""Listening: the socket of a port, before it accepts anything."""

import socket


def bound(host: str, port: int) -> socket.socket:
    """Return a socket at an address; raises OSError when that cannot be had.

    The protocol is named, or asyncio would let small answers linger (Nagle's algorithm).
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
