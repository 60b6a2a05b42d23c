"""The books: what was asked and answered, held against what was taken and what is left.

Actors say what they do in lines, each a list in JSON: the monotonic time, a word, and what belongs
to it. ``put`` and ``ack`` are said before they are asked for, since they may have happened when
the actor dies; ``answered``, ``taken`` and ``acked`` after the answer came.
"""

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tools.survive.rules import Delivery, rule_of


@dataclass(frozen=True, slots=True)
class Put:
    """What a put asked for, and when; times in ``_ms`` are of the store's clock."""

    at_s: float
    topic: str
    due_ms: int
    expires_ms: int


@dataclass(slots=True)
class Row:
    """What the report says of a scenario."""

    store: str
    over: str
    failure: str
    runs: int = 0
    puts: int = 0
    lost: int = 0
    early: int = 0
    expired: int = 0
    doubled: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    #: What must not be, in words.
    wrong: list[str] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """The middle of the times until delivery went on."""
        return statistics.median(self.seconds) if self.seconds else 0.0

    def add(self, other: "Row") -> None:
        """Take in what another run of the same scenario came to."""
        for name in ("runs", "puts", "lost", "early", "expired"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.doubled += other.doubled
        self.seconds += other.seconds
        self.wrong += other.wrong


class Books:
    """What all actors of a scenario said."""

    def __init__(self) -> None:
        self.puts: dict[str, Put] = {}
        self.answered: set[str] = set()
        self.deliveries: dict[str, list[Delivery]] = {}
        #: What may be done with: the attempts whose ack was asked for, and not told to be stale.
        self.maybe_done: dict[str, set[int]] = {}
        self.acked: set[str] = set()
        self.deaths: dict[str, float] = {}
        #: When the store, or what it stands on, was killed or failed.
        self.failures: list[float] = []
        #: When the store's clock was set, and by how many seconds.
        self.steps: list[tuple[float, float]] = []
        self.errors: Counter[str] = Counter()
        self.bad_bodies: list[str] = []
        self._held: dict[tuple[str, int], Delivery] = {}
        self._changed = threading.Condition()

    def enter(self, actor: str, lines: Iterable[list[Any]]) -> None:
        """Enter what an actor said."""
        with self._changed:
            for at_s, word, *rest in lines:
                getattr(self, f"_enter_{word}")(actor, at_s, *rest)
            self._changed.notify_all()

    def die(self, actor: str) -> None:
        """Note that an actor was killed."""
        self.deaths[actor] = time.monotonic()

    def fail(self) -> float:
        """Note that the store fails now."""
        self.failures.append(time.monotonic())
        return self.failures[-1]

    def until(self, question: Callable[[], Any], what: str, seconds: float) -> Any:
        """Wait until what was said answers a question, and return the answer."""
        end = time.monotonic() + seconds
        with self._changed:
            while not (answer := question()):
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"waited {seconds} s in vain: {what} ({self.errors})")
                self._changed.wait(min(left, 1))
            return answer

    def first_delivery(self, since_s: float) -> float | None:
        """Return when the first message was delivered that was put after a moment."""
        # What a taker says may be read before what the producer said, so that the put is not known.
        found = [
            many[0].at_s
            for name, many in self.deliveries.items()
            if name in self.puts and self.puts[name].at_s > since_s
        ]
        return min(found, default=None)

    def held_by(self, actor: str) -> list[str]:
        """Return what an actor was handed and has not said a word about since."""
        held = self._held.items()
        return [name for (name, _), d in held if d.holder == actor and not d.fate]

    def count_of(self, name: str) -> int:
        """Return how often a message was delivered."""
        return len(self.deliveries.get(name, ()))

    def pending(self) -> set[str]:
        """Return what was answered and still has to be delivered and acked."""
        left = self.answered - self.maybe_done.keys()
        return {name for name in left if not self.puts[name].expires_ms}

    # --- what actors say --------------------------------------------------------------------------

    def _enter_put(self, _: str, at_s: float, name: str, topic: str, due: int, ends: int) -> None:
        self.puts.setdefault(name, Put(at_s, topic, due, ends))

    def _enter_answered(self, _: str, at_s: float, names: list[str]) -> None:
        self.answered.update(names)

    def _enter_taken(self, actor: str, at_s: float, name: str, *values: Any) -> None:
        delivery = Delivery(actor, at_s, *values)
        self.deliveries.setdefault(name, []).append(delivery)
        self._held[name, delivery.attempt] = delivery

    def _enter_ack(self, _: str, at_s: float, name: str, attempt: int) -> None:
        self.maybe_done.setdefault(name, set()).add(attempt)
        self._say(name, attempt, "ack asked", at_s)

    def _enter_acked(self, _: str, at_s: float, name: str, attempt: int, result: str) -> None:
        if result == "acked":
            self.acked.add(name)
        elif not any(self._held[name, attempt].fate_at_s <= f <= at_s for f in self.failures):
            # Where something failed meanwhile, it may have been done and asked for again.
            self.maybe_done[name].discard(attempt)
            if not self.maybe_done[name]:
                del self.maybe_done[name]
        self._say(name, attempt, result, at_s)

    def _enter_release(self, _: str, at_s: float, name: str, attempt: int) -> None:
        self._say(name, attempt, "release asked", at_s)

    def _enter_bad(self, _: str, at_s: float, name: str) -> None:
        self.bad_bodies.append(name)

    def _enter_error(self, _: str, at_s: float, text: str) -> None:
        self.errors[text] += 1

    def _say(self, name: str, attempt: int, fate: str, at_s: float) -> None:
        held = self._held[name, attempt]
        held.fate, held.fate_at_s = fate, at_s

    # --- the end ----------------------------------------------------------------------------------

    def settle(self, row: Row, there: set[str]) -> Row:
        """Hold all that was said against what is there, and return the row with the outcome."""
        row.puts = len(self.answered)
        lost = self.answered - self.maybe_done.keys() - there
        row.lost = len(lost)
        back = self.acked & there
        row.wrong += [f"lost: {name}" for name in sorted(lost)]
        row.wrong += [f"there after its ack was answered: {name}" for name in sorted(back)]
        row.wrong += [f"another body: {name}" for name in self.bad_bodies]
        for name, many in self.deliveries.items():
            self._judge(row, name, sorted(many, key=lambda d: (d.attempt, d.at_s)))
        return row

    def _judge(self, row: Row, name: str, many: list[Delivery]) -> None:
        put = self.puts.get(name)
        if put is None:
            row.wrong.append(f"delivered and never put: {name}")
            return
        due_ms = put.due_ms
        for delivery in many:
            if delivery.is_early(due_ms):
                row.early += 1
                row.wrong.append(f"early: {name}, due {put.due_ms}: {delivery}")
            if delivery.is_late(put.expires_ms):
                row.expired += 1
                row.wrong.append(f"expired at {put.expires_ms}: {name}: {delivery}")
            if delivery.fate in ("released", "release asked"):
                # From then on it is due when that says, by the clock of that moment.
                due_ms = 0
        for before, after in pairwise(many):
            died_at_s = self.deaths.get(before.holder)
            rule = rule_of(before, after, died_at_s, self.failures, self.steps)
            row.doubled[rule] += 1
            if rule == "unexplained":
                row.wrong.append(f"doubled: {name}: {before}, then {after}")
