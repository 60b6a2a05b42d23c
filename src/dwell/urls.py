"""URLs of stores and brokers, as messages and logs may show them."""

import re
from urllib.parse import urlsplit

from dwell.digits import number_of
from dwell.errors import InvalidUrl

# To the last @, since a password that was not quoted as it should be may hold anything. The slashes
# may be missing.
_LOGIN = re.compile(r"((?!file:)[A-Za-z][A-Za-z0-9+.-]*:)(?:(//).*|[^/]*)@", re.DOTALL)
# A path may have a question mark in it, which begins no options.
_OPTIONS = re.compile(r"((?!file:)[A-Za-z][A-Za-z0-9+.-]*://[^?]*\?)(.*)", re.DOTALL)
_OPTION = re.compile(r"([^&;=]+)=([^&;]*)")
#: Options whose values are no secrets; of all others only the names are shown, as brokers' clients
#: have hundreds and call a password by many names.
_HARMLESS = frozenset(
    (
        *("queue", "exchange", "routing_key", "prefetch", "id", "heartbeat", "name"),
        *("cafile", "capath", "keyfile", "certfile", "group", "config", "table", "schema"),
        *("tube", "prefix", "ca", "shards", "home", "min_replicas", "max_events", "connections"),
        "timeout",
    )
)


def shown(url: str) -> str:
    """Return a URL without the user, the password and what may be a secret in its options.

    A path stays as it is.
    """
    login = _LOGIN.match(url)
    said = url if login is None else f"{login[1]}{login[2] or ''}***@{url[login.end() :]}"
    options = _OPTIONS.fullmatch(said)
    return said if options is None else options[1] + _OPTION.sub(_option, options[2])


def _option(found: "re.Match[str]") -> str:
    return found[0] if found[1] in _HARMLESS else f"{found[1]}=***"


def host_and_port(address: str, field: str) -> tuple[str, int]:
    """Return the two parts of HOST:PORT; raises InvalidUrl."""
    host, _, port = address.rpartition(":")
    number = number_of(port)
    if not host or number is None or number > 65_535:
        raise InvalidUrl(f"{field}: got {address!r:.80}, expected HOST:PORT")
    return host, number


def has_host(url: str) -> bool:
    """Tell whether an address has a single host, with a port or without one."""
    try:
        parts = urlsplit(url)
        # The parser of a client allows no backslash.
        return bool(parts.hostname) and parts.port != 0 and "\\" not in parts.netloc
    except ValueError:
        # Its port is no number, as of several hosts.
        return False


def scheme_of(url: str) -> str:
    """Return the scheme of an address; raises InvalidUrl for a host or port that is not valid.

    An address may have several hosts, each with its port.
    """
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            # The library reads a port only on access.
            _ = urlsplit(f"//{host}").port
    except ValueError:
        # Its text may have a part of a password that was not quoted as it should be.
        got = shown(url)
        raise InvalidUrl(f"url: got {got!r:.80}, expected HOST:PORT, a port to 65535") from None
    return parts.scheme
