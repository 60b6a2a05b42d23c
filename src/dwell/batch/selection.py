"""Conditions that select messages of a topic."""

import msgspec
import numpy as np

from dwell.batch.batch import Batch
from dwell.message import MAX_ATTEMPTS, State, decode_extra


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for messages of a topic: all given conditions must hold.

    ``due_from_ms`` and ``attempt_from`` are included, ``due_to_ms`` and ``attempt_to`` are
    excluded. ``headers`` are some of the message's, ``error`` is a part of its ``last_error``.
    ``where`` is a JMESPath expression, true for its body. Without ``states``, the verb has a
    default.
    """

    states: tuple[State, ...] | None = None
    due_from_ms: int = 0
    due_to_ms: int = 2**52
    key: str | None = None
    headers: dict[str, str] = {}
    error: str | None = None
    attempt_from: int = 0
    attempt_to: int = MAX_ATTEMPTS + 1
    where: str | None = None

    def places(self, batch: Batch) -> list[int]:
        """Return the places of the messages of a batch that fit by their columns.

        Its key, headers and ``where`` are left out, as they take time to look at.
        """
        fits = (batch.due_ms >= self.due_from_ms) & (batch.due_ms < self.due_to_ms)
        fits &= (batch.attempt >= self.attempt_from) & (batch.attempt < self.attempt_to)
        if self.states is not None:
            fits &= np.isin(batch.state, self.states)
        places: list[int] = np.flatnonzero(fits).tolist()
        if self.error is not None:
            errors = batch.errors
            places = [at for at in places if self.error in errors.get(at, "")]
        return places

    @property
    def has_extra(self) -> bool:
        """Whether it chooses by key or headers."""
        return self.key is not None or bool(self.headers)

    def fits(self, data: bytes) -> bool:
        """Tell whether a message has the key and the headers; ``data`` are all that it has."""
        extra = decode_extra(data)
        if self.key is not None and extra.key != self.key:
            return False
        return self.headers.items() <= extra.headers.items()


#: All messages.
ALL = Selection()
