"""How the requests of a verb are told from others, on a wire before a Redis."""

from dwell.store.redis.options import options_of
from dwell.store.redis.scripts import scripts


def call_of(verb: str, **options: object) -> bytes:
    """Return what every request of a verb holds, once Redis knows its script."""
    usual = options_of("redis://localhost", options)
    return scripts(usual.packed, usual.max_events, usual.limits)[verb].digest.encode()
