"""Many messages in columns: what a take, a scan and a sweep give."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np

from dwell.message import (
    I64,
    U8,
    U16,
    U32,
    U64,
    Message,
    State,
    decode_extra,
    encode_extra,
    receipts_from_text,
    receipts_to_text,
)

#: The columns of a batch that are sequences, and those that are arrays and always there.
_SEQUENCES = ("topics", "ids", "bodies", "extras")
_ARRAYS = (
    *("due_ms", "priority", "attempt", "max_attempts", "lease_ms", "until_ms"),
    *("expires_ms", "state", "numbers"),
)


_STATES = {int(state): state for state in State}


class Batch(Sequence[Message]):
    """Messages in columns: a :class:`Message` is made only for the one that is looked at.

    Columns of length n: ``topics``, ``ids``, ``bodies``, ``extras`` (sequences), ``due_ms``,
    ``priority``, ``attempt``, ``max_attempts``, ``lease_ms``, ``until_ms``, ``expires_ms``,
    ``state``, ``numbers`` (arrays), ``errors`` (index -> text, only where there is one) and
    ``receipts`` (shape (n, 2), or None where nothing was taken). ``until_ms`` is the end of the
    lease of a message that is leased, of a dead one when it died, and else 0.
    """

    __slots__ = (
        "_lists",
        "_parent",
        "_part",
        "_size",
        "attempt",
        "bodies",
        "due_ms",
        "errors",
        "expires_ms",
        "extras",
        "ids",
        "lease_ms",
        "max_attempts",
        "numbers",
        "priority",
        "receipts",
        "state",
        "topics",
        "until_ms",
    )

    _lists: tuple[Any, ...] | None
    _parent: "Batch | None"
    _part: slice

    def __init__(
        self,
        *,
        topics: Sequence[str],
        ids: Sequence[str],
        bodies: Sequence[bytes],
        extras: Sequence[bytes],
        due_ms: I64,
        priority: U32,
        attempt: U16,
        max_attempts: U16,
        lease_ms: U32,
        until_ms: I64,
        expires_ms: I64,
        state: U8,
        numbers: U64,
        errors: dict[int, str],
        receipts: U64 | None,
    ) -> None:
        self._parent = self._lists = None
        self._size = len(due_ms)
        self.topics = topics
        self.ids = ids
        self.bodies = bodies
        self.extras = extras
        self.due_ms = due_ms
        self.priority = priority
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.lease_ms = lease_ms
        self.until_ms = until_ms
        self.expires_ms = expires_ms
        self.state = state
        self.numbers = numbers
        self.errors = errors
        self.receipts = receipts

    @classmethod
    def empty(cls, *, receipts: bool = True) -> "Batch":
        """Return a batch without messages, of a take or (without ``receipts``) of a look."""
        batch = cls.of([])
        if not receipts:
            batch.receipts = None
        return batch

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Batch":
        """Return the columns of some messages."""

        def column(name: str, dtype: type[np.generic]) -> Any:
            return np.array([getattr(m, name) for m in messages], dtype=dtype)

        taken = [m.receipt for m in messages if m.receipt is not None]
        return cls(
            topics=[m.topic for m in messages],
            ids=[m.id for m in messages],
            bodies=[m.body for m in messages],
            extras=[encode_extra(m.key, m.headers) for m in messages],
            due_ms=column("due_ms", np.int64),
            priority=column("priority", np.uint32),
            attempt=column("attempt", np.uint16),
            max_attempts=column("max_attempts", np.uint16),
            lease_ms=column("lease_ms", np.uint32),
            until_ms=column("lease_until_ms", np.int64) + column("died_ms", np.int64),
            expires_ms=column("expires_ms", np.int64),
            state=column("state", np.uint8),
            numbers=column("number", np.uint64),
            errors={i: m.last_error for i, m in enumerate(messages) if m.last_error is not None},
            receipts=receipts_from_text(taken) if len(taken) == len(messages) else None,
        )

    @classmethod
    def joined(cls, parts: "Sequence[Batch]", *, receipts: bool = True) -> "Batch":
        """Return the messages of all parts, one behind the other."""
        if not parts:
            return cls.empty(receipts=receipts)
        if len(parts) == 1:
            return parts[0]

        def columns(name: str) -> list[Any]:
            return [getattr(part, name) for part in parts]

        errors, at = {}, 0
        for part in parts:
            errors.update({at + place: error for place, error in part.errors.items()})
            at += len(part)
        whole: dict[str, Any] = {
            name: list(chain.from_iterable(columns(name))) for name in _SEQUENCES
        }
        whole |= {name: np.concatenate(columns(name)) for name in _ARRAYS}
        taken = columns("receipts")
        given = None if any(one is None for one in taken) else np.concatenate(taken)
        return cls(**whole, errors=errors, receipts=given)

    def picked(self, places: Sequence[int]) -> "Batch":
        """Return the messages at some places, in their order."""
        at = np.array(places, np.intp)
        columns: dict[str, Any] = {
            name: [getattr(self, name)[place] for place in places] for name in _SEQUENCES
        }
        columns |= {name: getattr(self, name)[at] for name in _ARRAYS}
        errors = {new: self.errors[old] for new, old in enumerate(places) if old in self.errors}
        receipts = None if self.receipts is None else self.receipts[at]
        return Batch(**columns, errors=errors, receipts=receipts)

    @property
    def lease_until_ms(self) -> I64:
        """When the lease of each message ends, 0 where it has none."""
        return np.where(self.state == State.LEASED, self.until_ms, 0)

    @property
    def died_ms(self) -> I64:
        """When each message died, 0 where it is not dead."""
        return np.where(self.state == State.DEAD, self.until_ms, 0)

    def __len__(self) -> int:
        return self._size

    def __getattr__(self, name: str) -> Any:
        # Only a part of a batch lacks a column, and cuts it out of the whole when it is asked for.
        if name not in Batch.__slots__ or name.startswith("_"):
            raise AttributeError(name)
        column = getattr(self._parent, name)
        if isinstance(column, dict):
            column = self._part_of_errors(column)
        elif column is not None:
            column = column[self._part]
        setattr(self, name, column)
        return column

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> "Batch": ...
    def __getitem__(self, index: int | slice) -> "Message | Batch":
        return self._slice(index) if isinstance(index, slice) else self._message(index)

    def __iter__(self) -> Iterator[Message]:
        return map(self._message, range(len(self)))

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages>"

    def _message(self, index: int) -> Message:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        whole = self._parent
        if whole is not None:
            # Cutting every column out of the whole would cost more than the message.
            return whole._message(range(len(whole))[self._part][index])
        lists = self._lists
        if lists is None:
            # NumPy takes longer for one value than for many, and who looks at one looks at more.
            lists = self._lists = self._as_lists()
        due, state, priority, attempt, most, lease, until, expires, number, receipts = lists
        extra = decode_extra(self.extras[index])
        return Message(
            topic=self.topics[index],
            id=self.ids[index],
            body=self.bodies[index],
            due_ms=due[index],
            state=_STATES[state[index]],
            priority=priority[index],
            attempt=attempt[index],
            max_attempts=most[index],
            lease_ms=lease[index],
            lease_until_ms=until[index] if state[index] == State.LEASED else 0,
            died_ms=until[index] if state[index] == State.DEAD else 0,
            expires_ms=expires[index],
            key=extra.key,
            headers=extra.headers,
            last_error=self.errors.get(index),
            receipt=receipts[index] if receipts is not None else None,
            number=number[index],
        )

    def _as_lists(self) -> tuple[Any, ...]:
        arrays = (
            *(self.due_ms, self.state, self.priority, self.attempt, self.max_attempts),
            *(self.lease_ms, self.until_ms, self.expires_ms, self.numbers),
        )
        texts = None if self.receipts is None else receipts_to_text(self.receipts)
        return (*(array.tolist() for array in arrays), texts)

    def _slice(self, part: slice) -> "Batch":
        batch = Batch.__new__(Batch)
        batch._parent, batch._part = self, part
        batch._size = len(range(self._size)[part])
        return batch

    def _part_of_errors(self, errors: dict[int, str]) -> dict[int, str]:
        if not errors:
            return {}
        assert self._parent is not None
        places = range(len(self._parent))[self._part]
        return {new: errors[old] for new, old in enumerate(places) if old in errors}
