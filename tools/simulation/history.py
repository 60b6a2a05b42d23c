"""The history of a store: all its verbs in order, each done to the model at the same moment.

A verb of a store changes the state before it first waits, so the order in which verbs begin is the
order in which they happen, however many are under way. What was answered must be on the disk; of
what was not, a crash leaves the beginning up to any place, which :meth:`History.resolve` finds.
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from dwell.errors import IdExists, TopicFull
from dwell.message import Result, State, TopicSettings
from dwell.testing.model import Entry, Fact, Item, Model
from dwell.testing.views import Views, deaths_of, settled, view_of_model


class Broken(AssertionError):
    """The store broke a promise; the first word says which kind of promise it was."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(f"{kind}: {words}")
        self.kind = kind


class SteppedModel(Model):
    """The model, with time done in the two steps that the store writes down one by one."""

    #: Ids that were forgotten, with the time until which they might still be known: a clock that
    #: goes back may bring those times back, and whether they are known then is no promise.
    once_remembered: dict[tuple[str, str], int]

    def copied(self) -> "SteppedModel":
        """Return a model in the same state, which goes its own way."""
        other = SteppedModel(
            self.now_ms,
            {name: replace(item) for name, item in self.items.items()},
            dict(self.settings),
            dict(self.remembered),
            dict(self.results),
            self.forgotten_ms,
            list(self.facts),
            self.arrivals,
            self.leases,
        )
        other.once_remembered = dict(self.once_remembered)
        return other

    def look(self, now_ms: int) -> None:
        """Look at the clock, and let time do nothing to messages."""
        self.now_ms = now_ms
        self._forget()

    def end_leases(self, now_ms: int) -> None:
        """Let leases end."""
        self.now_ms = now_ms
        for item in self.items.values():
            self.lapse(item)

    def expire_all(self, now_ms: int) -> None:
        """Let messages expire, and ids be forgotten."""
        self.now_ms = now_ms
        for item in self.items.values():
            self.expire(item)
        self._forget()

    def _forget(self) -> None:
        for name in [name for name, until in self.remembered.items() if until <= self.now_ms]:
            self.once_remembered[name] = self.remembered.pop(name)

    def tick(self, now_ms: int) -> None:
        """Let it be now."""
        self.end_leases(now_ms)
        self.expire_all(now_ms)

    def put_as(
        self, topic: str, entries: list[Entry], on_conflict: str, results: list[Result]
    ) -> list[Result]:
        """Put messages; ``results`` say which ids the store still knows that need not be known."""
        if on_conflict == "keep":
            for entry, result in zip(entries, results, strict=False):
                name = (topic, entry.id)
                if result is Result.KEPT and self.once_remembered.get(name, 0) > self.now_ms:
                    self.remembered[name] = self.once_remembered[name]
        return self.put(topic, entries, on_conflict)

    def takeable(self, topic: str, now_ms: int) -> list[Item]:
        """Return what a taker could be given now, if time had done all it has to do."""
        settings = self.topic(topic)
        if settings.paused:
            return []
        if settings.ordered or settings.most_leased:
            model = self.copied()
            model.tick(now_ms)
            return model.givable(topic) if model.room(topic) else []
        return [
            item
            for item in self.items.values()
            if item.topic == topic
            and not item.died_ms
            and item.due_ms <= now_ms
            and not 0 < item.expires_ms <= now_ms
            and (not item.lease or (item.lease_until_ms <= now_ms and not self._is_used_up(item)))
        ]


class _Done(NamedTuple):
    """Something that happened, which can be done to another model again."""

    act: Callable[[SteppedModel], Any]
    words: str


