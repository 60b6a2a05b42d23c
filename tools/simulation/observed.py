"""A store whose verbs are done to the model too, at the moment at which they happen."""

import asyncio
import contextlib
import types
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.events import EventPage
from dwell.batch.puts import PUT_ARRAYS, PutAnswer, Puts
from dwell.batch.stats import Stale, Stats
from dwell.errors import IdExists, StoreDamaged, StoreError, TopicFull
from dwell.message import I64, U8, U64, Kind, Message, Result, TopicSettings
from dwell.store.base import AckResults, Delays, Errors
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.backup.checkpoint import Checkpoint
from dwell.testing.model import Entry, Item
from dwell.testing.rig import told
from dwell.testing.views import events_from, facts_of, receipt_words, view_of_store
from tools.parts import disagreements
from tools.simulation.history import Broken, History, SteppedModel, counts_of_model
from tools.simulation.loop import LIFE

T = TypeVar("T")
M = TypeVar("M")

_NOTHING_DONE = (Result.STALE, Result.UNKNOWN, Result.LEASED)


class ObservedStore(EmbeddedStore):
    """The embedded store, beside its history; a difference raises Broken to ``on_broken``."""

    history: History
    #: Whether a verb has looked at the time.
    has_entered = False
    #: Whether a verb waits where there is no room for it, and whether it has done what it does.
    has_tried = has_done = False
    #: What of time's own the model knows of: leases that ended, and messages that expired.
    told = (0, 0)
    _put_answer: PutAnswer | None = None
    on_broken: Callable[[Broken], None]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: The model as it was at the last checkpoint that each task has made.
        self.checkpointed: dict[asyncio.Task[Any] | None, SteppedModel] = {}

    async def open(self) -> None:
        """Open the store, and find out what has happened before it ended."""
        looked_ms = self.history.looked_ms
        await super().open()
        putter = self._putter
        resolve_put = putter.put

        def put(puts: Puts, on_conflict: str, now_ms: int) -> PutAnswer:
            self._put_answer = None
            self._put_answer = resolve_put(puts, on_conflict, now_ms)
            return self._put_answer

        putter.put = put  # type: ignore[method-assign]
        self._watch_time()
        try:
            await self._resolve(looked_ms)
        except StoreError:
            # Who opens it again must not find it held; with its process all is let go.
            if (life := LIFE.get()) is None or not life.is_over:
                with contextlib.suppress(StoreError, OSError):
                    await super().close()
            raise

    def _watch_time(self) -> None:
        """Note when the store has looked at its clock."""
        time = self._time
        real_enter, real_tick = time.enter, time.tick

        def enter() -> int:
            self.has_entered = True
            self.history.looked_ms = self.clock.now_ms()
            return real_enter()

        def tick(now_ms: int) -> None:
            self.has_entered = True
            self.history.looked_ms = now_ms
            real_tick(now_ms)

        time.enter, time.tick = enter, tick  # type: ignore[method-assign]

    async def _resolve(self, looked_ms: int) -> None:
        times_ms = await settle(self)
        self.told = self.of_time
        plain = _Plain(self)
        views = await view_of_store(plain, self.history.topics)  # type: ignore[arg-type]
        facts = facts_of(await events_from(plain, 0))  # type: ignore[arg-type]
        first_position = self.core.machine.events.first_position
        settings = {
            topic: await EmbeddedStore.settings(self, topic) for topic in self.history.topics
        }
        try:
            self.history.resolve(times_ms, views, settings, facts, first_position, looked_ms)
        except Broken as broken:
            self.on_broken(broken)
            raise

    # --- verbs ------------------------------------------------------------------------------------

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Put messages, and let the model do so."""
        entries = self._entries(puts)
        topic = puts.topic

        def predict() -> Any:
            results = []
            if self._put_answer is not None:
                results = [Result(int(code)) for code in self._put_answer.results]
            done = self.history.do(
                lambda model: model.put_as(topic, entries, on_conflict, results),
                f"put {topic} {[entry.id for entry in entries]} {on_conflict}",
            )
            assert self._put_answer is not None
            names = dict(zip([e.id for e in entries], self._put_answer.ids, strict=True))
            if puts.ids is None:
                # What was dropped has no name.
                made = {old: new for old, new in names.items() if new}
                self.history.do(lambda model: model.rename(made), "ids are made")
            return done

        def check(predicted: Any, answer: PutAnswer) -> None:
            self._same("put", predicted, answer.results)

        call = EmbeddedStore.put(self, puts, on_conflict)
        return await self._observe(predict, call, check, lambda answer: True)

    def _entries(self, puts: Puts) -> list[Entry]:
        ids = puts.ids
        names = []
        for index in range(len(puts)):
            self.history.names += 1
            names.append(f"~?{self.history.names}" if ids is None else ids[index].decode())
        columns = (getattr(puts, name) for name in PUT_ARRAYS)
        bodies = [bytes(body) for body in puts.bodies]
        extras = puts.extras or [b""] * len(puts)
        rows = zip(names, bodies, *(c.tolist() for c in columns), extras, strict=True)
        return [Entry(*row) for row in rows]

    async def take(
        self,
        topics: Sequence[str],
        limit: int,
        lease_ms: int,
        owner: str,
        *,
        calls: U64 | None = None,
    ) -> Batch:
        """Take messages, and let the model do so."""
        topics = list(topics)
        return await self._observe_take(
            lambda model: model.take(topics, limit, lease_ms, owner),
            EmbeddedStore.take(self, topics, limit, lease_ms, owner, calls=calls),
            f"take {','.join(topics)} {limit}",
        )

    async def take_ids(
        self,
        topic: str,
        ids: Sequence[bytes],
        lease_ms: int,
        owner: str,
        versions: U64 | None = None,
        limit: int | None = None,
    ) -> Batch:
        """Take messages by id, and let the model do so."""
        assert limit is None, "the model knows of no limit"
        names = [bytes(id_).decode() for id_ in ids]
        return await self._observe_take(
            lambda model: model.take_ids(topic, names, lease_ms, owner),
            EmbeddedStore.take_ids(self, topic, ids, lease_ms, owner),
            f"take {topic} {names}",
        )

    async def _observe_take(
        self,
        act: Callable[[SteppedModel], list[Item]],
        call: Coroutine[Any, Any, Batch],
        words: str,
    ) -> Batch:
        now_ms = self.clock.now_ms()

        def predict() -> list[tuple[Any, ...]]:
            return [_facts_of_item(item) for item in self.history.do(act, words)]

        def check(predicted: list[tuple[Any, ...]], batch: Batch) -> None:
            if (batch.due_ms > now_ms).any():
                raise Broken("early", f"{list(batch.ids)} due {batch.due_ms} taken at {now_ms}")
            if ((batch.expires_ms > 0) & (batch.expires_ms <= now_ms)).any():
                raise Broken("expired", f"{list(batch.ids)} taken after their expiry")
            found = [_facts_of_message(message) for message in batch]
            if found != [facts[1:] for facts in predicted]:
                raise Broken("take", f"{words}: got {found}, expected {predicted}")
            for facts, receipt in zip(predicted, receipt_words(batch), strict=True):
                if receipt in self.history.leases:
                    raise Broken("receipt", f"{facts} has the receipt of another take")
                self.history.leases[receipt] = facts[0]

        return await self._observe(predict, call, check, lambda batch: len(batch) > 0)

    async def held(self, owner: str) -> Batch:
        """Return what an owner holds, and compare."""

        def predict() -> list[tuple[Any, ...]]:
            return [_facts_of_item(item) for item in self.history.model.held(owner)]

        def check(predicted: list[tuple[Any, ...]], batch: Batch) -> None:
            found = [_facts_of_message(message) for message in batch]
            if sorted(found) != sorted(facts[1:] for facts in predicted):
                raise Broken("held", f"got {found}, expected {predicted}")
            by_name = {facts[1:3]: facts[0] for facts in predicted}
            for message, receipt in zip(batch, receipt_words(batch), strict=True):
                lease = by_name[message.topic, message.id]
                if self.history.leases.setdefault(receipt, lease) != lease:
                    raise Broken("receipt", f"{message.id} is held with a receipt of another")

        call = EmbeddedStore.held(self, owner)
        return await self._observe(predict, call, check, lambda batch: len(batch) > 0)

    async def ack(
        self, receipts: U64, results: AckResults = None, then: Puts | None = None, **calls: Any
    ) -> U8:
        """Say that messages are done, and let the model do so."""
        leases = self._leases_of(receipts)
        return await self._observe_each(
            lambda model: model.ack(leases, results),
            EmbeddedStore.ack(self, receipts, results, then, **calls),
            f"ack {leases}",
        )

    async def release(
        self,
        receipts: U64,
        delay_ms: Delays,
        error: Errors,
        *,
        counted: bool,
        priority: int | None = None,
        **calls: Any,
    ) -> U8:
        """Give messages back, and let the model do so."""
        leases = self._leases_of(receipts)
        return await self._observe_each(
            lambda model: model.release(
                leases, delay_ms, error, counted=counted, priority=priority
            ),
            EmbeddedStore.release(
                self, receipts, delay_ms, error, counted=counted, priority=priority, **calls
            ),
            f"release {leases} {delay_ms} {counted}",
        )

    async def touch(self, receipts: U64, lease_ms: int) -> U8:
        """Hold messages for longer, and let the model do so."""
        leases = self._leases_of(receipts)
        return await self._observe_each(
            lambda model: model.touch(leases, lease_ms),
            EmbeddedStore.touch(self, receipts, lease_ms),
            f"touch {leases} {lease_ms}",
        )

    async def bury(
        self, receipts: U64, reason: str | None, *, priority: int | None = None, **calls: Any
    ) -> U8:
        """Set messages aside, and let the model do so."""
        leases = self._leases_of(receipts)
        return await self._observe_each(
            lambda model: model.bury(leases, reason, priority),
            EmbeddedStore.bury(self, receipts, reason, priority=priority, **calls),
            f"bury {leases}",
        )

    def _leases_of(self, receipts: U64) -> list[int]:
        leases = self.history.leases
        return [leases.get((first, second), -1) for first, second in receipts.tolist()]

    async def kick(
        self,
        topic: str,
        ids: Sequence[bytes],
        due_ms: I64,
        versions: U64 | None = None,
        **calls: Any,
    ) -> U8:
        """Bring messages back, and let the model do so."""
        names = [bytes(id_).decode() for id_ in ids]
        return await self._observe_each(
            lambda model: model.kick(topic, names, due_ms.tolist()),
            EmbeddedStore.kick(self, topic, ids, due_ms, **calls),
            f"kick {topic} {names}",
        )

    async def cancel(
        self, topic: str, ids: Sequence[bytes], versions: U64 | None = None, **calls: Any
    ) -> U8:
        """Forget messages, and let the model do so."""
        names = [bytes(id_).decode() for id_ in ids]
        return await self._observe_each(
            lambda model: model.cancel(topic, names),
            EmbeddedStore.cancel(self, topic, ids, **calls),
            f"cancel {topic} {names}",
        )

    async def reschedule(
        self,
        topic: str,
        ids: Sequence[bytes],
        due_ms: I64,
        versions: U64 | None = None,
        **calls: Any,
    ) -> U8:
        """Move messages in time, and let the model do so."""
        names = [bytes(id_).decode() for id_ in ids]
        dues = due_ms.tolist()
        return await self._observe_each(
            lambda model: model.reschedule(topic, names, dues),
            EmbeddedStore.reschedule(self, topic, ids, due_ms, **calls),
            f"reschedule {topic} {names}",
        )

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        """Change some of a topic's settings, and let the model do so."""
        return await self._observe(
            lambda: self.history.do(
                lambda model: model.configure(topic, changes), f"configure {topic}"
            ),
            EmbeddedStore.configure(self, topic, changes),
            lambda predicted, answer: None,
            lambda answer: True,
        )

    async def get(self, topic: str, ids: Sequence[bytes]) -> list[Message | StoreDamaged | None]:
        """Return messages, and compare."""
        names = [bytes(id_).decode() for id_ in ids]

        def predict() -> list[Any]:
            items = [self.history.model.items.get((topic, name)) for name in names]
            return [item and _facts_of_item(item)[1:] for item in items]

        def check(predicted: list[Any], answer: list[Message | StoreDamaged | None]) -> None:
            found = [one and _facts_of_message(one) for one in map(told, answer)]
            if found != predicted:
                raise Broken("get", f"got {found}, expected {predicted}")

        return await self._observe(predict, EmbeddedStore.get(self, topic, ids), check)

    async def peek(self, topic: str, limit: int) -> Batch:
        """Return what comes first, and compare."""

        def check(predicted: list[str], batch: Batch) -> None:
            if list(batch.ids) != predicted:
                raise Broken("peek", f"got {list(batch.ids)}, expected {predicted}")

        return await self._observe(
            lambda: self.history.model.peek(topic, limit),
            EmbeddedStore.peek(self, topic, limit),
            check,
        )

    async def stats(self) -> Stats:
        """Return the counts, and compare."""
        now_ms = self.clock.now_ms()

        def predict() -> dict[str, tuple[int, ...]]:
            model = self.history.model
            return {topic: counts_of_model(model, now_ms, topic) for topic in self.history.topics}

        def check(predicted: dict[str, tuple[int, ...]], answer: Stats) -> None:
            for topic, counts in predicted.items():
                found = answer.topics.get(topic)
                got = (found.delayed, found.ready, found.leased, found.dead) if found else (0,) * 4
                if got != counts:
                    raise Broken("stats", f"{topic}: got {got}, expected {counts}")

        return await self._observe(predict, EmbeddedStore.stats(self), check)

    async def events(self, position: int, limit: int) -> EventPage:
        """Return events."""
        return await self._observe(
            lambda: None,
            EmbeddedStore.events(self, position, limit),
            lambda predicted, answer: None,
        )

    async def find_stale(self, *, repair: bool = False, limit: int = 1000) -> list[Stale]:
        """Look for lost bodies, of which there must be none; and the parts have to agree."""

        def check(predicted: None, answer: list[Stale]) -> None:
            if wrong := answer or disagreements(self):
                raise Broken("stale", f"{wrong}")

        return await self._observe(
            lambda: None,
            EmbeddedStore.find_stale(self, repair=repair, limit=limit),
            check,
        )

    async def tick(self, now_ms: int) -> int | None:
        """Do what time asks for, and let the model do so."""
        return await self._observe(
            lambda: None,
            EmbeddedStore.tick(self, now_ms),
            lambda predicted, answer: None,
        )

    async def checkpoint(self) -> Checkpoint:
        """Return a checkpoint, and remember the model as it was then."""

        def predict() -> None:
            self.checkpointed[asyncio.current_task()] = self.history.model.copied()

        return await self._observe(
            predict,
            EmbeddedStore.checkpoint(self),
            lambda predicted, answer: None,
        )

    # --- beside the model -------------------------------------------------------------------------

    async def _observe_each(
        self, act: Callable[[SteppedModel], list[Result]], call: Coroutine[Any, Any, U8], words: str
    ) -> U8:
        def check(predicted: list[Result], answer: U8) -> None:
            self._same(words, predicted, answer)

        return await self._observe(lambda: self.history.do(act, words), call, check, _has_done)

    def _same(self, words: str, predicted: Any, results: U8) -> None:
        found = [Result(int(code)) for code in results]
        if found != predicted:
            raise Broken("answer", f"{words}: got {found}, expected {predicted}")

    async def _observe(
        self,
        predict: Callable[[], M],
        call: Coroutine[Any, Any, T],
        check: Callable[[M, T], None],
        promises: Callable[[T], bool] = lambda answer: False,
    ) -> T:
        """Begin a verb, let the model do the same at once, and compare the answers."""
        answer: T = await _Observed(self, predict, call, check, promises)
        return answer

    async def _in_room(self, verb: Callable[[], T]) -> T:
        def tried() -> T:
            self.has_tried = True
            try:
                answer = verb()
            except (IdExists, TopicFull):
                self.has_done = True
                raise
            self.has_done = True
            return answer

        return await super()._in_room(tried)

    def ticked(self, *, failed: bool) -> None:
        """Let the model do what time has asked of the store for a verb, or before it for a look.

        Where there may be no room to write it down, only as far as the store has done it.
        """
        now_ms = self.clock.now_ms()
        before, self.told = self.told, self.of_time
        if not failed and not self.history.is_tight:
            return self.history.tick(now_ms)
        self.history.do(lambda model: model.look(now_ms), "now")
        after = self.told
        if after[0] != before[0]:
            self.history.do(lambda model: model.end_leases(now_ms), "leases end")
        if after[1] != before[1]:
            self.history.do(lambda model: model.expire_all(now_ms), "expiry")
        return None

    @property
    def of_time(self) -> tuple[int, int]:
        """How many leases have ended, and how many messages have expired."""
        totals = self.core.machine.events.totals
        return int(totals[Kind.LAPSE] + totals[Kind.EXHAUST]), int(totals[Kind.EXPIRE])


