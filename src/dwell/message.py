"""The whole design on one page: the message, its states, its transitions and its limits.

All times are whole milliseconds (``_ms``): points in time since the epoch, or spans. The state
machine is data (:data:`TRANSITIONS`); the docs and the tests are derived from it.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dwell.errors import InvalidReceipt
from dwell.retries import RETRY_DELAYS_MS

F64 = npt.NDArray[np.float64]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
#: Rows at hand. NumPy gathers by these in a third of the time that it takes by other integers, so
#: what is kept in fewer bytes is made these before it is used.
Rows = npt.NDArray[np.intp]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

# --- limits -----------------------------------------------------------------------------------

MAX_TOPIC_CHARS = 200
MAX_ID_BYTES = 256
MAX_KEY_BYTES = 256
MAX_HEADERS = 256
MAX_HEADERS_BYTES = 16 * 1024
#: Key and headers as they are stored: stores keep their size in 16 bits.
MAX_EXTRA_BYTES = 2**16 - 1
MAX_BODY_BYTES = 1024 * 1024
MAX_BATCH_MESSAGES = 10_000
MAX_BATCH_BYTES = 16 * 1024 * 1024
MAX_PRIORITY = 2**32 - 1
MAX_ATTEMPTS = 65_535
#: How many days off a schedule may have.
MAX_DAYS_OFF = 1_000
#: How long a line of cron may be, and the lines of a calendar with their dates.
MAX_CRON_CHARS, MAX_RRULE_CHARS = 1_000, 10_000
MAX_LEASE_MS = 7 * 24 * 3_600_000
MAX_DELAY_MS = 100 * 366 * 24 * 3_600_000
MAX_ERROR_CHARS = 1_000
MAX_QUERY_CHARS = 1_000
MAX_CHANGE_MESSAGES = 1_000_000
MAX_RATE = 1_000_000_000
#: The lowest rate that a topic may have: a message a week.
MIN_RATE = 1 / 604_800

DEFAULT_PRIORITY = 1024

#: The ``last_error`` of messages that time ended: nobody took it in time, or nobody acked it before
#: its last lease ended.
EXPIRED = "expired"
LEASE_ENDED = "lease ended"
#: The header that says why a message is dead, where its ``last_error`` cannot.
REASON_HEADER = "dwell-reason"

#: The first character of every id that the queue makes; a caller's own id may not start with it.
QUEUE_ID_MARK = "~"

#: How the names of the topics begin that the queue keeps for itself.
OWN_TOPICS = "dwell:"


# --- states, verbs and results ----------------------------------------------------------------


class _Word(IntEnum):
    """A word that a column holds as a number.

    NumPy asks each number it meets for these two, and an enum's class takes microseconds to say
    that it has not got them; so it has those that mean nothing special.
    """

    __array_ufunc__ = np.ndarray.__array_ufunc__
    __array_function__ = np.ndarray.__array_function__

    def __str__(self) -> str:
        return self.name.lower()


class State(_Word):
    """Where a message is. A message that was accepted is in exactly one state until it is gone."""

    GONE = 0
    DELAYED = 1
    READY = 2
    LEASED = 3
    DEAD = 4


class Result(_Word):
    """The result of a verb for one message."""

    CREATED = 1
    KEPT = 2
    REPLACED = 3
    DROPPED = 4
    ACKED = 5
    RELEASED = 6
    TOUCHED = 7
    BURIED = 8
    STALE = 9
    KICKED = 10
    CANCELLED = 11
    MOVED = 12
    LEASED = 13
    UNKNOWN = 14


class Kind(_Word):
    """The kind of an event; TRANSITIONS has the states before and after."""

    PUT = 1
    REPLACE = 2
    TAKE = 3
    ACK = 4
    RELEASE = 5
    LAPSE = 6
    EXHAUST = 7
    EXPIRE = 8
    BURY = 9
    KICK = 10
    CANCEL = 11
    MOVE = 12


class Transition(NamedTuple):
    """One arrow of the state machine: verb, states before and after, what the caller is told."""

    verb: str
    before: State
    after: State
    result: Result | None
    event: Kind | None
    note: str = ""


_WAITING = (State.DELAYED, State.READY)

#: Every arrow. A verb on a state that is not listed changes nothing and answers ``stale`` (verbs
#: by receipt) or ``unknown`` (verbs by id). "due comes", "lease ends" and "expires" are time's own.
TRANSITIONS: tuple[Transition, ...] = (
    Transition("put", State.GONE, State.DELAYED, Result.CREATED, Kind.PUT),
    Transition("put", State.GONE, State.GONE, Result.KEPT, None, "acked less than remember_ms ago"),
    Transition("put", State.GONE, State.GONE, Result.DROPPED, None, "topic full, on_full=drop"),
    *(
        Transition("put", state, state, Result.KEPT, None, "on_conflict=keep")
        for state in (*_WAITING, State.LEASED, State.DEAD)
    ),
    *(
        Transition("put", state, State.DELAYED, Result.REPLACED, Kind.REPLACE, "replace")
        for state in (*_WAITING, State.DEAD)
    ),
    Transition("put", State.LEASED, State.LEASED, Result.LEASED, None, "on_conflict=replace"),
    Transition("due comes", State.DELAYED, State.READY, None, None),
    Transition("take", State.READY, State.LEASED, None, Kind.TAKE, "attempt + 1"),
    Transition("ack", State.LEASED, State.GONE, Result.ACKED, Kind.ACK, "id remembered"),
    Transition("touch", State.LEASED, State.LEASED, Result.TOUCHED, None),
    Transition("release", State.LEASED, State.DELAYED, Result.RELEASED, Kind.RELEASE),
    Transition("release", State.LEASED, State.DEAD, Result.BURIED, Kind.EXHAUST, "attempts used"),
    Transition("bury", State.LEASED, State.DEAD, Result.BURIED, Kind.BURY),
    Transition("lease ends", State.LEASED, State.READY, None, Kind.LAPSE),
    Transition("lease ends", State.LEASED, State.DEAD, None, Kind.EXHAUST, "attempts used"),
    *(Transition("expires", state, State.DEAD, None, Kind.EXPIRE) for state in _WAITING),
    Transition("kick", State.DEAD, State.DELAYED, Result.KICKED, Kind.KICK, "attempt = 0"),
    *(
        Transition("cancel", state, State.GONE, Result.CANCELLED, Kind.CANCEL)
        for state in (*_WAITING, State.DEAD)
    ),
    Transition("cancel", State.LEASED, State.LEASED, Result.LEASED, None, "the taker has it"),
    *(
        Transition("reschedule", state, State.DELAYED, Result.MOVED, Kind.MOVE)
        for state in _WAITING
    ),
    Transition("reschedule", State.LEASED, State.LEASED, Result.LEASED, None, "the taker has it"),
)


# --- the message ------------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message, as a taker or a reader sees it.

    ``topic``, ``id``, ``body`` (bytes), ``due_ms``, ``state``, ``priority``, ``key``, ``headers``
    and ``last_error`` have their current values. ``attempt`` counts takes (1 at the first).
    ``receipt`` is set when the message was just taken. ``expires_ms``, ``lease_until_ms`` and
    ``died_ms`` are 0 if not set; ``lease_ms`` and ``max_attempts`` are 0 if the topic's settings
    apply. ``number`` is unique in the store, from 1 to 2**63 - 1, and stays the same as long as the
    message exists.
    """

    topic: str
    id: str
    body: bytes
    due_ms: int
    state: State
    priority: int
    attempt: int
    max_attempts: int
    lease_ms: int
    lease_until_ms: int = 0
    died_ms: int = 0
    expires_ms: int = 0
    key: str | None = None
    headers: dict[str, str] = {}
    last_error: str | None = None
    receipt: str | None = None
    number: int = 0

    def json(self) -> Any:
        """Return the body decoded as JSON (what :func:`dwell.open` encodes non-bytes bodies as)."""
        return msgspec.json.decode(self.body)


