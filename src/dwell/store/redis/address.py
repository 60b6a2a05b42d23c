"""Addresses: the parts of the URL of a store on Redis."""

from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from dwell.digits import number_of
from dwell.errors import InvalidUrl
from dwell.urls import shown

#: The kinds of address, by the scheme without ``s`` for TLS; Valkey speaks the same protocol.
SCHEMES = {
    f"{engine}{secure}{kind}"
    for engine in ("redis", "valkey")
    for secure in ("", "s")
    for kind in ("", "+sentinel", "+cluster")
}
_FORM = "redis://host:6379/0, redis+sentinel://host:26379/service/0 or redis+cluster://host:6379"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the engine is: ``kind`` is ``""``, ``sentinel`` or ``cluster``."""

    kind: str
    hosts: tuple[tuple[str, int], ...]
    database: int
    service: str
    username: str | None
    password: str | None
    is_secure: bool

    def __str__(self) -> str:
        """Return it for messages, without user and password."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"redis{'s' if self.is_secure else ''}{self.kind and '+' + self.kind}://{hosts}"


def parsed(url: str) -> tuple[Address, dict[str, str]]:
    """Return the address and the options of a URL; raises InvalidUrl."""
    parts = _split(url)
    engine, _, kind = parts.scheme.partition("+")
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    path = [unquote(part) for part in parts.path.strip("/").split("/") if part]
    usual = 26_379 if kind == "sentinel" else 6_379
    if parts.scheme not in SCHEMES or parts.fragment:
        raise _refusal(url)
    service = path.pop(0) if kind == "sentinel" and path else ""
    if (kind == "sentinel") != bool(service) or len(path) > (kind != "cluster"):
        raise _refusal(url)
    try:
        found = tuple(_host(one, usual) for one in (hosts or "localhost").split(","))
        database = number_of(path[0]) if path else 0
        if database is None or (len(found) > 1 and not kind):
            raise ValueError(hosts)
    except ValueError:
        raise _refusal(url) from None
    address = Address(
        kind=kind,
        hosts=found,
        database=database,
        service=service,
        username=unquote(username) or None,
        password=unquote(password) or None,
        is_secure=engine.endswith("s") and engine != "redis",
    )
    return address, dict(parse_qsl(parts.query, keep_blank_values=True))


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise _refusal(url) from None


def _host(text: str, usual: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return parts.hostname, usual if parts.port is None else parts.port


def _refusal(url: str) -> InvalidUrl:
    return InvalidUrl(f"url: got {shown(url)!r:.80}, expected {_FORM}")
