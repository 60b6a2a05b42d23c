"""Which reply says that a command could not be done."""

import logging

from dwell.errors import (
    AccessDenied,
    BatchTooLarge,
    DiskFull,
    ServerBusy,
    ServerDraining,
    StoreError,
    StoreFull,
    TopicFull,
)
from dwell.server.beanstalk.replies import (
    DRAINING,
    INTERNAL_ERROR,
    OUT_OF_MEMORY,
    UNKNOWN_COMMAND,
)

_log = logging.getLogger(__name__)

#: The first matching class counts. Beanstalk has no word for a missing right; an unknown command
#: is the nearest, since it says that a retry is of no use.
_WORDS: tuple[tuple[type[Exception], bytes], ...] = (
    (AccessDenied, UNKNOWN_COMMAND),
    (TopicFull, OUT_OF_MEMORY),
    (BatchTooLarge, OUT_OF_MEMORY),
    (DiskFull, OUT_OF_MEMORY),
    (StoreFull, OUT_OF_MEMORY),
    (MemoryError, OUT_OF_MEMORY),
    (ServerBusy, OUT_OF_MEMORY),
    (ServerDraining, DRAINING),
    (StoreError, INTERNAL_ERROR),
)


def word_of(error: Exception) -> bytes:
    """Return the reply to a command that raised an error; an unexpected error is logged."""
    for kind, word in _WORDS:
        if isinstance(error, kind):
            return word
    _log.error("a command of the beanstalk protocol failed", exc_info=error)
    return INTERNAL_ERROR