class History:
    """What happened, to the model as it is now and, from ``base`` on, to be done again."""

    def __init__(self, now_ms: int, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.model = SteppedModel(now_ms)
        self.model.once_remembered = {}
        self._base = self.model.copied()
        self._done: list[_Done] = []
        self._safe = 0
        #: The lease that each receipt stands for, as it was given out.
        self.leases: dict[tuple[int, int], int] = {}
        self.names = 0
        #: Whether the log of events may have dropped its oldest, as it does on a full disk.
        self.may_drop_events = False
        #: Whether the disk may be full.
        self.is_tight = False
        #: When the store has last looked at the time, also in a step that its process did not live
        #: to see the end of.
        self.looked_ms = now_ms

    @property
    def place(self) -> int:
        """Where the history stands."""
        return len(self._done)

    def do(self, act: Callable[[SteppedModel], Any], words: str) -> Any:
        """Let something happen; return what it answers."""
        self._done.append(_Done(act, words))
        return act(self.model)

    def tick(self, now_ms: int) -> None:
        """Let it be now."""
        self.do(lambda model: model.end_leases(now_ms), "leases end")
        self.do(lambda model: model.expire_all(now_ms), "expiry")

    def answered(self, place: int) -> None:
        """Note that everything up to a place was promised."""
        self._safe = max(self._safe, min(place, len(self._done)))

    def resolve(
        self,
        times_ms: list[int],
        views: Views,
        settings: dict[str, TopicSettings],
        facts: list[Fact],
        first_position: int,
        looked_ms: int,
    ) -> None:
        """Find the place up to which things have happened, in a store that was opened again.

        ``times_ms`` are the moments at which it has looked at the time since, and ``looked_ms`` is
        that at which the one before did so last.
        """
        base = self._base
        for done in self._done[: self._safe]:
            _again(done, base)
        self.tick(looked_ms)
        left, self._done, self._safe = self._done[self._safe :], [], 0
        why = ""
        for place in range(len(left) + 1):
            if place:
                _again(left[place - 1], base)
            _learn_names(base, views)
            model = base.copied()
            for now_ms in times_ms:
                model.tick(now_ms)
            wrong = self._compared(model, views, settings, facts, first_position)
            if not wrong:
                # What time did since the start is not on the disk yet.
                self._base, self.model = base, base.copied()
                for now_ms in times_ms:
                    self.tick(now_ms)
                self.model.hear_of_deaths(deaths_of(views))
                return
            why = why or wrong
        raise Broken(*_diagnosed(why, left))

    def _compared(
        self,
        model: SteppedModel,
        views: Views,
        settings: dict[str, TopicSettings],
        facts: list[Fact],
        first_position: int,
    ) -> str:
        model.hear_of_deaths(deaths_of(views))
        expected = view_of_model(model, self.topics)
        if views != expected:
            return _difference(expected, views)
        for topic in self.topics:
            if settings[topic] != model.topic(topic):
                return f"settings of {topic} are {settings[topic]}"
        return self.compared_events(model, facts, first_position)

    def compared_events(self, model: Model, facts: list[Fact], first_position: int) -> str:
        """Return what is wrong with the events that a store tells."""
        if first_position and not self.may_drop_events:
            return f"events: those before {first_position} are lost"
        happened = settled(model.facts, with_times=False)
        told = settled(facts, with_times=False)
        if first_position + len(told) != len(happened):
            return f"events: {len(told)} from {first_position} on where {len(happened)} happened"
        # Those of one batch stand in any order, so the first that are kept are not known.
        if (told != happened) if not first_position else (Counter(told) - Counter(happened)):
            return f"events: {_first_difference(told, happened)}"
        return ""


def _learn_names(model: SteppedModel, views: Views) -> None:
    """Learn the ids that the store made, by the bodies; a request that came twice made two."""
    made = [item.put for item in model.items.values() if item.put.id.startswith("~?")]
    if not made:
        return
    ids: dict[bytes, list[str]] = {}
    for (topic, id_), view in views.items():
        if id_.startswith("~") and (topic, id_) not in model.items:
            ids.setdefault(view.body, []).append(id_)
    for same in ids.values():
        # The number at their end grows with every message.
        same.sort(key=lambda id_: int(id_.rpartition("-")[2], 16), reverse=True)
    model.rename({put.id: ids[put.body].pop() for put in made if ids.get(put.body)})


def _again(done: _Done, model: SteppedModel) -> None:
    with contextlib.suppress(IdExists, TopicFull):
        done.act(model)


def _first_difference(told: list[Fact], happened: list[Fact]) -> str:
    pairs = zip(told, happened, strict=False)
    found = (f"{one} where {other} happened" for one, other in pairs if one != other)
    return next(found, "others")


def _difference(expected: Views, views: Views) -> str:
    missing = [name for name in expected if name not in views]
    more = [name for name in views if name not in expected]
    other = [
        f"{name} is {views[name]} where {expected[name]} was promised"
        for name in expected
        if name in views and views[name] != expected[name]
    ]
    parts = []
    if missing:
        parts.append(f"lost {missing}")
    if more:
        parts.append(f"came back {more}")
    return "; ".join(parts + other[:2]) or "another order"


def _diagnosed(why: str, left: list[_Done]) -> tuple[str, str]:
    kind = why.split(" ", 1)[0].rstrip(":")
    kind = {"lost": "lost", "came": "undone", "events": "events"}.get(kind, "undone")
    tail = ", ".join(done.words for done in left[-6:])
    return kind, f"{why} (unanswered: {len(left)}: {tail})"


def counts_of_model(model: Model, now_ms: int, topic: str) -> tuple[int, int, int, int]:
    """Return how many messages of a topic are delayed, ready, leased and dead."""
    model.now_ms = now_ms
    states = [model.state(item) for item in model.items.values() if item.topic == topic]
    found = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
    return tuple(states.count(state) for state in found)  # type: ignore[return-value]