class _Observed:
    """A verb under way beside the model."""

    def __init__(
        self,
        store: ObservedStore,
        predict: Callable[[], Any],
        call: Coroutine[Any, Any, Any],
        check: Callable[[Any, Any], None],
        promises: Callable[[Any], bool],
    ) -> None:
        self._store = store
        self._predict = predict
        self._call = call
        self._check = check
        self._promises = promises
        self._has_tried = False
        self._has_begun = False
        self._predicted: Any = None
        self._place = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = self._step(thrown)
            except StopIteration as stop:
                return self._end(stop.value)
            thrown = None
            try:
                yield waits_for
            except BaseException as error:
                thrown = error

    def _step(self, thrown: BaseException | None) -> Any:
        """Let the verb go on up to where it waits, and do to the model what happens in that."""
        store, waits_for = self._store, None
        ended: BaseException | None = None
        store.has_entered = store.has_tried = store.has_done = False
        try:
            waits_for = self._call.send(None) if thrown is None else self._call.throw(thrown)
        except BaseException as error:
            ended = error
        if store.has_entered:
            self._happen(ended)
        if ended is not None:
            raise ended
        return waits_for

    def _happen(self, ended: BaseException | None) -> None:
        """Do to the model what the verb did, which looked at the time in this step."""
        store = self._store
        refusal = ended if isinstance(ended, IdExists | TopicFull) else None
        has_failed = refusal is None and not isinstance(ended, StopIteration | None)
        store.ticked(failed=has_failed)
        self._has_tried |= store.has_tried
        if not self._has_begun and (has_failed or store.has_done or not self._has_tried):
            self._has_begun = True
            if not has_failed:
                self._predicted = self._begin(refusal)
            self._place = store.history.place

    def _begin(self, refusal: Exception | None) -> Any:
        try:
            predicted = self._predict()
        except (IdExists, TopicFull) as error:
            if type(error) is not type(refusal):
                self._break(f"done where {type(error).__name__} was expected")
            return None
        if refusal is not None:
            self._break(f"{type(refusal).__name__} where {predicted} was expected")
        return predicted

    def _end(self, answer: Any) -> Any:
        """Compare the answer, and note what it promises."""
        if self._has_begun:
            try:
                self._check(self._predicted, answer)
            except Broken as broken:
                self._store.on_broken(broken)
                raise
            if self._promises(answer):
                self._store.history.answered(self._place)
        return answer

    def _break(self, words: str) -> None:
        broken = Broken("refusal", words)
        self._store.on_broken(broken)
        raise broken


