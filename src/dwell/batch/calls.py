"""Call numbers: they name what a request does to each message, so that a repeat does it once.

A client draws a number for each request and sends it with the request, and again with each repeat.
The first message has that number, the next one the number after it, and so on. A store that keeps
numbers records each beside what was done; when a repeat comes it answers what was done, and does
only what was not.
"""

import numpy as np

from dwell.message import U64

#: Set in the number of a message whose request was sent before.
AGAIN = 1 << 63

#: A request draws a number below this, so that those of its messages stay below AGAIN.
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
