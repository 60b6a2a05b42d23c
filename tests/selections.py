"""Selections over drawn messages, beside a plain filter: the property, for every kind of queue."""

import asyncio
import contextlib
import itertools
from collections import Counter
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

import dwell
from dwell import Result, State
from dwell.queue import Queue, search
from dwell.server.http import filters
from tests import RUNS
from tests.http.served import served

FAR_MS = 4_000_000_000_000
NOW_AND_LATER = (1_000, 2_000, 3_000)
ALL_STATES = (State.DELAYED, State.READY, State.LEASED, State.DEAD)
#: The states that each verb finds messages in, when nobody says which.
FOUND_IN = {
    "cancel": (State.DELAYED, State.READY, State.DEAD),
    "reschedule": (State.DELAYED, State.READY),
    "kick": (State.DEAD,),
}

#: Expressions, and what they mean.
WHERE = {
    "n > `1`": lambda body: isinstance(body, dict) and body["n"] > 1,
    "n == `0` || n == `3`": lambda body: isinstance(body, dict) and body["n"] in (0, 3),
    "@": lambda body: body is not None,
}


class Drawn(NamedTuple):
    """A message that is to be."""

    state: State
    due: int
    n: int | None
    key: str | None
    headers: dict[str, str]
    failed: int
    error: str


_HEADERS = st.dictionaries(st.sampled_from(["h", "g"]), st.sampled_from(["1", "2"]))
_KEYS = st.sampled_from(["a", "b"])
_ERRORS = ["time is over", "no such address", "timeout: over"]

MESSAGES = st.lists(
    st.builds(
        Drawn,
        state=st.sampled_from(ALL_STATES),
        due=st.sampled_from(NOW_AND_LATER),
        n=st.none() | st.integers(0, 3),
        key=st.none() | _KEYS,
        headers=_HEADERS,
        failed=st.integers(0, 2),
        error=st.sampled_from(_ERRORS),
    ),
    max_size=14,
)


def _range(low: str, high: str, values: list[int]) -> st.SearchStrategy[dict[str, int]]:
    """Return either bound, both in order, or none."""
    some = st.lists(st.sampled_from(values), min_size=2, max_size=2).map(sorted)
    named = st.sets(st.sampled_from([low, high]))
    pairs = st.tuples(some, named)
    return pairs.map(lambda p: {k: v for k, v in zip((low, high), p[0], strict=True) if k in p[1]})


_DUES = [0, *NOW_AND_LATER, FAR_MS + 1_000, FAR_MS + 2_500]
SELECTIONS = st.tuples(
    _range("due_from", "due_to", _DUES),
    _range("attempt_from", "attempt_to", [0, 1, 2, 3]),
    st.fixed_dictionaries(
        {},
        optional={
            "state": st.lists(st.sampled_from(ALL_STATES), min_size=1, max_size=4),
            "key": _KEYS,
            "headers": _HEADERS,
            "error": st.sampled_from(["over", "time", "no such", "never"]),
            "where": st.sampled_from(sorted(WHERE)),
        },
    ),
).map(lambda parts: parts[0] | parts[1] | parts[2])

CHANGES = st.tuples(st.sampled_from(sorted(FOUND_IN)), st.sampled_from([-1_000, 1_500]))


def fits(message: dwell.Message, said: dict[str, Any]) -> bool:
    """Tell whether a message is one of those that a selection says, but for its state."""
    body = None if message.body == b"{" else message.json()
    return (
        said.get("due_from", 0) <= message.due_ms < said.get("due_to", 2**60)
        and said.get("attempt_from", 0) <= message.attempt < said.get("attempt_to", 99)
        and said.get("key", message.key) == message.key
        and said.get("headers", {}).items() <= message.headers.items()
        and ("error" not in said or said["error"] in (message.last_error or ""))
        and ("where" not in said or WHERE[said["where"]](body))
    )


async def fill(queue: Queue, topic: str, many: list[Drawn]) -> list[str]:
    """Put the messages, and bring each into its state with its attempts and its last error."""
    ids = [f"{n}" for n in range(len(many))]
    if not many:
        return ids
    await queue.put_many(
        topic,
        [b"{" if one.n is None else {"n": one.n} for one in many],
        ids=ids,
        due=[one.due for one in many],
        key=[one.key for one in many],
        headers=[one.headers for one in many],
    )
    for times in (1, 2):
        for id_, one in zip(ids, many, strict=True):
            if one.failed >= times:
                await queue.release(await queue.take_ids(topic, id_), error=one.error)
    for id_, one in zip(ids, many, strict=True):
        due = FAR_MS + one.due if one.state is State.DELAYED else one.due
        await queue.reschedule(topic, id_, due=due)
        if one.state in (State.LEASED, State.DEAD):
            taken = await queue.take_ids(topic, id_, lease="1h")
            if one.state is State.DEAD:
                await queue.bury(taken, one.error)
    return ids


