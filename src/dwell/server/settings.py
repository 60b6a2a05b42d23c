"""The settings of a server: their names, defaults, limits and meanings, in one place.

Flags, environment variables, the keys of a file, and the page of the docs all come from
:class:`ServerSettings`.
"""

import ipaddress
import os
import re
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from dwell.errors import InvalidSettings
from dwell.message import MAX_BODY_BYTES
from dwell.server.unix import MOST_BYTES, PREFIX
from dwell.urls import shown

OFF = "off"

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")
_ADDRESS_FORM = 'host:port, such as 127.0.0.1:8410 or [::1]:8410, unix:/a/path, or "off"'
_MODE = re.compile(r"0?[0-7]{3}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
_SYNC = re.compile(r"always|never|([1-9][0-9]{0,4})ms")
_MAX_SYNC_MS = 60_000
# A single letter before the colon is a drive of Windows, and so a path.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

_OWN_URL = re.compile(r"memory:$|file:|(redis|valkey)[a-z+]*:", re.IGNORECASE)
_SHARED = re.compile(r"(redis|valkey)[a-z+]*:", re.IGNORECASE)

_MIB = 1024 * 1024
_MANY = 1_000_000


class Address(NamedTuple):
    """The address of a port. Port 0 takes a free port; with ``unix:PATH`` as host it is unused."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.is_path:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_path(self) -> bool:
        """Whether it is a socket in the file system."""
        return self.host.startswith(PREFIX)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.is_path:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a server runs; raises InvalidSettings when its values do not go together."""

    store: Annotated[
        str,
        Meta(title="STORE", description="The store: a folder, memory:, or redis://HOST:PORT/DB."),
    ] = "./dwell-data"
    http: Annotated[
        str,
        Meta(
            title="HOST:PORT",
            description="Where HTTP listens, unix:PATH for a socket in the file system, or off.",
        ),
    ] = "127.0.0.1:8410"
    beanstalk: Annotated[
        str,
        Meta(
            title="HOST:PORT",
            description="Where the beanstalk protocol listens, unix:PATH for a socket in the file "
            "system, or off.",
        ),
    ] = "127.0.0.1:11300"
    socket_mode: Annotated[
        str,
        Meta(
            title="MODE",
            description="Who may connect to the sockets of unix:PATH, as chmod says it: 0660 for "
            "the group, too.",
        ),
    ] = "0600"
    sync: Annotated[
        str,
        Meta(
            title="WHEN",
            description="When an answer leaves: always, once it is on the disk; never, once the "
            "operating system has it; 100ms, the same, with a sync at least that often.",
        ),
    ] = "always"
    events_bytes: Annotated[
        int, Meta(ge=_MIB, le=1 << 50, description="How much of the event log is kept.")
    ] = 1024 * _MIB
    memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="How much memory the state of a folder's messages may take, at least "
            "16MiB; 0 for as much as they need.",
        ),
    ] = 0
    token_file: Annotated[
        str, Meta(title="FILE", description="Who may do what. Without it, everybody everything.")
    ] = ""
    tls_cert: Annotated[
        str, Meta(title="FILE", description="A certificate (PEM). With it, both ports speak TLS.")
    ] = ""
    tls_key: Annotated[
        str, Meta(title="FILE", description="Its key (PEM), if that is not in the same file.")
    ] = ""
    tls_client_ca: Annotated[
        str,
        Meta(
            title="FILE",
            description="Certificates (PEM). With it, only clients whose certificate one of them "
            "has signed get through the handshake.",
        ),
    ] = ""
    allowed_hosts: Annotated[
        str,
        Meta(
            title="NAMES",
            description="The names by which HTTP may be called, by commas, beside localhost and "
            "addresses; * for any.",
        ),
    ] = ""
    insecure: Annotated[
        bool,
        Meta(description="Let other machines in without a token file: they may do everything."),
    ] = False
    max_body_bytes: Annotated[
        int, Meta(ge=1, le=MAX_BODY_BYTES, description="The largest body of a message.")
    ] = MAX_BODY_BYTES
    max_requests: Annotated[
        int,
        Meta(ge=1, le=_MANY, description="How many requests may be under way; over it, 429."),
    ] = 10_000
    max_requests_bytes: Annotated[
        int,
        Meta(ge=_MIB, le=1 << 40, description="How large they may be together; over it, 429."),
    ] = 256 * _MIB
    max_waiting: Annotated[
        int, Meta(ge=1, le=_MANY, description="How many takers may wait; over it, 429.")
    ] = 20_000
    max_token_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="How much of these one token may have under way, as all callers without "
            "one together may; over it, 429.",
        ),
    ] = 50
    max_connections: Annotated[
        int, Meta(ge=1, le=_MANY, description="How many connections a port may have.")
    ] = 20_000
    grace_ms: Annotated[
        int,
        Meta(ge=0, le=3_600_000, description="How long SIGTERM lets go on what is under way."),
    ] = 10_000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="From where on to log.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Meta(description="Lines for people, or JSON for programs.")
    ] = "text"
    access_log: Annotated[
        str,
        Meta(
            title="FILE",
            description="A line of JSON for each request, in this file, or on standard error (-).",
        ),
    ] = ""
    audit_log: Annotated[
        str,
        Meta(
            title="FILE",
            description="A line of JSON for each change of settings, schedules or many messages: "
            "who did it.",
        ),
    ] = ""
    max_log_bytes: Annotated[
        int,
        Meta(
            ge=_MIB,
            le=1 << 40,
            description="How large these may grow; then a file is kept as FILE.1, and begun anew.",
        ),
    ] = 64 * _MIB

    def __post_init__(self) -> None:
        # Each value is checked by its own rules first, whatever the others are.
        self._check_values()
        if not self.addresses:
            raise InvalidSettings("http, beanstalk: both are off, so there is nothing to serve")
        if self.tls_key and not self.tls_cert:
            raise InvalidSettings("tls_key: got a key without tls_cert, expected both")
        if self.tls_client_ca and not self.tls_cert:
            raise InvalidSettings("tls_client_ca: got it without tls_cert, expected both")
        for name, address in self.addresses.items():
            if not (address.is_loopback or self.token_file or self.insecure):
                raise InvalidSettings(
                    f"{name}: got {address}, where other machines can reach it, and no token_file; "
                    "expected a loopback address, a token_file, or insecure"
                )

    def _check_values(self) -> None:
        is_url = _SCHEME.match(self.store) and not _OWN_URL.match(self.store)
        if not self.store or is_url:
            raise refusal("store", self.store_shown, "a folder, memory:, or the address of a Redis")
        sync = _SYNC.fullmatch(self.sync)
        if sync is None or int(sync[1] or 1) > _MAX_SYNC_MS:
            raise refusal(
                "sync", self.sync, 'always, never or a time like "100ms", at most a minute'
            )
        _address("http", self.http)
        _address("beanstalk", self.beanstalk)
        if not _MODE.fullmatch(self.socket_mode):
            raise refusal("socket_mode", self.socket_mode, "three octal digits, such as 0600")
        if self.http == self.beanstalk != OFF and self.http.startswith(PREFIX):
            raise refusal("beanstalk", self.beanstalk, "another path than that of http")
        if self.access_log == self.audit_log not in ("", "-"):
            raise refusal("audit_log", self.audit_log, "another file than that of access_log")
        for name in filter(None, map(str.strip, self.allowed_hosts.split(","))):
            if name != "*" and not _NAME.fullmatch(name):
                raise refusal("allowed_hosts", name, "names such as queue.example.org, or *")

    @property
    def host_names(self) -> list[str]:
        """The names that HTTP may be called by: the allowed names, and its own."""
        http = self.addresses.get("http")
        own = [] if http is None or http.is_path else [http.host]
        return [*own, *(name.strip() for name in self.allowed_hosts.split(",") if name.strip())]

    @property
    def is_http_local(self) -> bool:
        """Whether HTTP is reached by a socket in the file system only."""
        http = self.addresses.get("http")
        return http is not None and http.is_path

    @property
    def is_folder(self) -> bool:
        """Whether the store is a folder that only this process writes to."""
        return self.store.lower() != "memory:" and not _SHARED.match(self.store)

    @property
    def store_shown(self) -> str:
        """The store as it may be shown: without user and password."""
        return shown(self.store)

    @property
    def addresses(self) -> dict[str, Address]:
        """Where each port listens that is not off."""
        both = {
            "http": _address("http", self.http),
            "beanstalk": _address("beanstalk", self.beanstalk),
        }
        return {name: address for name, address in both.items() if address is not None}


