"""How the requests of a verb are told from others, on a wire before a Redis."""

from dwell.store.redis.functions import library


def call_of(verb: str) -> bytes:
    """Return what every request of a verb holds."""
    return f"{library()[1]}{verb}\r\n".encode()
