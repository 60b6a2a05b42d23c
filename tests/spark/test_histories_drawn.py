"""Drawn histories of events: whole ones balance, and each that was broken on purpose is told.

What is lawful is said here once more, by a message that lives its life step by step, and not by the
table that the audit goes by. ``DWELL_HISTORIES`` draws more.
"""

import os
import random
from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from dwell.spark.pipelines.books import books
from dwell.spark.schemas import EVENTS

HISTORIES = int(os.environ.get("DWELL_HISTORIES", "100"))
BEGIN_MS = 1_800_000_000_000


class Step(NamedTuple):
    """One event of one message."""

    id: str
    kind: str
    time_ms: int
    due_ms: int
    attempt: int


class Life:
    """One message: says what may happen to it next, and how an event of that looks."""

    def __init__(self) -> None:
        self.state, self.attempt, self.due_ms = "gone", 0, 0

    @property
    def next_kinds(self):
        return {
            "gone": ["put"],
            "waiting": ["take", "take", "take", "cancel", "move", "replace", "expire"],
            "leased": ["ack", "ack", "release", "bury", "exhaust", "lapse"],
            "dead": ["kick", "cancel", "replace"],
        }[self.state]

    def step(self, draw, id_, now_ms):
        """Live one step; return its event."""
        kind = draw.choice(self.next_kinds)
        if kind == "take":
            now_ms = max(now_ms, self.due_ms)
            self.attempt += 1
        elif kind in ("put", "replace", "kick"):
            self.attempt = 0
        elif kind == "release" and draw.random() < 0.3:
            self.attempt -= 1
        if kind in ("put", "replace", "kick", "move", "release"):
            self.due_ms = now_ms + draw.choice([0, draw.randint(1, 5_000)])
        self.state = {
            **dict.fromkeys(("put", "replace", "kick", "move", "release", "lapse"), "waiting"),
            **dict.fromkeys(("bury", "exhaust", "expire"), "dead"),
            **dict.fromkeys(("ack", "cancel"), "gone"),
        }.get(kind, "leased")
        return Step(id_, kind, now_ms, self.due_ms, self.attempt)

    def allows(self, step):
        """Tell whether an event can be the next one; live it if so."""
        if step.kind not in self.next_kinds:
            return False
        more = {"take": [self.attempt + 1], "release": [self.attempt, self.attempt - 1]}
        begins = step.kind in ("put", "replace", "kick")
        if step.attempt not in ([0] if begins else more.get(step.kind, [self.attempt])):
            return False
        if step.kind == "take" and step.time_ms < max(step.due_ms, self.due_ms):
            return False
        self.attempt, self.due_ms = step.attempt, step.due_ms
        states = {"put": "waiting", "take": "leased", "ack": "gone", "cancel": "gone"}
        dead = ("bury", "exhaust", "expire")
        self.state = "dead" if step.kind in dead else states.get(step.kind, "waiting")
        return True


def drawn(draw):
    """Return the events of a few messages."""
    lives = {f"m{n}": Life() for n in range(draw.randint(1, 4))}
    now_ms, steps = BEGIN_MS, []
    for _ in range(draw.randint(1, 40)):
        now_ms += draw.randint(0, 2_000)
        id_ = draw.choice(list(lives))
        steps.append(lives[id_].step(draw, id_, now_ms))
        now_ms = steps[-1].time_ms
    return steps


def is_lawful(steps):
    lives = {}
    return all(lives.setdefault(step.id, Life()).allows(step) for step in steps)


def broken(draw, steps):
    """Return events with one fault."""
    many, at = list(steps), draw.randrange(len(steps))
    one, other = many[at], draw.randrange(len(steps))
    fault = draw.choice(["kind", "attempt", "early", "again", "dropped", "swapped", "whose"])
    if fault == "kind":
        kinds = "put take ack cancel move replace expire release bury exhaust lapse kick vanish"
        many[at] = one._replace(kind=draw.choice(kinds.split()))
    elif fault == "attempt":
        many[at] = one._replace(attempt=max(one.attempt + draw.choice([-2, -1, 1, 2, 100]), 0))
    elif fault == "early":
        many[at] = one._replace(time_ms=one.due_ms - draw.randint(1, 1_000))
    elif fault == "again":
        many.insert(draw.randint(at, len(many)), one)
    elif fault == "dropped":
        del many[at]
    elif fault == "swapped":
        many[at], many[other] = many[other], one
    else:
        many[at] = one._replace(id="somebody else's")
    return many


class History(NamedTuple):
    """A history: ``gone`` and ``twice`` are places of events that the table lacks or repeats."""

    steps: list[Step]
    is_whole: bool
    gone: int | None = None
    twice: int | None = None


def history(number):
    draw = random.Random(number)
    steps = drawn(draw)
    assert is_lawful(steps)
    fate = draw.choice(["whole", "whole", "whole", "gone", "twice", *["broken"] * 5])
    if fate == "broken":
        faulty = broken(draw, steps)
        while is_lawful(faulty):
            steps = drawn(draw)
            faulty = broken(draw, steps)
        return History(faulty, is_whole=False)
    place = draw.randrange(len(steps))
    return History(steps, True, **{fate: place} if fate != "whole" else {})


@pytest.fixture(scope="module")
def judged(spark):
    """All histories, each in a topic of its own, and the books over all of them."""
    many = {f"h{number}": history(number) for number in range(HISTORIES)}
    rows, gone, twice = [], set(), 0

    def at(ms):
        return datetime.fromtimestamp(ms / 1000, UTC)

    # The first event must be there, as books begin with the first that is.
    position = 0
    first = History([Step("m", "put", BEGIN_MS, BEGIN_MS, 0)], True)
    for topic, one in {"first": first, **many}.items():
        for place, step in enumerate(one.steps):
            times = 0 if place == one.gone else 2 if place == one.twice else 1
            row = (position, at(step.time_ms), step.kind, topic, step.id)
            row = (*row, at(step.due_ms), step.attempt)
            rows += [row] * times
            gone |= {position} if not times else set()
            twice += times == 2
            position += 1
    return many, books(spark.createDataFrame(rows, EVENTS), until=position), gone, twice


def test_each_history_is_judged_rightly(judged):
    many, found, _, _ = judged
    wrong = []
    for topic, one in many.items():
        if one.gone is not None:
            continue
        account = found.topics.get(topic)
        is_told = account is not None and bool(account.broken + account.doubled + account.early)
        if is_told == one.is_whole:
            wrong.append((topic, one))
        elif one.is_whole:
            assert account.accepted == account.whole, topic
    assert not wrong, f"{len(wrong)} of {len(many)}: {wrong[:2]}"


def test_what_is_gone_or_there_twice_is_told_by_its_position(judged):
    many, found, gone, twice = judged
    told = {place for first, last in found.gaps for place in range(first, last + 1)}
    assert told == gone
    assert (found.missing, found.repeated) == (len(gone), twice)
    assert not found.is_balanced or all(one.is_whole for one in many.values())
