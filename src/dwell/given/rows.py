"""Rows: the arguments of a put for one message, checked value by value."""

from collections.abc import Callable, Mapping, Sequence

from dwell.batch.puts import DUE_COUNTED, EXPIRY_COUNTED, Row
from dwell.given import columns, values
from dwell.given.values import Delay, Due
from dwell.message import DEFAULT_PRIORITY, encode_extra


def row_of(
    body: bytes,
    now_ms: int,
    levels_ms: Sequence[int] = (),
    named: Callable[[str], str] = str,
    /,
    *,
    delay: Delay | None = None,
    due: Due | None = None,
    delay_level: int | None = None,
    id: str | None = None,  # noqa: A002 - the word of the whole API
    priority: int | None = DEFAULT_PRIORITY,
    lease: Delay | None = None,
    max_attempts: int | None = None,
    expires: Due | None = None,
    ttl: Delay | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Row:
    """Return a message as :meth:`dwell.Queue.put` takes it; ``levels_ms`` are the topic's.

    ``body`` was checked before. Raises InvalidInput for the first value that is not valid;
    ``named`` returns the name of its field.
    """
    due_ms, counted = now_ms, DUE_COUNTED
    if delay is not None or due is not None or delay_level is not None:
        columns.one_of(delay=delay, due=due, delay_level=delay_level)
        if due is not None:
            due_ms, counted = values.due_ms(due, now_ms, named("due")), 0
        elif delay is not None:
            due_ms += values.delay_ms(delay, named("delay"))
        else:
            due_ms += values.level_ms(delay_level, levels_ms, named("delay_level"))
    expires_ms = 0
    if expires is not None or ttl is not None:
        columns.one_of(expires=expires, ttl=ttl)
        if ttl is None:
            expires_ms = values.expires_ms(expires, now_ms, named("expires"))
        else:
            expires_ms = now_ms + values.delay_ms(ttl, named("ttl"))
            columns.check_ttl(expires_ms <= due_ms)
            counted |= EXPIRY_COUNTED
    return Row(
        body,
        due_ms,
        DEFAULT_PRIORITY if priority is None else values.priority(priority, named("priority")),
        0 if lease is None else values.lease_ms(lease, named("lease")),
        0 if max_attempts is None else values.max_attempts(max_attempts, named("max_attempts")),
        expires_ms,
        b"" if key is None and headers is None else _extra(key, headers, named),
        b"" if id is None else values.own_id(id, named("id")),
        counted,
    )


def _extra(
    key: str | None, headers: Mapping[str, str] | None, named: Callable[[str], str]
) -> bytes:
    return encode_extra(values.key(key, named("key")), values.headers(headers, named("headers")))
