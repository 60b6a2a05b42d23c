"""Call numbers: they name the messages of a request, so that a repeat is done only once.

A client draws a number for each request and sends it with the request, and again with each repeat.
The first message has that number, the second one the number after it, and so on. A store that keeps
numbers writes them down with the verb. It answers a repeat with the results of the first request,
and does only the part that was not done.
"""

from functools import lru_cache
from hashlib import blake2b

import numpy as np

from dwell.message import MAX_BATCH_MESSAGES, U64

#: Set in the number of a message whose request was sent before.
AGAIN = 1 << 63

#: Requests draw numbers below this, so that the numbers of all their messages are below AGAIN.
MOST_FIRST = 1 << 62

#: The caller stands in the bits above these; the numbers of one caller are dropped together.
CALLER_SHIFT = 50
_CALLERS = MOST_FIRST >> CALLER_SHIFT
#: So many numbers stand for requests of one caller: the last leaves room for all of its messages.
_FIRSTS = (1 << CALLER_SHIFT) - MAX_BATCH_MESSAGES
#: An odd number: a product with it is another for each number below 2**62, and has all its bits.
_MIX = 0x9E3779B97F4A7C15


def first_of_caller(number: int, caller: str) -> int:
    """Return the number that stands for a request of one of many callers.

    Its high bits follow from the caller, and the others from the number that the caller drew. All
    numbers of the messages of a request have the same high bits.
    """
    mixed = number * _MIX % MOST_FIRST
    return (_place_of(caller) << CALLER_SHIFT) | mixed // _CALLERS % _FIRSTS


@lru_cache(maxsize=10_000)
def _place_of(caller: str) -> int:
    return int.from_bytes(blake2b(caller.encode(), digest_size=8).digest(), "big") % _CALLERS


def numbers_of(first: int, count: int) -> U64:
    """Return the numbers of the messages of a request, in their order."""
    return np.arange(first, first + count, dtype=np.uint64)


def plain(calls: U64) -> U64:
    """Return call numbers without the mark of a repeat."""
    numbers: U64 = calls & np.uint64(AGAIN - 1)
    return numbers


def are_again(calls: U64) -> np.ndarray:
    """Tell of each call number whether its request was sent before."""
    again: np.ndarray = calls >= np.uint64(AGAIN)
    return again
