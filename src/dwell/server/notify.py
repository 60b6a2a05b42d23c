"""Tells systemd, if it started the service, that the service is ready or stops."""

import logging
import os
import socket

_log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Tell the service manager of a state, such as ``READY=1``; do nothing without a manager."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        # An abstract name, which begins with a zero.
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect(address)
            channel.sendall(state.encode())
    except OSError as error:
        _log.warning("the service manager was not told %s: %s", state, error)
