"""Ids that are made from others: of several topics in one, and of bounded length."""

from hashlib import blake2b

from dwell.message import MAX_ID_BYTES

_DIGEST_BYTES = 16


def scoped_id(topic: str, id_: str) -> str:
    """Return the id of a message of a topic among messages of others: two topics may have one id.

    An id that would be too long has a digest of the own id in its place. A slash in the name of a
    queue elsewhere is written as %2F, as ids may have some.
    """
    name = topic.replace("%", "%25").replace("/", "%2F")
    return short_id(id_, f"{name}/")


def short_id(id_: str, prefix: str = "") -> str:
    """Return an id after a prefix, or the digest (BLAKE2b) of an id that is too long there."""
    whole = f"{prefix}{id_}"
    if len(whole.encode()) <= MAX_ID_BYTES:
        return whole
    return f"{prefix}{blake2b(id_.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
