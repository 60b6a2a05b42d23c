"""The books over events: the accepted messages, their outcomes, and the faults."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from dwell.message import Kind, State
from dwell.spark.pipelines import rules
from dwell.spark.pipelines.ledger import HOUR_MS, Ledger, is_kind, name
from dwell.spark.pipelines.positions import Span, gaps

#: How many entries a list shows; the totals count all.
MOST_LISTED = 1_000

_PENDING = rules.kinds_into(State.DELAYED, State.READY, State.LEASED)
_DEAD = rules.kinds_into(State.DEAD)
_FAULTS = ("is_broken", "is_doubled", "is_early", "is_again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """The lateness of first deliveries, from the due to the take, in milliseconds."""

    count: int = 0
    p50_ms: int = 0
    p90_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The outcomes of the messages of one topic, or of all.

    ``accepted`` counts lives, not ids: an id that is put again after its message was gone is
    another message. It includes ``known``: messages that existed before the first event of the
    books.
    """

    accepted: int = 0
    known: int = 0
    acked: int = 0
    cancelled: int = 0
    dead: int = 0
    pending: int = 0
    deliveries: int = 0
    again: int = 0
    broken: int = 0
    doubled: int = 0
    early: int = 0
    late: Lateness = field(default_factory=Lateness)

    @property
    def whole(self) -> int:
        """The sum that the accepted messages must equal."""
        return self.acked + self.cancelled + self.dead + self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One listed event, with the reason."""

    topic: str
    id: str
    position: int
    time_ms: int
    due_ms: int
    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """The events of one hour, in all topics."""

    start_ms: int
    kinds: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The books from one position of the events to before another.

    ``missing`` counts positions without an event, and ``gaps`` lists them; ``repeated`` counts
    duplicate events. ``again`` counts the deliveries beyond the first by their reason, ``attempts``
    the acked messages by their attempts, ``late_ms`` the first deliveries by how late they were.
    The lists hold the first 1,000.
    """

    first_position: int = 0
    next_position: int = 0
    events: int = 0
    missing: int = 0
    repeated: int = 0
    total: Account = field(default_factory=Account)
    topics: Mapping[str, Account] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)
    hours: tuple[Hour, ...] = ()
    again: Mapping[str, int] = field(default_factory=dict)
    attempts: Mapping[int, int] = field(default_factory=dict)
    late_ms: Mapping[int, int] = field(default_factory=dict)
    gaps: tuple[tuple[int, int], ...] = ()
    broken: tuple[Entry, ...] = ()
    doubled: tuple[Entry, ...] = ()
    early: tuple[Entry, ...] = ()
    delivered_again: tuple[Entry, ...] = ()

    @property
    def lost(self) -> int:
        """How many events are impossible or missing: after each, a message is unaccounted for."""
        return self.total.broken + self.missing + self.repeated

    @property
    def is_from_start(self) -> bool:
        """Whether the books begin with the first event of the store."""
        return self.first_position == 0

    @property
    def is_balanced(self) -> bool:
        """Whether everything adds up, and nothing is lost, early or duplicated."""
        faults = self.lost + self.total.early + self.total.doubled
        return self.total.accepted == self.total.whole and not faults


def books(
    events: DataFrame, *, since: int = 0, until: int | None = None, early_ms: int = 0
) -> Books:
    """Return the books over events with the columns of the view ``events``.

    They start with the first existing event from position ``since`` on. If that is not position 0,
    messages whose put is earlier count as known. They end before ``until``: all positions up to it
    must exist. A take may be ``early_ms`` before its due.
    """
    span = Span.of(events, since, until)
    with Ledger(events, span, early_ms) as ledger:
        return close(ledger, events, span)


