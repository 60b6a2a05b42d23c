"""Addresses of RabbitMQ: ``amqp://user:password@host:5672/vhost?queue=NAME``.

As a sink an address names a queue, an exchange with a routing key, or an exchange alone, which gets
every message with its original routing key.
"""

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from dwell.digits import number_of
from dwell.errors import InvalidUrl
from dwell.relay.rabbitmq.target import target_of
from dwell.urls import has_host, shown

_FORM = (
    "amqp://USER:PASSWORD@HOST:PORT/VHOST?queue=NAME, or in --to "
    "?exchange=NAME&routing_key=KEY, or nothing after VHOST"
)
_OURS = ("queue", "exchange", "routing_key", "prefetch", "id")
#: Options of the client: heartbeats, its name, certificates.
_OPTIONS = ("heartbeat", "name", "auth", "cafile", "capath", "cadata", "keyfile", "certfile")
_MOST_PREFETCH = 65_535


@dataclass(frozen=True)
class Address:
    """The place of a broker, and its queue or exchange.

    ``url`` is for the client only, because it has the password; ``name`` is for people.
    ``is_by_message_id`` tells that message_ids are unique, so that they serve as ids.
    """

    url: str
    name: str
    queue: str
    topics: tuple[str, ...]
    prefetch: int
    is_by_message_id: bool

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read an address; raises InvalidUrl."""
        parts = urlsplit(url)
        if parts.scheme not in ("amqp", "amqps") or not has_host(url):
            raise InvalidUrl(f"url: got {shown(url)!r:.200}, expected {_FORM}")
        said = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(set(said) - {*_OURS, *_OPTIONS}):
            raise InvalidUrl(
                f"url: got the option {unknown[0]!r:.80}, expected {', '.join((*_OURS, *_OPTIONS))}"
            )
        more = {name: value for name, value in said.items() if name not in _OURS}
        bare = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        return cls(
            url=f"{bare}?{urlencode(more)}" if more else bare,
            name=shown(bare),
            queue=said.get("queue", ""),
            topics=_topics(said),
            prefetch=_prefetch(said.get("prefetch", "2000")),
            is_by_message_id=_is_by_message_id(said.get("id", "")),
        )


def _topics(said: dict[str, str]) -> tuple[str, ...]:
    """Return the target in an address, if there is one."""
    if "queue" in said and "exchange" in said:
        raise InvalidUrl("url: got queue and exchange, expected one of them")
    if "routing_key" in said and "exchange" not in said:
        raise InvalidUrl("url: got routing_key without exchange, expected both")
    for name in ("queue", "exchange", "routing_key"):
        if name in said and not 0 < len(said[name].encode()) <= 255:
            raise InvalidUrl(f"{name}: got {said[name]!r:.80}, expected 1 to 255 bytes")
    if "exchange" in said:
        return (target_of(said["exchange"], said.get("routing_key", "")),)
    return (target_of("", said["queue"]),) if "queue" in said else ()


def _prefetch(text: str) -> int:
    prefetch = number_of(text)
    if prefetch is None or not 1 <= prefetch <= _MOST_PREFETCH:
        raise InvalidUrl(f"prefetch: got {text!r:.80}, expected 1 to {_MOST_PREFETCH}")
    return prefetch


def _is_by_message_id(text: str) -> bool:
    if text not in ("", "message_id"):
        raise InvalidUrl(f"id: got {text!r:.80}, expected message_id")
    return bool(text)