async def check(queue: Queue, topic: str, many: list[Drawn], said: dict[str, Any]) -> None:
    """See a selection give what the plain filter gives, by every verb that looks."""
    ids = await fill(queue, topic, many)
    there = [m for m in await queue.get(topic, ids) if m is not None]
    assert [m.state for m in there] == [one.state for one in many]
    which = dwell.select(**said)
    own = {"state": None if "state" in said else ALL_STATES}
    states = tuple(dict.fromkeys(said.get("state", ALL_STATES)))

    def expected(wanted: tuple[State, ...]) -> set[str]:
        return {m.id for m in there if m.state in wanted and fits(m, said)}

    found = await queue.find(topic, which, **own)
    assert Counter(found.ids) == Counter(expected(states))
    order = [(states.index(m.state), m.due_ms) for m in found]
    assert order == sorted(order)
    paged = [m.id async for page in queue.pages(topic, which=which, limit=2, **own) for m in page]
    assert paged == list(found.ids)
    assert list((await queue.find(topic, which, limit=2, **own)).ids) == paged[:2]
    ready = dwell.select(**{k: v for k, v in said.items() if k != "state"})
    taken = await queue.take_where(topic, ready, 100)
    assert Counter(taken.ids) == Counter(expected((State.READY,)))
    await queue.release(taken, counted=False)


async def check_change(
    queue: Queue, topic: str, many: list[Drawn], said: dict[str, Any], how_said: tuple[str, int]
) -> None:
    """See a verb change what the plain filter gives, and tell the truth of each."""
    verb, shift_ms = how_said
    ids = await fill(queue, topic, many)
    before = {m.id: m for m in await queue.get(topic, ids) if m is not None}
    which = dwell.select(**said)
    states = said.get("state", FOUND_IN[verb])
    wanted = {id_ for id_, m in before.items() if m.state in states and fits(m, said)}
    how: dict[str, Any] = {}
    if verb == "reschedule":
        # Ahead is where the pages come that are not looked at yet.
        how["shift"] = f"{shift_ms}ms"
    call = getattr(queue, f"{verb}_where")

    assert await call(topic, which, dry_run=True, **how) == dwell.Changed(
        len(wanted), Counter(), True
    )
    assert await queue.get(topic, ids) == list(before.values())
    changed = await call(topic, which, **how)
    after = dict(zip(ids, await queue.get(topic, ids), strict=True))
    assert changed.matched == changed.results.total()
    if changed.is_complete:
        assert changed.results == Counter(
            told(verb, shift_ms, before[id_], after[id_]) for id_ in wanted
        )
    else:
        # Who goes on behind what was moved would meet it again, so that a server may leave a part.
        assert verb == "reschedule"
        assert changed.matched <= len(wanted)
    untouched = {id_ for id_ in before if before[id_] == after[id_]}
    assert set(before) - untouched <= wanted


def told(verb: str, shift_ms: int, before: dwell.Message, after: dwell.Message | None) -> Result:
    """Return what has to be said of a message, by what has become of it."""
    if before.state not in FOUND_IN[verb]:
        assert after == before
        is_leased = before.state is State.LEASED and verb != "kick"
        return Result.LEASED if is_leased else Result.UNKNOWN
    if verb == "cancel":
        assert after is None
        return Result.CANCELLED
    assert after is not None
    if verb == "kick":
        assert (after.state, after.attempt) == (State.READY, 0)
        return Result.KICKED
    assert after.due_ms == before.due_ms + shift_ms
    return Result.MOVED


@contextlib.asynccontextmanager
async def opened(store, face):
    """Open a queue over a store, or one over a server in front of it."""
    if face == "http":
        async with served(store) as server, dwell.open(server.url) as queue:
            yield queue
    else:
        async with Queue(store) as queue:
            yield queue


def run(make_store, face, monkeypatch, use, *more):
    """Draw messages and a selection, again and again, and use them with small pages."""
    monkeypatch.setattr(search, "_PAGE", 3)
    monkeypatch.setattr(filters, "MOST_LOOKED_AT", 4)
    monkeypatch.setattr(filters, "MOST_STEPS", 30)
    numbers = itertools.count()
    with asyncio.Runner() as runner:
        entered = contextlib.AsyncExitStack()

        async def begin():
            return await entered.enter_async_context(opened(make_store(), face))

        queue = runner.run(begin())

        @settings(
            max_examples=RUNS * 30,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @drawn(st.tuples(MESSAGES, SELECTIONS, *more))
        def again(case):
            runner.run(use(queue, f"t{next(numbers)}", *case))

        try:
            again()
        finally:
            runner.run(entered.aclose())
