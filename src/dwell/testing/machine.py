"""A machine that runs a store and the model side by side and searches for a difference.

Hypothesis chooses the verbs, small domains make them affect each other, and after each step
everything visible of the store must equal the model. For a store that lives on disk, a subclass
names the errors that a crash causes and how to open the store again; a verb that a crash cut off
may have happened or not, but nothing in between.
"""

import asyncio
import contextlib
import copy
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dwell.batch.batch import Batch
from dwell.clock import SimulatedClock
from dwell.errors import DiskFull, StoreFailed
from dwell.message import U8, Result
from dwell.store.base import Store
from dwell.testing.domains import (
    IDS,
    OWNERS,
    PLAIN,
    TOPICS,
    Draft,
    a_conflict,
    a_delay_ms,
    a_due_ms,
    a_lease_ms,
    a_new_priority,
    a_result,
    a_topic,
    an_error,
    some_bounds,
    some_changes,
    some_drafts,
    some_keys,
    some_picks,
)
from dwell.testing.ids import OPEN, Ids
from dwell.testing.model import Entry, Given, Item, Model, Names
from dwell.testing.notices import Notices
from dwell.testing.receipts import Receipts
from dwell.testing.rig import encoded, told
from dwell.testing.views import (
    Views,
    attempt,
    check_stats,
    deaths_of,
    events_from,
    facts_of,
    puts_of,
    same,
    settled,
    taken_since,
    view_of_message,
    view_of_model,
    view_of_store,
)

T = TypeVar("T")
M = TypeVar("M")

# A verb with nothing to act on is tried too, but through picks that miss, and not most of the time.


def _has_receipts(machine: "StoreMachine") -> bool:
    return bool(machine.receipts)


def _has_messages(machine: "StoreMachine") -> bool:
    return bool(machine.model.items)


def _has_dead(machine: "StoreMachine") -> bool:
    return any(item.died_ms for item in machine.model.items.values())


