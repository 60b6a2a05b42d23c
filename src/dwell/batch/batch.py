"""Many messages in columns: the result of a take, a scan or a sweep."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from dwell.batch.schema import arrays_from, arrays_of, joined_columns, sequences_of
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

_STATES = {int(state): state for state in State}


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Batch(Sequence[Message]):
    """Messages in columns; a :class:`Message` object is made only on access.

    All columns have the same length; ``errors`` has the last error of each failed message, by its
    place, and ``receipts`` is of shape (n, 2), or None if the messages were not taken.
    """

    topics: Sequence[str]
    ids: Sequence[str]
    bodies: Sequence[bytes]
    extras: Sequence[bytes]
    due_ms: I64
    #: Codes of State.
    state: U8
    priority: U32
    attempt: U16
    max_attempts: U16
    lease_ms: U32
    #: The end of the lease of a message that is leased, of a dead one when it died, and else 0.
    until_ms: I64
    expires_ms: I64
    numbers: U64
    errors: dict[int, str]
    receipts: U64 | None
    _size: int = field(init=False)
    _lists: tuple[Any, ...] | None = field(init=False, default=None)
    _parent: "Batch | None" = field(init=False, default=None)
    _part: slice = field(init=False)

    def __post_init__(self) -> None:
        self._size = len(self.due_ms)

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
        taken = [m.receipt for m in messages if m.receipt is not None]
        columns = arrays_from(messages, BATCH_ARRAYS, _value)
        columns |= {name: [_value(m, name) for m in messages] for name in _SEQUENCES}
        errors = {i: m.last_error for i, m in enumerate(messages) if m.last_error is not None}
        receipts = receipts_from_text(taken) if len(taken) == len(messages) else None
        return cls(**columns, errors=errors, receipts=receipts)

    @classmethod
    def joined(cls, parts: "Sequence[Batch]", *, receipts: bool = True) -> "Batch":
        """Return the messages of all parts, one behind the other."""
        if not parts:
            return cls.empty(receipts=receipts)
        if len(parts) == 1:
            return parts[0]

        errors, at = {}, 0
        for part in parts:
            errors.update({at + place: error for place, error in part.errors.items()})
            at += len(part)
        whole = joined_columns(parts, (*_SEQUENCES, *BATCH_ARRAYS))
        taken = [part.receipts for part in parts]
        given = [one for one in taken if one is not None]
        receipts_ = np.concatenate(given) if len(given) == len(taken) else None
        return cls(**whole, errors=errors, receipts=receipts_)

    def picked(self, places: Sequence[int]) -> "Batch":
        """Return the messages at some places, in their order."""
        at = np.array(places, np.intp)
        columns: dict[str, Any] = {
            name: [getattr(self, name)[place] for place in places] for name in _SEQUENCES
        }
        columns |= {name: getattr(self, name)[at] for name in BATCH_ARRAYS}
        errors = {new: self.errors[old] for new, old in enumerate(places) if old in self.errors}
        receipts = None if self.receipts is None else self.receipts[at]
        return Batch(**columns, errors=errors, receipts=receipts)

    @property
    def lease_until_ms(self) -> I64:
        """When the lease of each message ends, 0 without a lease."""
        return np.where(self.state == State.LEASED, self.until_ms, 0)

    @property
    def died_ms(self) -> I64:
        """When each message died, 0 if it is not dead."""
        return np.where(self.state == State.DEAD, self.until_ms, 0)

    def __len__(self) -> int:
        return self._size

    def __getattr__(self, name: str) -> Any:
        # Only a part of a batch lacks a column, and cuts it out of the whole on first use.
        if name not in _COLUMNS:
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
            # NumPy is slow for single values, and callers that read one usually read more.
            lists = self._lists = self._as_lists()
        due, state, priority, attempt, most, lease, until, expires, number, receipts = lists
        extra = decode_extra(self.extras[index])
        # Written out, as to build it from names costs half as much again for each message.
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
        texts = None if self.receipts is None else receipts_to_text(self.receipts)
        return (*(getattr(self, name).tolist() for name in BATCH_ARRAYS), texts)

    def _slice(self, part: slice) -> "Batch":
        batch = Batch.__new__(Batch)
        batch._parent, batch._part, batch._lists = self, part, None
        batch._size = len(range(self._size)[part])
        return batch

    def _part_of_errors(self, errors: dict[int, str]) -> dict[int, str]:
        if not errors:
            return {}
        assert self._parent is not None
        places = range(len(self._parent))[self._part]
        return {new: errors[old] for new, old in enumerate(places) if old in errors}


#: The columns of a batch that are arrays, with the types of their values, and the sequences.
BATCH_ARRAYS = arrays_of(Batch)
_SEQUENCES = sequences_of(Batch)
_COLUMNS = frozenset((*BATCH_ARRAYS, *_SEQUENCES, "errors", "receipts"))
#: Which field of a message a column holds, where its name is another.
_FIELDS = {"topics": "topic", "ids": "id", "bodies": "body", "numbers": "number"}


def _value(message: Message, column: str) -> Any:
    """Return the value of a column for a message."""
    if column == "extras":
        return encode_extra(message.key, message.headers)
    if column == "until_ms":
        return message.lease_until_ms or message.died_ms
    return getattr(message, _FIELDS.get(column, column))
