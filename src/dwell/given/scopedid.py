"""Ids of messages that come from several topics into one."""

from hashlib import blake2b

from dwell.message import MAX_ID_BYTES

_DIGEST_BYTES = 16


def scoped_id(topic: str, id_: str) -> str:
    """Return the id of a message of a topic among messages of others: two topics may have one id.

    An id that would be too long has a digest (BLAKE2b) of the own id in its place.
    """
    scoped = f"{topic}/{id_}"
    if len(scoped.encode()) <= MAX_ID_BYTES:
        return scoped
    return f"{topic}/{blake2b(id_.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
