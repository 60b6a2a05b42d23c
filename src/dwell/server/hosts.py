"""Hosts: the names that clients may call this server by.

A web page can give its own name the address of this machine (DNS rebinding); for a browser it then
has the same origin as the server. The name in its requests gives it away. A name cannot replace an
address, so addresses are let in.
"""

import ipaddress
import re
from collections.abc import Iterable

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?", re.IGNORECASE)
_MOST_KNOWN = 100
ANY = "*"


class Hosts:
    """Names that are let in, in addition to localhost and addresses; ``*`` lets in all.

    ``is_local``: the server is reached by a socket in the file system, which no name can replace.
    Clients then send various hosts: localhost, a path, or nothing.
    """

    def __init__(self, names: Iterable[str] = (), *, is_local: bool = False) -> None:
        self._is_local = is_local
        self._names = {name.lower().rstrip(".") for name in names}
        self._known: set[bytes | None] = set()

    def refusal(self, given: bytes | None) -> str | None:
        """Return the error of a request's Host header, or None."""
        if given in self._known:
            return None
        if given is None:
            return "host: got no header, expected one"
        text = given.decode("latin-1")
        if self._is_local:
            return None
        if not self._is_let_in(text):
            return (
                f"host: got {text!r:.80}, expected localhost, an address, or one of allowed_hosts"
            )
        if len(self._known) < _MOST_KNOWN:
            self._known.add(given)
        return None

    def _is_let_in(self, text: str) -> bool:
        found = _HOST.fullmatch(text)
        if found is None:
            return False
        name = (found[1] or found[2]).lower().rstrip(".")
        if ANY in self._names or name in self._names:
            return True
        return name == "localhost" or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
