"""Call numbers: they name the messages of a request, so that a repeat is done only once.

A client draws a number for each request and sends it with the request, and again with each repeat.
The first message has that number, the second one the number after it, and so on. A store that keeps
numbers writes them down with the verb. It answers a repeat with the results of the first request,
and does only the part that was not done.
"""

import numpy as np

from dwell.message import U64

#: Set in the number of a message whose request was sent before.
AGAIN = 1 << 63

#: Requests draw numbers below this, so that the numbers of all their messages are below AGAIN.
MOST_FIRST = 1 << 62


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