def close(ledger: Ledger, events: DataFrame, span: Span) -> Books:
    """Sum up a ledger over the events of a span."""
    accounts = _accounts(ledger.cells)
    counts = _Counts(ledger.cells)
    there = sum(counts.kinds.values())
    missing = len(span) - there
    total = accounts.pop(None, Account())
    return Books(
        first_position=span.first,
        next_position=span.following,
        events=there,
        missing=missing,
        repeated=counts.repeated,
        total=total,
        topics={str(topic): account for topic, account in accounts.items()},
        kinds=counts.kinds,
        hours=counts.hours,
        again=counts.again,
        attempts=counts.attempts,
        late_ms=counts.late_ms,
        gaps=tuple(gaps(events, span, MOST_LISTED)) if missing else (),
        broken=_listed(ledger.entries, "is_broken") if total.broken else (),
        doubled=_listed(ledger.entries, "is_doubled") if total.doubled else (),
        early=_listed(ledger.entries, "is_early") if total.early else (),
        delivered_again=_listed(ledger.entries, "is_again") if total.again else (),
    )


# --- tables ---------------------------------------------------------------------------------------


def hours(ledger: Ledger) -> DataFrame:
    """Return the table of topics and hours: events by kind, lateness, attempts, faults."""
    acks = F.when(is_kind(Kind.ACK), F.col("n"))
    return (
        ledger.cells.where("not is_repeat")
        .groupBy("topic", F.timestamp_seconds(F.col("hour") * (HOUR_MS // 1000)).alias("hour"))
        .agg(
            *(_count(is_kind(kind)).alias(str(kind)) for kind in Kind),
            *_late_columns(),
            *(_count(F.col(fault)).alias(fault.removeprefix("is_")) for fault in _FAULTS),
            (F.sum(F.col("attempt") * acks) / F.sum(acks)).alias("attempts_per_ack"),
        )
    )


def findings(ledger: Ledger) -> DataFrame:
    """Return every event that is broken, duplicated, early or a repeated delivery."""
    found = " or ".join(_FAULTS)
    return ledger.entries.where(found).select(
        *("topic", "id", "position", "attempt"),
        F.timestamp_millis("time_ms").alias("time"),
        F.timestamp_millis("due_ms").alias("due"),
        name(F.col("kind")).alias("kind"),
        name(F.col("prior")).alias("after"),
        name(F.col("origin")).alias("origin"),
        *(F.col(fault).alias(fault.removeprefix("is_")) for fault in _FAULTS),
    )


# --- sums -----------------------------------------------------------------------------------------


def _count(which: Column) -> Column:
    return F.coalesce(F.sum(F.when(which, F.col("n"))), F.lit(0))


def _late_columns() -> Iterable[Column]:
    """Return the columns of lateness; cells without one do not count."""
    yield _count(F.col("late_ms").isNotNull()).alias("late_count")
    for part in (50, 90, 99):
        late = F.expr(f"percentile(late_ms, {part / 100}, n)")
        yield F.round(late).cast("long").alias(f"late_p{part}_ms")
    yield F.max("late_max_ms").alias("late_max_ms")


def _accounts(cells: DataFrame) -> dict[str | None, Account]:
    """Return the account of each topic, and of all under None."""
    # The last event of a message gives its state; its outcomes are counted independently. The proof
    # is that both equal the number of puts.
    once = ~F.col("is_repeat")
    known, last = F.col("is_known") & once, F.col("is_last")
    sums = {
        "known": _count(known),
        "accepted": _count(once & (is_kind(Kind.PUT) | F.col("is_known"))),
        "acked": _count(once & is_kind(Kind.ACK)),
        "cancelled": _count(once & is_kind(Kind.CANCEL)),
        "pending": _count(last & is_kind(*_PENDING)),
        "dead": _count(last & is_kind(*_DEAD)),
        "deliveries": _count(once & is_kind(Kind.TAKE)),
        **{fault.removeprefix("is_"): _count(F.col(fault)) for fault in _FAULTS},
    }
    columns = [*(column.alias(key) for key, column in sums.items()), *_late_columns()]
    rows = cells.rollup("topic").agg(*columns).orderBy("topic").collect()
    return {row.topic: _account(row, sums) for row in rows}


def _account(row: Row, sums: Iterable[str]) -> Account:
    return Account(
        **{key: int(row[key]) for key in sums},
        late=Lateness(
            count=int(row.late_count),
            **{f"{part}_ms": int(row[f"late_{part}_ms"] or 0) for part in ("p50", "p90", "p99")},
            max_ms=int(row.late_max_ms or 0),
        ),
    )


class _Counts:
    """The counts of each kind, hour, reason, attempt and lateness, in one pass over the cells."""

    #: The sets of columns for counting. A column outside of a set is null.
    _SETS = (
        ("hour", "kind", "is_repeat"),
        ("is_again", "origin"),
        ("attempt", "is_repeat"),
        ("late_ms", "is_repeat"),
    )

    def __init__(self, cells: DataFrame) -> None:
        sets = [[F.col(name) for name in names] for names in self._SETS]
        columns = list(dict.fromkeys(name for names in self._SETS for name in names))
        rows = (
            cells.groupingSets(sets, *columns)
            .agg(F.sum("n").alias("n"), F.grouping_id().alias("set"))
            .collect()
        )
        numbers = [_set_number(columns, names) for names in self._SETS]
        kinds, again, attempts, late = (
            [row for row in rows if row.set == number] for number in numbers
        )
        once = [row for row in kinds if not row.is_repeat]
        self.repeated = sum(int(row.n) for row in kinds if row.is_repeat)
        self.kinds = _kinds(once)
        self.hours = _hours(once)
        self.again = _again([row for row in again if row.is_again])
        self.attempts = _histogram(attempts, "attempt")
        self.late_ms = _histogram(late, "late_ms")


def _set_number(columns: Sequence[str], names: Iterable[str]) -> int:
    """Return ``grouping_id`` of a set: a bit for each column that is not in it."""
    return int("".join("01"[name not in names] for name in columns), 2)


def _kinds(rows: Iterable[Row]) -> dict[str, int]:
    """Return the events by kind."""
    sums: Counter[int] = Counter()
    for row in rows:
        sums[int(row.kind)] += int(row.n)
    unknown = {"unknown": sums[rules.NONE]} if rules.NONE in sums else {}
    return {str(kind): sums[kind] for kind in Kind} | unknown


def _hours(rows: Iterable[Row]) -> tuple[Hour, ...]:
    hours: dict[int, dict[str, int]] = {}
    for row in rows:
        kinds = hours.setdefault(int(row.hour) * HOUR_MS, dict.fromkeys(map(str, Kind), 0))
        if row.kind != rules.NONE:
            kinds[str(Kind(row.kind))] = int(row.n)
    return tuple(Hour(start_ms=start_ms, kinds=hours[start_ms]) for start_ms in sorted(hours))


def _again(rows: Iterable[Row]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: -int(row.n)):
        reason = rules.why_again(int(row.origin))
        counts[reason] = counts.get(reason, 0) + int(row.n)
    return counts


def _histogram(rows: Iterable[Row], column: str) -> dict[int, int]:
    there = [row for row in rows if row[column] is not None and not row.is_repeat]
    return {int(row[column]): int(row.n) for row in sorted(there, key=lambda row: int(row[column]))}


# --- lists ----------------------------------------------------------------------------------------


def _listed(entries: DataFrame, fault: str) -> tuple[Entry, ...]:
    rows = entries.where(fault).orderBy("position").limit(MOST_LISTED).collect()
    return tuple(
        Entry(
            topic=row.topic,
            id=row.id,
            position=int(row.position),
            time_ms=int(row.time_ms),
            due_ms=int(row.due_ms),
            attempt=int(row.attempt),
            why=_why(row, fault),
        )
        for row in rows
    )


def _why(row: Row, fault: str) -> str:
    if fault == "is_early":
        early_ms = math.ceil(row.due_ms - row.time_ms)
        return f"{early_ms:,} ms early" if early_ms > 0 else "before the due that was asked for"
    if fault == "is_again":
        return rules.why_again(int(row.origin))
    if row.is_miscounted:
        return rules.why_miscounted(int(row.kind), row.attempt, int(row.prior), row.prior_attempt)
    return rules.why_not(int(row.kind), int(row.prior))