class StoreMachine(RuleBasedStateMachine):
    """Every verb on a store and on the model, in any order.

    Override :meth:`make_store`. A store that keeps its messages over a crash also sets
    ``can_reopen``, overrides :meth:`reopen`, and may add rules of its own that make a later verb
    fail; ``crashes`` are the errors of such a verb. A store that does what is due in parts, and so
    small ones that a verb may come in between, sets ``does_time_in_parts``. Anything needed to make
    the store belongs in ``__init__`` before ``super().__init__()``; :meth:`teardown` cleans up.
    """

    can_reopen: ClassVar[bool] = False
    crashes: ClassVar[tuple[type[BaseException], ...]] = (StoreFailed, DiskFull)
    does_time_in_parts: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = SimulatedClock()
        self.model = Model(self.clock.now_ms())
        self.receipts = Receipts()
        self.ids = Ids()
        self.bodies = itertools.count()
        self.latest_ms = self.clock.now_ms()
        self.has_crashed = False
        # No comparison follows a step that only moved the clock: it would be the verb that brings
        # the store up to the new time, and no other verb would ever have to.
        self.has_only_moved = False
        self.checked_events = 0
        self.notices = Notices(self.model)
        self.store = self.run(self.make_store(self.clock))
        self._start()

    # --- for subclasses -----------------------------------------------------------------------

    async def make_store(self, clock: SimulatedClock) -> Store:
        """Return a new, empty store that is not open yet."""
        raise NotImplementedError

    async def reopen(self) -> Store:
        """End ``self.store`` as in a crash; return a store over its data, not open yet."""
        raise NotImplementedError

    def teardown(self) -> None:
        """Close the store."""
        with contextlib.suppress(*self.crashes):
            self.run(self.store.close())
        self.loop.close()

    # --- driving ------------------------------------------------------------------------------

    def run(self, call: Awaitable[T]) -> T:
        """Run one call of the store to its end."""
        return self.loop.run_until_complete(call)

    def ask(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """Read from the store, and once more after a crash in between."""
        self.model.tick(self.clock.now_ms())
        try:
            return self._answer(call)
        except self.crashes:
            self._crash()
            return self._answer(call)

    def _answer(self, call: Callable[[Store], Awaitable[T]]) -> T:
        async def answer() -> T:
            if self.does_time_in_parts:
                await self._let_time_pass()
            return await call(self.store)

        return self.run(answer())

    def do(
        self, predict: Callable[[Model], M], call: Callable[[Store], Awaitable[T]]
    ) -> tuple[M, T] | None:
        """Run a verb on model and store; return both answers, or None without answers."""
        self.has_only_moved = False
        self.model.tick(self.clock.now_ms())
        before = self._copied()
        refusal, predicted = attempt(lambda: predict(self.model))
        try:
            met, answer = attempt(lambda: self._answer(call))
        except self.crashes:
            after = self.model
            self._resolve(before, lambda views: after)
            return None
        assert met is refusal, f"the store says {met}, the model {refusal}"
        if refusal is not None:
            return None
        return predicted, answer  # type: ignore[return-value]

    def follow(
        self,
        act: Callable[[Model, Names], list[Item]],
        call: Callable[[Store], Awaitable[Batch]],
    ) -> tuple[list[Item], Batch] | None:
        """Run a take with an open result on the store; the model checks it and follows."""
        self.has_only_moved = False
        self.model.tick(self.clock.now_ms())
        before = self._copied()

        def after(views: Views) -> Model:
            model = copy.deepcopy(before)
            if names := taken_since(model, views):
                act(model, names)
            return model

        try:
            batch = self._answer(call)
        except self.crashes:
            self._resolve(before, after)
            return None
        return act(self.model, [(message.topic, message.id) for message in batch]), batch

    def _copied(self) -> Model:
        return copy.deepcopy(self.model) if self.can_reopen else self.model

    def _start(self) -> None:
        self.notices.listen(self.store)
        self.run(self.store.open())

    def _crash(self) -> None:
        """Open the store again; the clock must not have gone back since the last step.

        Changes by time before the crash were perhaps not written, and are repeated after it.
        """
        assert self.can_reopen, "the store failed"
        self.clock.advance(max(self.latest_ms - self.clock.now_ms(), 0))
        self.has_crashed = True
        self.has_only_moved = False
        self.checked_events = 0
        self.store = self.run(self.reopen())
        self._start()
        if self.does_time_in_parts:
            self.run(self._let_time_pass())
        self.model.begin_life()
        self.model.tick(self.clock.now_ms())
        self.notices.expect_nothing(self.model)

    async def _let_time_pass(self) -> None:
        """Let the store do all that is due, as far as it has room."""
        now_ms = self.clock.now_ms()
        with contextlib.suppress(DiskFull):
            while (next_ms := await self.store.tick(now_ms)) is not None and next_ms <= now_ms:
                pass

    def _resolve(self, before: Model, after: Callable[[Views], Model]) -> None:
        """Find out whether the verb that a crash cut off has happened."""
        self._crash()
        views = self.run(view_of_store(self.store, TOPICS))
        facts = facts_of(self.run(events_from(self.store, 0)))
        for model in (after(views), before):
            model.begin_life()
            model.tick(self.clock.now_ms())
            self.ids.find_made(model, views)
            if self._is_like(model, views) and self._facts_are(model, facts, 0):
                self.model = model
                self.checked_events = 0
                self.notices.expect_nothing(self.model)
                return
        assert views == self._expected(before, views), "neither before the verb nor after it"
        raise AssertionError("events or settings are neither those before the verb nor after it")

    def _is_like(self, model: Model, views: Views) -> bool:
        same_settings = all(
            self.run(self.store.settings(topic)) == model.topic(topic) for topic in TOPICS
        )
        return same_settings and views == self._expected(model, views)

    def _expected(self, model: Model, views: Views) -> Views:
        if self.has_crashed:
            model.hear_of_deaths(deaths_of(views))
        return view_of_model(model, TOPICS)

    def _facts_are(self, model: Model, facts: list[Any], start: int) -> bool:
        with_times = not self.has_crashed
        expected = settled(model.facts[start:], with_times=with_times)
        return settled(facts, with_times=with_times) == expected

    # --- after each step ----------------------------------------------------------------------

    @invariant()
    def store_is_like_the_model(self) -> None:
        """Compare everything visible."""
        if self.has_only_moved:
            return
        views = self.ask(lambda store: view_of_store(store, TOPICS, limit=3))
        # Dictionaries are equal in any order; the order of a scan matters.
        assert list(views.items()) == list(self._expected(self.model, views).items())
        check_stats(self.ask(lambda store: store.stats()), views, self.model)
        self._check_events()
        self.notices.check(self.model)

    def _check_events(self) -> None:
        start = self.checked_events
        events = self.ask(lambda store: events_from(store, start))
        assert [event.position for event in events] == list(range(start, start + len(events)))
        assert self._facts_are(self.model, facts_of(events), start), (
            f"events {facts_of(events)} should be {self.model.facts[start:]}"
        )
        self.checked_events = len(self.model.facts)

    # --- verbs --------------------------------------------------------------------------------

    @rule(
        topic=a_topic,
        drafts=some_drafts,
        on_conflict=a_conflict,
    )
    def put(self, topic: str, drafts: Sequence[Draft], on_conflict: str) -> None:
        """Put messages whose ids may exist."""
        batch = [self._entry(draft.id, draft) for draft in drafts]
        answers = self.do(
            lambda model: model.put(topic, batch, on_conflict),
            lambda store: store.put(puts_of(topic, batch), on_conflict),
        )
        if answers is not None:
            assert list(answers[1].ids) == [entry.id for entry in batch]
            same(answers[0], answers[1].results)

    @rule(topic=a_topic, drafts=some_drafts)
    def put_without_ids(self, topic: str, drafts: Sequence[Draft]) -> None:
        """Put messages whose ids the store makes."""
        batch = [self._entry(f"{OPEN}{n}", draft) for n, draft in enumerate(drafts)]
        answers = self.do(
            lambda model: model.put(topic, batch, "keep"),
            lambda store: store.put(puts_of(topic, batch, own_ids=False), "keep"),
        )
        if answers is None:
            return
        same(answers[0], answers[1].results)
        created = answers[1].results == Result.CREATED
        ids = [id_ for id_, was_created in zip(answers[1].ids, created, strict=True) if was_created]
        self.ids.learn(ids)
        olds = [entry.id for entry, was_created in zip(batch, created, strict=True) if was_created]
        self.model.rename(dict(zip(olds, ids, strict=True)))

    def _entry(self, id_: str, draft: Draft) -> Entry:
        return draft.entry(id_, b"body %d" % next(self.bodies), self.clock.now_ms())

    @precondition(_has_messages)
    @rule()
    def take_all(self) -> None:
        """Take all ready messages, so that most runs have leases to work with."""
        self._take(list(TOPICS), 100, 0, OWNERS[0])

    @precondition(_has_messages)
    @rule(
        topics=st.sampled_from((["a"], ["a"], ["a", "b"], ["b", "a"], ["b"], ["b", "b", "none"])),
        limit=st.sampled_from((1, 2, 10, 10)),
        lease_ms=a_lease_ms,
        owner=st.sampled_from(OWNERS),
    )
    def take(self, topics: list[str], limit: int, lease_ms: int, owner: str) -> None:
        """Take messages."""
        self._take(topics, limit, lease_ms, owner)

    def _take(self, topics: list[str], limit: int, lease_ms: int, owner: str) -> None:
        self._do_take(
            topics,
            lambda model, given: model.take(topics, limit, lease_ms, owner, given),
            lambda store: store.take(topics, limit, lease_ms, owner),
        )

    @precondition(_has_messages)
    @rule(topic=a_topic, picks=some_picks, lease_ms=a_lease_ms, owner=st.sampled_from(OWNERS))
    def take_ids(self, topic: str, picks: list[int], lease_ms: int, owner: str) -> None:
        """Take some messages by id."""
        ids = self.ids.picked(topic, picks, self.model)
        self._do_take(
            [topic],
            lambda model, given: model.take_ids(topic, ids, lease_ms, owner, given),
            lambda store: store.take_ids(topic, encoded(ids), lease_ms, owner),
        )

    def _do_take(
        self,
        topics: list[str],
        act: Callable[[Model, Given], list[Item]],
        call: Callable[[Store], Awaitable[Batch]],
    ) -> None:
        is_foretold = self.model.is_foretold(topics)
        answers = (
            self.do(lambda model: act(model, None), call) if is_foretold else self.follow(act, call)
        )
        if answers is None:
            return
        items, batch = answers
        assert (batch.due_ms <= self.clock.now_ms()).all(), "taken before it was due"
        assert [(message.topic, message.id) for message in batch] == [
            (item.topic, item.put.id) for item in items
        ]
        self.receipts.check_new(batch)
        self.receipts.learn(items, batch, self.store.number)

    @precondition(_has_receipts)
    @rule(owner=st.sampled_from(OWNERS))
    def held(self, owner: str) -> None:
        """Ask again for held messages; the receipts must be the receipts of the take."""
        answers = self.do(lambda model: model.held(owner), lambda store: store.held(owner))
        if answers is None:
            return
        items, batch = {(item.topic, item.put.id): item for item in answers[0]}, answers[1]
        assert batch.due_ms.tolist() == [item.due_ms for item in items.values()]
        names = [(message.topic, message.id) for message in batch]
        assert sorted(names) == sorted(items)
        held = [items[name] for name in names]
        self.receipts.check_held(held, batch)
        self.receipts.learn(held, batch, self.store.number)

    @precondition(_has_receipts)
    @rule(picks=some_picks, drawn=st.none() | st.lists(a_result, min_size=4, max_size=4))
    def ack(self, picks: list[int], drawn: list[bytes | None] | None) -> None:
        """Report messages as done, some of them with results."""
        leases, receipts = self.receipts.picked(picks, self.model)
        results = drawn and drawn[: len(leases)]
        self._do_each(
            lambda model: model.ack(leases, results), lambda store: store.ack(receipts, results)
        )

    @precondition(_has_receipts)
    @rule(
        picks=some_picks, result=a_result, topic=a_topic, draft=some_drafts, is_made=st.booleans()
    )
    def ack_then(
        self, picks: list[int], result: bytes | None, topic: str, draft: list[Draft], is_made: bool
    ) -> None:
        """Report a message as done, and put another in the same step."""
        leases, receipts = self.receipts.picked(picks[:1], self.model)
        entry = self._entry(f"{OPEN}0" if is_made else draft[0].id, draft[0])
        answers = self.do(
            lambda model: model.ack(leases, [result], (topic, entry)),
            lambda store: store.ack(
                receipts, [result], puts_of(topic, [entry], own_ids=not is_made)
            ),
        )
        if is_made and (topic, entry.id) in self.model.items:
            views = self.ask(lambda store: view_of_store(store, TOPICS))
            self.ids.find_made(self.model, views)
        if answers is not None:
            same(*answers)

    @precondition(_has_receipts)
    @rule(
        picks=some_picks,
        delay_ms=st.none() | a_delay_ms | st.lists(a_delay_ms, min_size=4, max_size=4),
        error=an_error | st.lists(an_error, min_size=4, max_size=4),
        counted=st.sampled_from((True, True, False)),
        priority=a_new_priority,
    )
    def release(
        self,
        picks: list[int],
        delay_ms: int | list[int] | None,
        error: str | list[str | None] | None,
        counted: bool,
        priority: int | None,
    ) -> None:
        """Give messages back, with one delay and error or one each."""
        leases, receipts = self.receipts.picked(picks, self.model)
        size = len(leases)
        delay = np.array(delay_ms[:size], np.int64) if isinstance(delay_ms, list) else delay_ms
        told = delay, error[:size] if isinstance(error, list) else error
        self._do_each(
            lambda model: model.release(leases, *told, counted=counted, priority=priority),
            lambda store: store.release(receipts, *told, counted=counted, priority=priority),
        )

    @precondition(_has_receipts)
    @rule(picks=some_picks, lease_ms=a_lease_ms)
    def touch(self, picks: list[int], lease_ms: int) -> None:
        """Move the ends of leases."""
        leases, receipts = self.receipts.picked(picks, self.model)
        self._do_each(
            lambda model: model.touch(leases, lease_ms),
            lambda store: store.touch(receipts, lease_ms),
        )

    @precondition(_has_receipts)
    @rule(picks=some_picks, reason=an_error, priority=a_new_priority)
    def bury(self, picks: list[int], reason: str | None, priority: int | None) -> None:
        """Set messages aside."""
        leases, receipts = self.receipts.picked(picks, self.model)
        self._do_each(
            lambda model: model.bury(leases, reason, priority),
            lambda store: store.bury(receipts, reason, priority=priority),
        )

    @precondition(_has_dead)
    @rule(topic=a_topic, picks=some_picks, delays_ms=st.lists(a_due_ms, min_size=4, max_size=4))
    def kick(self, topic: str, picks: list[int], delays_ms: list[int]) -> None:
        """Bring messages back."""
        ids = self.ids.picked(topic, picks, self.model, first_dead=True)
        dues_ms = [self.clock.now_ms() + delay_ms for delay_ms in delays_ms[: len(ids)]]
        self._do_each(
            lambda model: model.kick(topic, ids, dues_ms),
            lambda store: store.kick(topic, encoded(ids), np.array(dues_ms, np.int64)),
        )

    @precondition(_has_messages)
    @rule(topic=a_topic, picks=some_picks)
    def cancel(self, topic: str, picks: list[int]) -> None:
        """Cancel messages."""
        ids = self.ids.picked(topic, picks, self.model)
        self._do_each(
            lambda model: model.cancel(topic, ids),
            lambda store: store.cancel(topic, encoded(ids)),
        )

    @precondition(_has_messages)
    @rule(topic=a_topic, picks=some_picks, delays_ms=st.lists(a_due_ms, min_size=4, max_size=4))
    def reschedule(self, topic: str, picks: list[int], delays_ms: list[int]) -> None:
        """Move messages in time."""
        ids = self.ids.picked(topic, picks, self.model)
        dues_ms = [self.clock.now_ms() + delay_ms for delay_ms in delays_ms[: len(ids)]]
        self._do_each(
            lambda model: model.reschedule(topic, ids, dues_ms),
            lambda store: store.reschedule(topic, encoded(ids), np.array(dues_ms, np.int64)),
        )

    def _do_each(
        self, predict: Callable[[Model], list[Result]], call: Callable[[Store], Awaitable[U8]]
    ) -> None:
        answers = self.do(predict, call)
        if answers is not None:
            same(*answers)

    @precondition(_has_messages)
    @rule(topic=a_topic, picks=some_picks)
    def get(self, topic: str, picks: list[int]) -> None:
        """Read messages by id."""
        ids = self.ids.picked(topic, picks, self.model)
        answers = self.do(
            lambda model: view_of_model(model, TOPICS),
            lambda store: store.get(topic, encoded(ids)),
        )
        if answers is not None:
            views, messages = answers
            assert [one and view_of_message(one) for one in map(told, messages)] == [
                views.get((topic, id_)) for id_ in ids
            ]

    @rule(topic=a_topic)
    def results(self, topic: str) -> None:
        """Read what came of messages."""
        ids = [*self.ids.newest(0)[:5], *IDS]
        answers = self.do(
            lambda model: [model.outcome(topic, id_) for id_ in ids],
            lambda store: store.results(topic, encoded(ids)),
        )
        assert answers is None or answers[0] == list(answers[1])

    @rule(topic=a_topic, limit=st.sampled_from((1, 2, 10)))
    def peek(self, topic: str, limit: int) -> None:
        """Read the first messages."""
        answers = self.do(
            lambda model: model.peek(topic, limit), lambda store: store.peek(topic, limit)
        )
        if answers is None:
            return
        expected, found = answers[0], list(answers[1].ids)
        if self.model.topic(topic).fair:
            assert set(found) <= {item.put.id for item in self.model.givable(topic)}
            assert min(len(expected), 1) <= len(set(found)) == len(found) <= limit
        else:
            assert found == expected

    @rule(topic=a_topic, changes=some_changes)
    def configure(self, topic: str, changes: dict[str, Any]) -> None:
        """Change some of a topic's settings."""
        changes = self.model.foretold(topic, changes)
        answers = self.do(
            lambda model: model.configure(topic, changes),
            lambda store: store.configure(topic, changes),
        )
        assert answers is None or answers[0] == answers[1]
        assert self.run(self.store.settings(topic)) == self.model.topic(topic)

    @rule(
        topic=a_topic,
        bounds=some_bounds,
        keys=some_keys,
        limits=st.lists(st.sampled_from((1, 1, 2, 3)), min_size=3, max_size=6),
    )
    def share(
        self, topic: str, bounds: dict[str, Any], keys: list[str | None], limits: list[int]
    ) -> None:
        """Run takers on a limited topic that has many messages of few keys."""
        self.configure(topic, bounds)
        self.put_without_ids(topic, [PLAIN._replace(key=key) for key in keys])
        for limit in limits:
            self._take([topic], limit, 0, OWNERS[0])

    # --- time ---------------------------------------------------------------------------------

    @rule()
    def tick(self) -> None:
        """Ask for the next deadline, as the queue does before it sleeps."""
        self.notices.expect_plans()
        now_ms = self.clock.now_ms()
        answers = self.do(lambda model: model.deadline_ms(), lambda store: store.tick(now_ms))
        if answers is None:
            return
        expected, promised = answers
        # A store may wake up too early, but never too late.
        if promised is None:
            assert expected is None
        else:
            assert now_ms < promised
            assert expected is None or promised <= expected
        self.notices.promise(promised)

    @rule(delta_ms=st.sampled_from((1, 100, 300, 300, 300, 500, 1_000, 1_000, 10_000, 3_600_000)))
    def advance(self, delta_ms: int) -> None:
        """Move the clock forward."""
        self._move_clock(delta_ms)

    @rule(delta_ms=st.sampled_from((1, 500, 1_500)))
    def turn_back(self, delta_ms: int) -> None:
        """Move the clock back, but not to a time when a forgotten id was remembered.

        Whether the id would be known again then does not matter.
        """
        room_ms = max(self.clock.now_ms() - self.model.forgotten_ms, 0)
        self._move_clock(-min(delta_ms, room_ms))

    def _move_clock(self, delta_ms: int) -> None:
        self.clock.advance(delta_ms)
        self.latest_ms = max(self.latest_ms, self.clock.now_ms())
        self.has_only_moved = True

    @precondition(lambda self: self.can_reopen)
    @rule()
    def crash(self) -> None:
        """Crash the store between two verbs."""
        self._crash()
