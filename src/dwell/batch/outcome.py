"""The outcome of a message: where it is, or what came of it."""

from typing import Any

import msgspec

#: The states of an outcome that is final, unless somebody brings the message back.
OVER = frozenset(("done", "dead", "gone"))
#: The states of an outcome, in the order of a message's life.
OUTCOME_STATES = ("delayed", "ready", "leased", "done", "dead", "gone", "unknown")


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a message, as :meth:`dwell.Queue.result` tells it.

    ``state`` is ``delayed``, ``ready`` or ``leased`` while there is work to do; ``done`` when it
    was acked, ``dead`` with its ``error``; ``gone`` when it went during the wait and left nothing:
    it was cancelled, or acked without anything that is kept; and ``unknown`` when the store knows
    nothing of the id, or no longer. ``result`` (bytes) is what the ack of a ``done`` message gave,
    None if it gave none.
    """

    state: str
    result: bytes | None = None
    error: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether the message is done, dead or gone."""
        return self.state in OVER

    def json(self) -> Any:
        """Return the result decoded as JSON, None without a result."""
        return None if self.result is None else msgspec.json.decode(self.result)


UNKNOWN = Outcome("unknown")
GONE = Outcome("gone")
