"""Addresses of Kafka: ``kafka://host:9092,other:9092/topic,topic?group=dwell&config=FILE``."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from dwell.errors import InvalidUrl
from dwell.urls import shown

_FORM = "kafka://HOST:PORT[,HOST:PORT ...]/TOPIC[,TOPIC ...][?group=NAME&config=FILE&OPTION=VALUE]"
_OURS = ("group", "config")


@dataclass(frozen=True)
class Address:
    """The brokers, the topics, and further options for librdkafka."""

    topics: tuple[str, ...]
    group: str
    options: dict[str, str]

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read an address; raises InvalidUrl."""
        parts = urlsplit(url)
        hosts = parts.netloc
        if parts.scheme != "kafka" or not hosts or "@" in hosts:
            raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected {_FORM}")
        said = dict(parse_qsl(parts.query, keep_blank_values=True))
        options = {"bootstrap.servers": hosts}
        if "config" in said:
            options |= _read(said["config"])
        options |= {name: value for name, value in said.items() if name not in _OURS}
        names = unquote(parts.path.strip("/"))
        topics = tuple(dict.fromkeys(name for name in names.split(",") if name))
        return cls(topics, said.get("group") or "dwell", options)


def _read(path: str) -> dict[str, str]:
    """Return the options in a file of ``name=value`` lines, as Kafka's own tools read it."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise InvalidUrl(f"config: cannot read {path}: {error.strerror}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, sign, value = line.partition("=")
        if not sign:
            # The line may have a secret, so it is not shown.
            raise InvalidUrl(f"config: {path}, line {number}: expected NAME=VALUE")
        found[name.strip()] = value.strip()
    return found
