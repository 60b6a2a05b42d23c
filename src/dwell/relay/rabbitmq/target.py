"""The targets of RabbitMQ, in the form of the header ``dwell-to``.

``orders`` is a queue. ``events/order.paid`` is the exchange ``events`` with a routing key, and
``events/`` that exchange with the message's original routing key. The first slash separates: a
slash in the name of an exchange is written ``%2F``, and a queue with a slash as ``/a/b``.
"""

from functools import lru_cache
from urllib.parse import quote, unquote


def target_of(exchange: str, routing_key: str) -> str:
    """Return a target in the form that :func:`parts_of` reads."""
    if not exchange:
        return f"/{routing_key}" if "/" in routing_key else routing_key
    # Only slash and percent have a meaning in it.
    return f"{quote(exchange, safe=_PLAIN)}/{routing_key}"


@lru_cache(maxsize=4096)
def parts_of(target: str) -> tuple[str, str | None]:
    """Return exchange and routing key of a target; None for the original key."""
    exchange, slash, routing_key = target.partition("/")
    if not slash:
        return "", target
    if not exchange:
        return "", routing_key
    return unquote(exchange), routing_key or None


_PLAIN = "".join(map(chr, range(32, 127))).replace("%", "").replace("/", "")
