"""Complete views of a store and of the model in the same terms, for comparison."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import astuple

from dwell.batch.batch import Batch
from dwell.batch.events import Event
from dwell.batch.page import Cursor
from dwell.batch.puts import PUT_ARRAYS, Puts
from dwell.batch.schema import arrays_from
from dwell.batch.stats import Stats
from dwell.errors import IdExists, InvalidInput, TopicFull
from dwell.message import U8, Kind, Message, Result, State, decode_extra
from dwell.store.base import Store
from dwell.testing.model import Entry, Fact, Item, Model, order_of

T = TypeVar("T")

#: The possible states of an existing message.
STATES = (State.DELAYED, State.READY, State.LEASED, State.DEAD)

#: Events by time alone; a store may process events of one moment in any order.
OF_TIME = (Kind.LAPSE, Kind.EXHAUST, Kind.EXPIRE)


class View(NamedTuple):
    """Everything visible of a message except its name and its receipt."""

    state: State
    due_ms: int
    priority: int
    attempt: int
    max_attempts: int
    lease_ms: int
    lease_until_ms: int
    died_ms: int
    expires_ms: int
    body: bytes
    key: str | None
    headers: dict[str, str]
    error: str | None


#: The view of each message by topic and id, in the order of scanning.
Views = dict[tuple[str, str], View]


def deaths_of(views: Views) -> dict[tuple[str, str], int]:
    """Return when each dead message died."""
    return {name: view.died_ms for name, view in views.items() if view.died_ms}


def puts_of(topic: str, entries: Sequence[Entry], *, own_ids: bool = True) -> Puts:
    """Return the columns of a put; without ``own_ids`` the queue makes them."""
    return Puts(
        topic=topic,
        bodies=[entry.body for entry in entries],
        **arrays_from(entries, PUT_ARRAYS),
        ids=[entry.id.encode() for entry in entries] if own_ids else None,
        extras=[entry.extra for entry in entries] if any(e.extra for e in entries) else None,
    )


def view_of_message(message: Message) -> View:
    """Return the view of a store's message."""
    return View(*(getattr(message, _RENAMED.get(name, name)) for name in View._fields))


_RENAMED = {"error": "last_error"}


def view_of_item(model: Model, item: Item) -> View:
    """Return the view of a model's message."""
    put, extra = item.put, decode_extra(item.put.extra)
    return View(
        state=model.state(item),
        due_ms=item.due_ms,
        priority=put.priority,
        attempt=item.attempt,
        max_attempts=put.max_attempts,
        lease_ms=put.lease_ms,
        lease_until_ms=item.lease_until_ms,
        died_ms=item.died_ms,
        expires_ms=item.expires_ms,
        body=put.body,
        key=extra.key,
        headers=extra.headers,
        error=item.error,
    )


async def scan_all(store: Store, topic: str, state: State, limit: int = 1000) -> list[Message]:
    """Return all messages of one state, page after page."""
    messages: list[Message] = []
    cursor: Cursor | None = None
    while True:
        page = await store.scan(topic, state, cursor, limit)
        assert len(page.messages) <= limit, "a page holds more than was asked for"
        assert page.messages.receipts is None, "a scan gave receipts"
        messages += page.messages
        if page.cursor is None:
            return messages
        assert len(page.messages), "a page is empty, and not the last"
        cursor = page.cursor


async def view_of_store(store: Store, topics: Iterable[str], limit: int = 1000) -> Views:
    """Return all messages of some topics; each must be in one state only."""
    views: Views = {}
    for topic in topics:
        for state in STATES:
            for message in await scan_all(store, topic, state, limit):
                assert (topic, message.id) not in views, f"{message.id!r} is in two states"
                assert (message.topic, message.state) == (topic, state)
                views[topic, message.id] = view_of_message(message)
    return views


def view_of_model(model: Model, topics: Iterable[str]) -> Views:
    """Return the same of the model."""
    return {
        (topic, item.put.id): view_of_item(model, item)
        for topic in topics
        for state in STATES
        for item in model.in_state(topic, state)
    }


def taken_since(model: Model, views: Views) -> list[tuple[str, str]]:
    """Return the names of the messages taken exactly once since the state of the model."""
    items = sorted(model.items.values(), key=order_of)
    names = ((item.topic, item.put.id, item.attempt + 1) for item in items)
    return [
        (topic, id_)
        for topic, id_, attempt in names
        if (topic, id_) in views and views[topic, id_].attempt == attempt
    ]


async def events_from(store: Store, position: int, limit: int = 1000) -> list[Event]:
    """Return all events from a position on, page after page."""
    events: list[Event] = []
    while True:
        page = await store.events(position, limit)
        events += page.events
        position = page.next_position
        if len(page.events) < limit:
            return events


def facts_of(events: Iterable[Event]) -> list[Fact]:
    """Return events in the model's form."""
    return [astuple(event)[1:] for event in events]


def settled(facts: Iterable[Fact], *, with_times: bool = True) -> list[Fact]:
    """Sort facts by message: the events of each message stay in order.

    A store may do the parts of one batch, and messages that fall due together, in any order.
    Without ``with_times`` the times of events by time alone are 0: a store that crashed may have
    repeated them later.
    """
    plain = [fact if with_times or fact[1] not in OF_TIME else (0, *fact[1:]) for fact in facts]
    return sorted(plain, key=lambda fact: (fact[2], fact[3]))


def counts_of(views: Views) -> Counter[tuple[str, str]]:
    """Return how many messages are in each state, by topic and the state's name."""
    return Counter((topic, view.state.name.lower()) for (topic, _), view in views.items())


def check_stats(stats: Stats, views: Views, model: Model) -> None:
    """Check that counts equal the existing messages and the events so far."""
    found = {
        (topic, state): getattr(counts, state)
        for topic, counts in stats.topics.items()
        for state in ("delayed", "ready", "leased", "dead")
    }
    assert +Counter(found) == counts_of(views)
    assert +Counter(stats.totals) == Counter(str(fact[1]) for fact in model.facts)


def attempt(act: Callable[[], T]) -> tuple[type[Exception] | None, T | None]:
    """Return the error of an action, or its answer."""
    try:
        return None, act()
    except (IdExists, InvalidInput, TopicFull) as error:
        return type(error), None


def same(predicted: list[Result], results: U8) -> None:
    """Check that a verb gave the predicted answer."""
    assert [Result(int(code)) for code in results] == predicted


def receipt_words(batch: Batch) -> list[tuple[int, int]]:
    """Return the receipts of taken messages as pairs of numbers."""
    receipts = batch.receipts
    assert receipts is not None, "a take without receipts"
    return [(first, second) for first, second in receipts.tolist()]
