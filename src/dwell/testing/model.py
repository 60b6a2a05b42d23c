"""The model: the behaviour of a store, in a dict and in sorted lists.

The model must have predicted every answer of a store. It shares no code with any store, and is
written to be read: each verb is a few lines, and nothing is fast. Two things make it short. A
waiting message has no state of its own: it is ready when its due has come, and delayed until then,
whichever way the clock went. And the caller of the model calls :meth:`Model.tick` before each verb,
as a store does itself.

Messages are named by topic and id, leases by a number that :meth:`Model.take` gives out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs

from dwell.batch.outcome import UNKNOWN, Outcome
from dwell.errors import IdExists, InvalidInput, TopicFull
from dwell.message import Kind, Result, State, TopicSettings, decode_extra
from dwell.retries import retry_delay_ms
from dwell.store.base import AckResults, Delays, Errors
from dwell.testing.bucket import Bucket

#: How many more messages of one key than of another may come while both have messages: one of the
#: same turn may come first.
_AHEAD = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a put."""

    id: str
    body: bytes
    due_ms: int
    priority: int = 1024
    lease_ms: int = 0
    max_attempts: int = 0
    expires_ms: int = 0
    extra: bytes = b""


@dataclass(slots=True)
class Item:
    """One message and its state: dead since ``died_ms``, leased by a ``lease``, or waiting.

    ``died_of_time`` tells that no verb did it, so that no caller was told when.
    """

    topic: str
    arrival: int
    put: Entry
    due_ms: int
    expires_ms: int
    attempt: int = 0
    error: str | None = None
    died_ms: int = 0
    died_of_time: bool = False
    lease: int = 0
    lease_until_ms: int = 0
    owner: str = ""
    #: How many messages of each key have come while this one was available.
    passed: Counter[str | None] = field(default_factory=Counter)


#: Topics and ids of messages, and messages that a store chose where the model cannot predict it.
Names = Sequence[tuple[str, str]]
Given = Names | None

#: The data of an event: time, kind, topic, id, due and attempt.
Fact = tuple[int, Kind, str, str, int, int]


