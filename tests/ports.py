"""Ports of the loopback address."""

import socket


def accepts(port: int) -> bool:
    """Tell whether somebody listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 10).close()
    except OSError:
        return False
    return True