def _address(name: str, text: str) -> Address | None:
    if text == OFF:
        return None
    if text.startswith(PREFIX):
        if not 0 < len(os.fsencode(text.removeprefix(PREFIX))) <= MOST_BYTES or "\0" in text:
            raise refusal(name, text, f"unix: and a path of 1 to {MOST_BYTES} bytes")
        return Address(text, 0)
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > 65_535:
        raise refusal(name, text, _ADDRESS_FORM)
    return Address(found[1] or found[2], int(found[3]))


def refusal(name: str, value: object, allowed: str) -> InvalidSettings:
    """Return the error that names the setting, the value and the allowed values."""
    return InvalidSettings(f"{name}: got {value!r:.80}, expected {allowed}")


# --- the fields ---------------------------------------------------------------------------------


class Field(NamedTuple):
    """A setting, as flags, environment, files and docs need it."""

    name: str
    kind: type
    default: Any
    about: str
    form: str
    low: int
    high: int
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        """The name of its flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """The name of its environment variable."""
        return f"DWELL_{self.name.upper()}"

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.kind is bool:
            return "true or false"
        if self.kind is int:
            low, high = _amount(self.low, self.unit), _amount(self.high, self.unit)
            return f"{_AMOUNTS[self.unit]} from {low} to {high}"
        return "a text"

    @property
    def shown(self) -> str:
        """Its default as people read and write it; empty without a default."""
        return "" if self.kind is bool else _amount(self.default, self.unit)

    @property
    def unit(self) -> str:
        """Its unit, which is the end of its name."""
        last = self.name.rpartition("_")[2]
        return last if last in _AMOUNTS else ""


_AMOUNTS = {
    "": "a whole number",
    "bytes": "a number of bytes, or one with KiB, MiB or GiB,",
    "ms": "a number of milliseconds, or a span such as 10s,",
}
_PARTS = {
    "": {},
    "bytes": {"GiB": 1024 * _MIB, "MiB": _MIB, "KiB": 1024},
    "ms": {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1},
}
_FORMS = {"": "N", "bytes": "SIZE", "ms": "SPAN"}


def _amount(value: Any, unit: str) -> str:
    for name, size in _PARTS[unit].items():
        if value and value % size == 0:
            return f"{value // size}{name}"
    return str(value)


def _fields() -> dict[str, Field]:
    hints = get_type_hints(ServerSettings, include_extras=True)
    names, defaults = ServerSettings.__struct_fields__, ServerSettings.__struct_defaults__
    return {
        name: _field(name, hints[name], default)
        for name, default in zip(names, defaults, strict=True)
    }


def _field(name: str, hint: Any, default: Any) -> Field:
    kind, meta = get_args(hint)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    made = Field(
        name=name,
        kind=str if choices else kind,
        default=default,
        about=meta.description,
        form="|".join(choices) or meta.title or "",
        low=meta.ge or 0,
        high=meta.le or 0,
        choices=choices,
    )
    return made._replace(form=_FORMS[made.unit]) if kind is int else made


FIELDS = _fields()
