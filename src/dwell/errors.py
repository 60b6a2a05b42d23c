"""Every error that Dwell raises.

The tree, one sentence each::

    DwellError                  the root: catch this to catch all of them
    ├─ InvalidInput             a value was refused before anything was written (also a ValueError)
    │  ├─ InvalidTopic          a topic is not 1-200 characters of A-Z a-z 0-9 . _ : -, or . or ..
    │  ├─ InvalidId             an id is not 1-256 bytes of UTF-8, or claims the queue's own form
    │  ├─ InvalidBody           a body cannot be encoded, or is larger than the limit
    │  ├─ InvalidTime           a delay, due, lease or expiry is negative, naive or too far away
    │  ├─ InvalidPriority       a priority is not a whole number from 0 to 4294967295
    │  ├─ InvalidAttempts       a number of attempts is not from 1 to 65535
    │  ├─ InvalidKey            an order key is not 1-256 bytes of UTF-8
    │  ├─ InvalidHeaders        headers are not a small mapping of text to text
    │  ├─ InvalidReceipt        a receipt is garbled: no store can have made it
    │  │  └─ ForeignReceipt     a receipt was made by another store
    │  ├─ InvalidSettings       a topic setting is unknown or has a value that is not allowed
    │  ├─ InvalidLimit          a limit, cursor or position is out of range
    │  ├─ InvalidUrl            a store's URL names no kind of store that exists
    │  ├─ InvalidSchedule       a schedule is unknown, cannot be read, or would never fire
    │  ├─ InvalidQuery          a predicate is not an expression that can be evaluated
    │  └─ BatchTooLarge         a batch holds more messages or bytes than one request may
    ├─ IdExists                 put with on_conflict="error" met an id that exists; nothing was put
    ├─ TopicFull                a topic is at max_pending and refuses more; nothing was put
    ├─ AccessDenied             a server refused the caller; nothing was done
    │  ├─ Unauthorized          the token is missing or unknown
    │  └─ Forbidden             the token lacks the right on the topic
    └─ StoreError               the store cannot do its work
       ├─ StoreClosed           the handle was closed
       ├─ StoreLocked           another process, or another handle, holds the folder
       ├─ NotAStore             the folder exists, holds files, and is not a store
       ├─ StoreTooNew           the store was written in a newer format than this version reads
       ├─ StoreDamaged          a record that was once safe on disk can no longer be read
       ├─ DiskFull              there is no room on the disk; what was accepted before is safe
       ├─ StoreFull             no memory for new messages, or no room in the token's quota
       ├─ StoreFailed           a write or an fsync failed; no more writes until it is opened again
       ├─ ServerBusy            too much is under way, or a token asks too often; nothing was done
       ├─ ServerDraining        the server takes no new messages, as it is about to stop
       └─ ServerUnreachable     no answer came in time; the verb may have been done or not
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any


class DwellError(Exception):
    """The root of every error that Dwell raises.

    ``put_before`` counts, by result, the messages of a batch that some shards had put before
    another refused the rest. If some shards did their part of another verb, ``each`` has for every
    message of the batch the code of its result, or its own error.
    """

    put_before: Mapping[Any, int] = MappingProxyType({})
    each: Sequence[Any] = ()

    #: Whether some of what was asked for was done all the same, as the text says.
    is_partly = False


class InvalidInput(DwellError, ValueError):
    """A value was refused before anything was written."""


class InvalidTopic(InvalidInput):
    """A topic is not 1-200 characters of ``A-Za-z0-9._:-``, or is ``.`` or ``..``."""


class InvalidId(InvalidInput):
    """An id is not 1-256 bytes of UTF-8, or claims the form of ids that the queue makes."""


class InvalidBody(InvalidInput):
    """A body cannot be encoded, or is larger than the limit."""


class InvalidTime(InvalidInput):
    """A delay, due time, lease or expiry is negative, naive or too far away."""


class InvalidPriority(InvalidInput):
    """A priority is not a whole number from 0 to 4294967295."""


class InvalidAttempts(InvalidInput):
    """A number of attempts is not from 1 to 65535."""


class InvalidKey(InvalidInput):
    """An order key is not 1-256 bytes of UTF-8."""


class InvalidHeaders(InvalidInput):
    """Headers are not a small mapping of text to text."""


class InvalidReceipt(InvalidInput):
    """A receipt is garbled: no store can have made it."""


class ForeignReceipt(InvalidReceipt):
    """A receipt was made by another store."""


class InvalidSettings(InvalidInput):
    """A topic setting is unknown or has a value that is not allowed."""


class InvalidLimit(InvalidInput):
    """A limit, cursor or position is out of range."""


class InvalidUrl(InvalidInput):
    """A store's URL names no kind of store that exists."""


class InvalidSchedule(InvalidInput):
    """A schedule's rule or zone is unknown, cannot be read, or would never fire."""


class InvalidQuery(InvalidInput):
    """A predicate is not an expression that can be evaluated."""


class BatchTooLarge(InvalidInput):
    """A batch holds more messages or bytes than one request may."""


class IdExists(DwellError):
    """A put with ``on_conflict="error"`` met an id that exists; nothing was put."""


class TopicFull(DwellError):
    """A topic is at ``max_pending`` and refuses more; nothing was put."""


class StoreError(DwellError):
    """The store cannot do its work."""


class StoreClosed(StoreError):
    """The handle was closed."""


class StoreLocked(StoreError):
    """Another process, or another handle of this one, holds the folder."""


class NotAStore(StoreError):
    """The folder exists, holds files, and is not a store."""


class StoreTooNew(StoreError):
    """The store was written in a newer format than this version reads."""


class StoreDamaged(StoreError):
    """A record that was once safe on disk can no longer be read."""


class DiskFull(StoreError):
    """There is no room on the disk; what was accepted before is safe."""


class StoreFull(StoreError):
    """No memory is left for new messages, or no room in the token's quota; acks still work."""


class StoreFailed(StoreError):
    """A write or an fsync failed; the store takes no more writes until it is opened again."""


class ServerBusy(StoreError):
    """Too much is under way, or a token asks too often; nothing was done, come again later."""


class ServerDraining(StoreError):
    """The server takes no new messages, as it is about to stop; nothing was put."""


class ServerUnreachable(StoreError):
    """No answer came from the server in time; the verb may have been done or not.

    ``may_be_done`` is False if it was surely not done, as nothing reached the server.
    """

    may_be_done = True


class AccessDenied(DwellError):
    """A server refused the caller; nothing was done."""


class Unauthorized(AccessDenied):
    """The token is missing or unknown."""


class Forbidden(AccessDenied):
    """The token lacks the right on the topic."""