@dataclass
class Model:
    """All messages of a store, and its other state."""

    now_ms: int = 0
    items: dict[tuple[str, str], Item] = field(default_factory=dict)
    settings: dict[str, TopicSettings] = field(default_factory=dict)
    remembered: dict[tuple[str, str], int] = field(default_factory=dict)
    #: The results of acked messages, and until when they are kept.
    results: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    forgotten_ms: int = 0
    facts: list[Fact] = field(default_factory=list)
    arrivals: int = 0
    leases: int = 0
    buckets: dict[str, Bucket] = field(default_factory=dict)
    #: How many turns of each key of a topic may have been used by messages that did not come.
    skipped: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    # --- time ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Move to a new time: leases end, messages expire, acked ids are forgotten."""
        if now_ms < self.now_ms:
            self._wait_again(now_ms)
        self.now_ms = now_ms
        for bucket in self.buckets.values():
            bucket.tick(now_ms)
        for item in list(self.items.values()):
            self.lapse(item)
            self.expire(item)
        for name, until_ms in list(self.remembered.items()):
            if until_ms <= now_ms:
                del self.remembered[name]
                self.forgotten_ms = max(self.forgotten_ms, until_ms)
        for name, (until_ms, _) in list(self.results.items()):
            if until_ms <= now_ms:
                del self.results[name]
                self.forgotten_ms = max(self.forgotten_ms, until_ms)

    def lapse(self, item: Item) -> None:
        """End a lease, if its time is over."""
        if not item.lease or item.lease_until_ms > self.now_ms:
            return
        self._end_lease(item)
        if self._is_used_up(item):
            item.error, item.died_of_time = "lease ended", True
            self._give_up(item)
        else:
            self._note(Kind.LAPSE, item)

    def expire(self, item: Item) -> None:
        """Bury a message that was not taken in time."""
        if not item.lease and not item.died_ms and 0 < item.expires_ms <= self.now_ms:
            item.died_ms, item.died_of_time, item.error = self.now_ms, True, "expired"
            self._note(Kind.EXPIRE, item)

    def hear_of_deaths(self, died_ms: Mapping[tuple[str, str], int]) -> None:
        """Accept the times of deaths by time from a reopened store.

        Changes by time may be lost in a crash, and are repeated then. A message that a verb buried
        died when the verb was answered.
        """
        for name, item in self.items.items():
            # A message that expired, was kicked and then used up its attempts keeps its error, but
            # has no expiry.
            earliest_ms = max(item.expires_ms, 1) if item.error == "expired" else 1
            # The time may lie ahead, because the clock may have gone back since.
            if item.died_of_time and died_ms.get(name, 0) >= earliest_ms:
                item.died_ms = died_ms[name]

    def deadline_ms(self) -> int | None:
        """Return the time of the next change by time."""
        times = []
        for item in self.items.values():
            if item.lease:
                times.append(item.lease_until_ms)
            elif not item.died_ms:
                times += [item.due_ms, item.expires_ms]
        return min((time for time in times if time > self.now_ms), default=None)

    # --- verbs --------------------------------------------------------------------------------

    def put(self, topic: str, entries: Sequence[Entry], on_conflict: str) -> list[Result]:
        """Add messages, one after the other; a refused batch adds none."""
        settings = self.topic(topic)
        pending = sum(
            item.topic == topic and not item.lease and not item.died_ms
            for item in self.items.values()
        )
        room = max(settings.max_pending - pending, 0) if settings.max_pending else len(entries)
        exist = {id_ for of, id_ in self.items if of == topic}
        if on_conflict == "error" and len(exist | {e.id for e in entries}) < len(exist) + len(
            entries
        ):
            raise IdExists
        if on_conflict == "keep":
            exist |= {id_ for of, id_ in self.remembered if of == topic}
        if settings.on_full == "refuse" and len({e.id for e in entries} - exist) > room:
            raise TopicFull
        results = []
        for entry in entries:
            results.append(self._put(topic, entry, on_conflict, room))
            room -= results[-1] is Result.CREATED
        return results

    def take(
        self, topics: Sequence[str], limit: int, lease_ms: int, owner: str, given: Given = None
    ) -> list[Item]:
        """Lease ready messages, by priority, due and arrival.

        Where a topic's rate or fairness leaves the choice open, ``given`` is the store's choice,
        which is checked.
        """
        taken: list[Item] = []
        for topic in dict.fromkeys(topics):
            going = [] if self.topic(topic).paused else self.givable(topic)
            most = min(limit - len(taken), self.room(topic), len(going))
            chosen = going[:most] if given is None else self._chosen(topic, going, most, given)
            self._pass_over(topic, going, chosen)
            taken += self._lease_all(topic, chosen, lease_ms, owner)
        return taken

    def take_ids(
        self, topic: str, ids: Sequence[str], lease_ms: int, owner: str, given: Given = None
    ) -> list[Item]:
        """Lease some messages by id, if they may be taken; ``given`` is as in :meth:`take`."""
        going = [] if self.topic(topic).paused else self.givable(topic)
        found = [self.items.get((topic, id_)) for id_ in dict.fromkeys(ids)]
        wanted = [item for item in found if item in going]
        number = min(self.room(topic), len(wanted))
        if given is not None:
            self._check_number(topic, number, len(given))
            number = len(given)
        for item in wanted[:number]:
            self._skip(item)
        return self._lease_all(topic, wanted[:number], lease_ms, owner)

    def is_foretold(self, topics: Iterable[str]) -> bool:
        """Tell whether the result of a take from some topics can be predicted."""
        return not any(self.topic(topic).fair or self.topic(topic).rate for topic in topics)

    def _chosen(self, topic: str, going: list[Item], most: int, given: Names) -> list[Item]:
        """Return the messages that a store has given of a topic, after a check."""
        chosen = [self.items[name] for name in given if name[0] == topic]
        if self.topic(topic).fair:
            assert all(item in going for item in chosen), f"{given} is more than may be given"
            # The number of messages of a turn is unknown: a take may end with it.
            self._check_number(topic, most, len(chosen), fewer=True)
        else:
            assert chosen == going[: len(chosen)], f"{given} is not what comes first"
            self._check_number(topic, most, len(chosen))
        return chosen

    def _check_number(self, topic: str, most: int, count: int, *, fewer: bool = False) -> None:
        """Check how many messages were taken of a topic that may have a rate."""
        least = min(most, 1) if fewer else most
        if self.topic(topic).rate:
            bounds = self.buckets[topic].bounds()
            least, most = min(least, bounds[0]), min(most, bounds[1])
        assert least <= count <= most, f"{count} are taken where {least} to {most} may be"

    def _pass_over(self, topic: str, going: list[Item], chosen: list[Item]) -> None:
        """Check that a key whose messages stay has had about as many turns as the others."""
        if not self.topic(topic).fair:
            return
        came = Counter(self.key(item) for item in chosen)
        stay = [item for item in going if item not in chosen]
        for item in self.items.values():
            if item.topic == topic and item not in stay:
                item.passed.clear()
        for item in stay:
            own = self.key(item)
            item.passed += came
            waiting = sum(self.key(other) == own for other in stay)
            most = item.passed[own] + waiting + self.skipped[topic, own] + _AHEAD
            assert all(count <= most for count in item.passed.values()), f"{item} has no turn"

    def _skip(self, item: Item) -> None:
        """Note that a message leaves without its turn."""
        self.skipped[item.topic, self.key(item)] += 1
        item.passed.clear()

    def key(self, item: Item) -> str | None:
        """Return the key of a message."""
        return decode_extra(item.put.extra).key

    def begin_life(self) -> None:
        """Note that the store was opened: turns restart, and buckets may be full."""
        for bucket in self.buckets.values():
            bucket.fill()
        self._deal_turns()

    def _wait_again(self, now_ms: int) -> None:
        """Take the turns from messages that are no longer due, because the clock went back."""
        for item in self.items.values():
            if item.due_ms > now_ms:
                self._skip(item)

    def _deal_turns(self) -> None:
        self.skipped.clear()
        for item in self.items.values():
            item.passed.clear()

    def peek(self, topic: str, limit: int) -> list[str]:
        """Return the ids that a take would give, if the topic were not paused and not full."""
        return [item.put.id for item in self.givable(topic)[:limit]]

    def givable(self, topic: str) -> list[Item]:
        """Return the ready messages not held back by another of their key, in order.

        A message that was taken and is not done holds its key, even while it waits for its retry.
        Several hold it if they were taken before the topic was ordered.
        """
        ready = sorted(self.in_state(topic, State.READY), key=order_of)
        begun = sorted(self.begun(topic), key=lambda item: (not item.lease, *order_of(item)))
        first: dict[str | None, Item] = {}
        for item in (*begun, *ready):
            first.setdefault(self.lane(item), item)
        return [item for item in ready if self.lane(item) is None or first[self.lane(item)] is item]

    def lane(self, item: Item) -> str | None:
        """Return the key whose messages are taken one at a time."""
        return self.key(item) if self.topic(item.topic).ordered else None

    def begun(self, topic: str) -> list[Item]:
        """Return the messages that were taken and are not done."""
        return [
            item
            for item in self.items.values()
            if item.topic == topic and (item.lease or (item.attempt and not item.died_ms))
        ]

    def room(self, topic: str) -> int:
        """Return how many messages of a topic may be taken, at most."""
        most = self.topic(topic).most_leased
        leased = len(self.in_state(topic, State.LEASED))
        return max(most - leased, 0) if most else len(self.items)

    def allowed(self, topic: str) -> int:
        """Return how many messages of a topic may be taken, at least."""
        room = self.room(topic)
        return min(room, self.buckets[topic].bounds()[0]) if self.topic(topic).rate else room

    def _lease_all(self, topic: str, items: list[Item], lease_ms: int, owner: str) -> list[Item]:
        for item in items:
            self._lease(item, lease_ms, owner)
        if items and self.topic(topic).rate:
            self.buckets[topic].spend(len(items))
        return items

    def _lease(self, item: Item, lease_ms: int, owner: str) -> None:
        self.leases += 1
        own_lease_ms = item.put.lease_ms or self.topic(item.topic).lease_ms
        item.lease, item.owner, item.attempt = self.leases, owner, item.attempt + 1
        item.lease_until_ms = self.now_ms + (lease_ms or own_lease_ms)
        self._note(Kind.TAKE, item)

    def ack(
        self,
        leases: Sequence[int],
        results: AckResults = None,
        then: tuple[str, Entry] | None = None,
    ) -> list[Result]:
        """Delete messages that are done; a caller's own id is remembered, and each result.

        ``then`` is put into a topic if the single ack counts.
        """
        held = [item for item in self.items.values() if item.lease == leases[0] != 0]
        if then is not None and held:
            if (then[0], then[1].id) == (held[0].topic, held[0].put.id):
                raise InvalidInput
            # A follow-up is refused where other puts are dropped.
            if self.put(then[0], [then[1]], "keep") == [Result.DROPPED]:
                raise TopicFull

        def ack(item: Item, at: int) -> Result:
            self._note(Kind.ACK, item)
            name = (item.topic, item.put.id)
            del self.items[name]
            until_ms = self.now_ms + self.topic(item.topic).remember_ms
            result = None if results is None else results[at]
            if until_ms > self.now_ms and result is not None:
                self.results[name] = until_ms, result
            if until_ms > self.now_ms and not item.put.id.startswith("~"):
                self.remembered[name] = max(until_ms, self.remembered.get(name, 0))
            return Result.ACKED

        return self._each_lease(leases, ack)

    def release(
        self,
        leases: Sequence[int],
        delay_ms: Delays,
        error: Errors,
        *,
        counted: bool,
        priority: int | None = None,
    ) -> list[Result]:
        """Give messages back, or bury messages without an attempt left."""
        delays_ms = None if delay_ms is None else np.broadcast_to(delay_ms, len(leases)).tolist()

        def release(item: Item, at: int) -> Result:
            self._end_lease(item)
            self._set_priority(item, priority)
            own = error if error is None or isinstance(error, str) else error[at]
            item.error = item.error if own is None else own
            if counted and self._is_used_up(item):
                self._give_up(item)
                return Result.BURIED
            retry_ms = retry_delay_ms(self.topic(item.topic).retry_delays_ms, item.attempt)
            own_ms = retry_ms if delays_ms is None else delays_ms[at]
            due_ms = item.due_ms
            if counted or delays_ms is None or own_ms:
                due_ms = self.now_ms + own_ms
            if 0 < item.expires_ms <= max(due_ms, self.now_ms):
                item.error = "expired" if own is None else own
                item.died_ms = self.now_ms
                self._note(Kind.BURY, item)
                return Result.BURIED
            item.due_ms = due_ms
            item.attempt -= 0 if counted else 1
            self._note(Kind.RELEASE, item)
            return Result.RELEASED

        return self._each_lease(leases, release)

    def touch(self, leases: Sequence[int], lease_ms: int) -> list[Result]:
        """Move the ends of leases to ``lease_ms`` from now."""

        def touch(item: Item, _: int) -> Result:
            own_lease_ms = item.put.lease_ms or self.topic(item.topic).lease_ms
            item.lease_until_ms = self.now_ms + (lease_ms or own_lease_ms)
            return Result.TOUCHED

        return self._each_lease(leases, touch)

    def bury(
        self, leases: Sequence[int], reason: str | None, priority: int | None = None
    ) -> list[Result]:
        """Set messages aside."""

        def bury(item: Item, _: int) -> Result:
            self._end_lease(item)
            self._set_priority(item, priority)
            item.died_ms = self.now_ms
            item.error = item.error if reason is None else reason
            self._note(Kind.BURY, item)
            return Result.BURIED

        return self._each_lease(leases, bury)

    def kick(self, topic: str, ids: Sequence[str], due_ms: Sequence[int]) -> list[Result]:
        """Bring dead messages back."""
        dues = list(due_ms)

        def kick(item: Item | None) -> Result:
            due = dues.pop(0)
            if item is None or not item.died_ms:
                return Result.UNKNOWN
            item.died_ms, item.attempt = 0, 0
            item.died_of_time = False
            self._move_to(item, max(due, self.now_ms))
            self._note(Kind.KICK, item)
            return Result.KICKED

        return [kick(self.items.get((topic, id_))) for id_ in ids]

    def cancel(self, topic: str, ids: Sequence[str]) -> list[Result]:
        """Delete messages that are not leased."""

        def cancel(item: Item) -> Result:
            if item.lease:
                return Result.LEASED
            self._note(Kind.CANCEL, item)
            del self.items[item.topic, item.put.id]
            return Result.CANCELLED

        return self._each_id(topic, ids, cancel)

    def reschedule(self, topic: str, ids: Sequence[str], due_ms: Sequence[int]) -> list[Result]:
        """Change when messages fall due."""
        dues = list(due_ms)

        def reschedule(item: Item | None) -> Result:
            due = dues.pop(0)
            if item is None or item.lease or item.died_ms:
                return Result.LEASED if item and item.lease else Result.UNKNOWN
            self._move_to(item, due)
            self._note(Kind.MOVE, item)
            return Result.MOVED

        return [reschedule(self.items.get((topic, id_))) for id_ in ids]

    def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        """Change some of a topic's settings, and return all of them."""
        before = self.topic(topic)
        now = self.settings[topic] = structs.replace(before, **changes)
        if now.rate and topic in self.buckets:
            self.buckets[topic].change(now.rate)
        elif now.rate:
            self.buckets[topic] = Bucket(now.rate, self.now_ms)
        if (now.fair, now.ordered) != (before.fair, before.ordered):
            self._deal_turns()
        return self.settings[topic]

    def foretold(self, topic: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return changes, without a change of the order while messages of the topic are taken.

        The order of several messages of a key that were taken before cannot be predicted.
        """
        is_kept = bool(self.begun(topic))
        return {name: value for name, value in changes.items() if name != "ordered" or not is_kept}

    # --- reading ------------------------------------------------------------------------------

    def outcome(self, topic: str, id_: str) -> Outcome:
        """Return what came of a message."""
        name = (topic, id_)
        if name in self.items:
            item = self.items[name]
            return Outcome(str(self.state(item)), error=item.error if item.died_ms else None)
        if name in self.results:
            return Outcome("done", self.results[name][1])
        return Outcome("done") if name in self.remembered else UNKNOWN

    def topic(self, topic: str) -> TopicSettings:
        """Return the settings of a topic."""
        return self.settings.get(topic, TopicSettings())

    def state(self, item: Item) -> State:
        """Return the present state of a message."""
        if item.died_ms or item.lease:
            return State.DEAD if item.died_ms else State.LEASED
        return State.READY if item.due_ms <= self.now_ms else State.DELAYED

    def in_state(self, topic: str, state: State) -> list[Item]:
        """Return the messages of one state, by due and arrival."""
        items = [i for i in self.items.values() if i.topic == topic and self.state(i) is state]
        return sorted(items, key=lambda item: (item.due_ms, item.arrival))

    def held(self, owner: str) -> list[Item]:
        """Return the messages that an owner holds."""
        items = [item for item in self.items.values() if item.lease and item.owner == owner]
        return sorted(items, key=lambda item: (item.due_ms, item.arrival))

    def rename(self, names: Mapping[str, str]) -> None:
        """Set the ids of messages to the ids that a store made for them, once known."""
        for (topic, old), item in list(self.items.items()):
            if old in names:
                del self.items[topic, old]
                item.put = replace(item.put, id=names[old])
                self.items[topic, names[old]] = item
        self.facts = [(*fact[:3], names.get(fact[3], fact[3]), *fact[4:]) for fact in self.facts]

    def _set_priority(self, item: Item, priority: int | None) -> None:
        if priority is not None:
            item.put = replace(item.put, priority=priority)

    # --- what the verbs share -----------------------------------------------------------------

    def _put(self, topic: str, entry: Entry, on_conflict: str, room: int) -> Result:
        old = self.items.get((topic, entry.id))
        if old is None:
            if on_conflict == "keep" and (topic, entry.id) in self.remembered:
                return Result.KEPT
            if room <= 0:
                return Result.DROPPED
        elif on_conflict != "replace":
            return Result.KEPT
        elif old.lease:
            return Result.LEASED
        if old is not None:
            self._skip(old)
        self.arrivals += 1
        arrival = self.arrivals if old is None else old.arrival
        new = Item(topic, arrival, entry, entry.due_ms, entry.expires_ms)
        self.items[topic, entry.id] = new
        self.results.pop((topic, entry.id), None)
        self._note(Kind.PUT if old is None else Kind.REPLACE, new)
        return Result.CREATED if old is None else Result.REPLACED

    def _each_lease(
        self, leases: Sequence[int], act: Callable[[Item, int], Result]
    ) -> list[Result]:
        results = []
        for at, lease in enumerate(leases):
            holder = [item for item in self.items.values() if item.lease == lease != 0]
            results.append(act(holder[0], at) if holder else Result.STALE)
        return results

    def _each_id(
        self, topic: str, ids: Sequence[str], act: Callable[[Item], Result]
    ) -> list[Result]:
        found = ((topic, id_) for id_ in ids)
        return [act(self.items[name]) if name in self.items else Result.UNKNOWN for name in found]

    def _is_used_up(self, item: Item) -> bool:
        return item.attempt >= (item.put.max_attempts or self.topic(item.topic).max_attempts)

    def _give_up(self, item: Item) -> None:
        item.died_ms = self.now_ms
        self._note(Kind.EXHAUST, item)

    def _move_to(self, item: Item, due_ms: int) -> None:
        item.due_ms = due_ms
        item.expires_ms = item.expires_ms if item.expires_ms > due_ms else 0

    def _end_lease(self, item: Item) -> None:
        item.lease, item.lease_until_ms, item.owner = 0, 0, ""

    def _note(self, kind: Kind, item: Item) -> None:
        if kind in (Kind.CANCEL, Kind.MOVE, Kind.EXPIRE):
            self._skip(item)
        self.facts.append((self.now_ms, kind, item.topic, item.put.id, item.due_ms, item.attempt))


def order_of(item: Item) -> tuple[int, int, int]:
    """Return the sort key of a take."""
    return item.put.priority, item.due_ms, item.arrival