class Extra(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The optional parts of a message, stored as one MessagePack value with its body."""

    key: str | None = None
    headers: dict[str, str] = {}


class _Key(msgspec.Struct, array_like=True, gc=False):
    """The key alone, for callers that want the keys of many messages."""

    key: str | None = None


_NO_EXTRA = Extra()
_extra_encoder = msgspec.msgpack.Encoder()
_extra_decoder = msgspec.msgpack.Decoder(Extra)
_key_decoder = msgspec.msgpack.Decoder(_Key)


def encode_extra(key: str | None, headers: dict[str, str] | None) -> bytes:
    """Return key and headers as bytes; empty when the message has neither."""
    return _extra_encoder.encode(Extra(key, headers or {})) if key is not None or headers else b""


def decode_extra(data: bytes) -> Extra:
    """Return what :func:`encode_extra` made."""
    return _extra_decoder.decode(data) if data else _NO_EXTRA


def keys_of(extras: Iterable[bytes]) -> list[str | None]:
    """Return the keys of messages by their extras; raises msgspec.DecodeError."""
    decode = _key_decoder.decode
    return [decode(data).key if data else None for data in extras]


# --- receipts ---------------------------------------------------------------------------------

# A receipt is 16 bytes, two words that only the store that made it reads, but for the upper half
# of the first: the number of the store, so that a receipt of another store is known at once.


def receipts_to_text(receipts: U64) -> list[str]:
    """Return receipts of shape (n, 2) as texts of 32 hexadecimal digits."""
    data = receipts.astype(">u8").tobytes().hex()
    return [data[at : at + 32] for at in range(0, len(data), 32)]


def receipts_from_text(texts: Sequence[str]) -> U64:
    """Return receipts of shape (n, 2); raises InvalidReceipt when a text is not one."""
    try:
        data = bytes.fromhex("".join(texts))
    except (TypeError, ValueError):
        data = b""
    # Between digits Python lets spaces stand, but then there are fewer bytes.
    if len(data) != 16 * len(texts) or set(map(len, texts)) - {32}:
        raise InvalidReceipt("receipts: expected texts of 32 hexadecimal digits")
    return receipts_from_bytes(data)


def receipts_from_bytes(data: bytes) -> U64:
    """Return receipts of 16 bytes each, one behind the other, as an array of shape (n, 2)."""
    return np.frombuffer(data, dtype=">u8").astype(np.uint64).reshape(-1, 2)


# --- topic settings ---------------------------------------------------------------------------

_S, _M, _H = 1_000, 60_000, 3_600_000

#: The delays of ``delay_level=1`` to ``18`` (the 18 levels that RocketMQ documents).
DELAY_LEVELS_MS = (
    *(seconds * _S for seconds in (1, 5, 10, 30)),
    *(minutes * _M for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    1 * _H,
    2 * _H,
)


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a topic, and defaults for messages without their own values.

    ``lease_ms``: how long a taker holds a message. ``max_attempts``: takes before it is dead.
    ``retry_delays_ms``: the wait after the first, second ... failed attempt; the last delay
    repeats. ``remember_ms``: how long the id of an acked message still counts as existing.
    ``paused``: no message is taken. ``max_pending``: how many messages may be delayed or ready, 0
    for no limit. ``on_full``: ``refuse`` the put with TopicFull, or ``drop`` messages over the
    limit. ``delay_levels_ms``: the delays for ``delay_level=1`` and up. ``rate``: how many messages
    all takers together take a second, 0 for no limit, also given as text such as ``100/m`` or
    ``1/5s``; the unused allowance of up to a tenth of a second, or of one message, may be taken at
    once. ``most_leased``: how many messages they hold at a time, 0 for no
    limit. ``ordered``: messages of one key are taken one at a time and in order, the next only when
    the previous message is gone or dead. ``fair``: keys take turns, so that a key with many
    messages does not hold up the others; priorities do not count. ``keep_dead_ms``: how long a dead
    message is kept before it is cancelled, 0 for ever.
    """

    lease_ms: int = 60_000
    max_attempts: int = 16
    retry_delays_ms: tuple[int, ...] = RETRY_DELAYS_MS
    remember_ms: int = 600_000
    paused: bool = False
    max_pending: int = 0
    on_full: str = "refuse"
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    rate: int | float = 0
    most_leased: int = 0
    ordered: bool = False
    fair: bool = False
    keep_dead_ms: int = 0
