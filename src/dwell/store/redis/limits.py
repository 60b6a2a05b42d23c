"""Limits: how much one call does, reads or names before other calls run.

They change only the number of calls, not their results; so a test may make them small, to cross all
of them with few messages.
"""

from typing import NamedTuple

#: This many bytes cost the functions as much as one message; ``call.lua`` has the same number.
BYTES_AS_ONE = 2**15


class Limits(NamedTuple):
    """How much one call to the engine may do, so that no call is long; tests make them small.

    The functions in Lua know the limits up to ``step_ms``; the others belong to Python.
    """

    #: How much due work one call does, and for how many topics.
    budget: int = 256
    timers: int = 64
    #: How many arguments one command of a function gets.
    arguments: int = 4_000
    #: How many acked ids are dropped together.
    forgotten: int = 500
    #: How many topics one call counts, walks, drops or takes from.
    topics: int = 200
    #: How many loose messages one call puts, and takes.
    loose: int = 200
    taken: int = 150
    #: How many messages of one key its front names, if they are in blocks.
    lined: int = 32
    #: How many messages one call of a scan checks, and how many leases or owned messages one call
    #: of `held`.
    scanned: int = 1_000
    looked: int = 128
    #: How long an empty topic is kept, and how often some topics are checked for that.
    idle_ms: int = 60_000
    sweep_ms: int = 1_000
    #: A delay counted from a time that differs by more is counted again.
    step_ms: int = 500

    #: How many ids, receipts, and receipts to ack, one call of a verb names.
    ids: int = 64
    receipts: int = 60
    acks: int = 10_000
    #: How many messages one call of a sweep gives.
    swept: int = 500
    #: How many blocks, or loose messages, one command reads past the functions.
    read: int = 200
    #: How many messages one call of a scan reads; and the first call, which learns how large they
    #: are.
    scan_read: int = 120
    scan_first: int = 16
    #: How many events are moved into the log at a time.
    moved: int = 5_000
    #: How many messages are compared at once with the counts of as many topics.
    compared: int = 100

    def of_functions(self) -> dict[str, int]:
        """Return the limits for the functions."""
        names = self._fields[: self._fields.index("step_ms") + 1]
        return {name: getattr(self, name) for name in names}


USUAL = Limits()
