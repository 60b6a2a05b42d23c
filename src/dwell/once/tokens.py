"""Tokens in a Redis: for effects that have no transaction, such as a call of another service.

A token is taken before the effect and marked as done after it. A worker that is killed in between
leaves a token that ends in time; then nobody knows whether the effect was made, and it is made
again. So the other service should know the key, too.
"""

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from dwell.message import Message
from dwell.retries import NotNow

_log = logging.getLogger(__name__)

_DONE = b"done"
#: Deletes the token KEYS[1] of a delivery if ARGV[1] is 0, and else keeps it as done for ARGV[1]
#: milliseconds, also when its time has ended. If another delivery has it by now, it returns 0
#: and does nothing. ARGV[2] is the own token.
_END = """
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[2] then return 0 end
if ARGV[1] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], 'done', 'PX', ARGV[1])
end
return 1
"""
#: The longest time until a delivery that found another under way is tried again, milliseconds.
_AGAIN_MS = 10_000


class StillRunning(NotNow):
    """Another delivery of the same message is under way; nothing was done.

    A worker tries again when the token of the other ends, and after 10 s at the latest. The attempt
    does not count.
    """


@contextlib.contextmanager
def once_on_redis(
    message: Message,
    client: Any,
    *,
    key: str | None = None,
    holds_ms: int = 300_000,
    keeps_ms: int = 7 * 24 * 3_600_000,
    prefix: str = "dwell-once",
) -> Iterator[bool]:
    """Take the token of a message for a block, and mark it as done at the end.

    ``client`` is a client of redis-py. Yields True for the first delivery, and False if an earlier
    one is done. Raises StillRunning if another delivery has the token; a worker then tries again
    later. An error in the block gives the token back, and is raised. ``holds_ms`` is how long the
    block may take; a token of a worker that was killed ends then. ``keeps_ms`` is how long a token
    counts as done, and ``key`` what may be done only once, by default the id of the message.
    """
    # Topics and ids may have colons, and two messages must not have one token.
    name = f"{prefix}:{quote(message.topic, safe='')}:{message.id if key is None else key}"
    token, began_s = secrets.token_hex(16).encode(), time.monotonic()
    found = client.set(name, token, nx=True, px=holds_ms, get=True)
    # The client may have repeated a SET whose answer was lost.
    if found is not None and _bytes(found) != token:
        if _bytes(found) != _DONE:
            running = StillRunning(f"message: {name!r:.80} is handled by another delivery now")
            running.delay_ms = min(max(client.pttl(name), 1), _AGAIN_MS)
            raise running
        yield False
        return
    try:
        yield True
    except BaseException:
        client.eval(_END, 1, name, 0, token)
        raise
    try:
        is_own = client.eval(_END, 1, name, keeps_ms, token)
    except BaseException:
        # The effect is made, and an interrupt may have come before Redis heard of it.
        with contextlib.suppress(Exception):
            client.eval(_END, 1, name, keeps_ms, token)
        raise
    # Redis has heard it before, where the client repeats a call whose answer was lost.
    if not is_own and (time.monotonic() - began_s) * 1000 >= holds_ms:
        _log.warning(
            "%s took more than %d ms, so another delivery has begun to do the same", name, holds_ms
        )


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
