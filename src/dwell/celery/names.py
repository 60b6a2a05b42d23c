"""Names of queues and exchanges as names of topics."""

import re

#: The records of all queues that were declared.
QUEUES = "kombu.queues"
_EXCHANGE = "kombu.exchange."
_ODD = re.compile(r"[^A-Za-z0-9._-]|^\.{1,2}$")


def topic_of(queue: str) -> str:
    """Return the topic of a queue: its name, with ``:40`` for ``@`` and so on.

    A name that is too long for a topic is refused where it is used.
    """
    return _ODD.sub(_coded, queue)


def exchange_topic(exchange: str) -> str:
    """Return the topic that holds the bindings of an exchange."""
    return _EXCHANGE + topic_of(exchange)


def is_exchange_topic(topic: str) -> bool:
    """Tell whether a topic holds the bindings of an exchange."""
    return topic.startswith(_EXCHANGE)


def _coded(found: "re.Match[str]") -> str:
    return "".join(f":{byte:02x}" for byte in found[0].encode())