def _has_done(results: U8) -> bool:
    """Tell whether a verb has changed anything."""
    return not np.isin(results, _NOTHING_DONE).all()


async def settle(store: EmbeddedStore) -> list[int]:
    """Bring a store to where no time passes while it is looked at; return when it has ticked."""
    core = store.core
    await core.journal.check_segments(core.journal.segments.values())
    times_ms: list[int] = []
    while True:
        times_ms.append(store.clock.now_ms())
        before = core.machine.events.next_position
        await EmbeddedStore.tick(store, times_ms[-1])
        if len(times_ms) > 1 and core.machine.events.next_position == before:
            return times_ms
        await EmbeddedStore.events(store, 0, 1)


class _Plain:
    """The verbs that only look, as the store has them."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.scan = types.MethodType(EmbeddedStore.scan, store)
        self.events = types.MethodType(EmbeddedStore.events, store)


def _facts_of_item(item: Item) -> tuple[Any, ...]:
    put = item.put
    return (
        item.lease, item.topic, put.id, put.body, item.due_ms, item.attempt, put.priority,
        item.lease_until_ms, item.died_ms, item.expires_ms, item.error,
    )  # fmt: skip


def _facts_of_message(message: Message) -> tuple[Any, ...]:
    return (
        message.topic, message.id, message.body, message.due_ms, message.attempt, message.priority,
        message.lease_until_ms, message.died_ms, message.expires_ms, message.last_error,
    )  # fmt: skip
