"""Selecting: the same messages on every face, whatever is said of them."""

import asyncio
import gc
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

import dwell
from dwell import Result, State
from dwell.batch.selection import ALL
from dwell.clock import RealClock
from dwell.message import MAX_CHANGE_MESSAGES
from dwell.queue import changes
from dwell.server.http import filters
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from tests.http.noting import noted
from tests.selections import CHANGES, check, check_change, opened, run

FAR_MS = 4_000_000_000_000


@pytest.fixture(params=["python", "http"])
def face(request):
    """Return how the queue is asked."""
    return request.param


@pytest.fixture(params=["memory", "embedded"])
def make_store(request, tmp_path):
    """Return what makes a store of each kind."""
    if request.param == "memory":
        return lambda: MemoryStore(RealClock())
    return lambda: EmbeddedStore(tmp_path / "store")


def test_a_selection_gives_what_a_plain_filter_gives(make_store, face, monkeypatch):
    run(make_store, face, monkeypatch, check)


def test_what_is_changed_is_what_a_plain_filter_gives(make_store, face, monkeypatch):
    run(make_store, face, monkeypatch, check_change, CHANGES)


# --- what is said ---------------------------------------------------------------------------------


def test_a_selection_has_friendly_forms():
    assert dwell.select() == ALL
    said = dwell.select(
        "n > `1`",
        state="dead",
        due_from=datetime(2030, 1, 31, 9, tzinfo=UTC),
        due_to="2030-02-01T00:00:00Z",
        key="k",
        headers={"h": "v"},
        error="timeout",
        attempt_from=1,
        attempt_to=3,
    )
    assert said == dwell.Selection(
        states=(State.DEAD,),
        due_from_ms=1_896_080_400_000,
        due_to_ms=1_896_134_400_000,
        key="k",
        headers={"h": "v"},
        error="timeout",
        attempt_from=1,
        attempt_to=3,
        where="n > `1`",
    )
    many = dwell.select(state=["ready", State.DELAYED, "READY"], due_from=FAR_MS, due_to=FAR_MS)
    assert many.states == (State.READY, State.DELAYED)
    assert (many.due_from_ms, many.due_to_ms) == (FAR_MS, FAR_MS)


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"state": "gone"}, dwell.InvalidInput, "state: got str 'gone', expected delayed, ready"),
        ({"state": 7}, dwell.InvalidInput, "state: got int 7, expected delayed, ready"),
        ({"state": []}, dwell.InvalidInput, "state: got list [], expected one or more of"),
        ({"due_from": "soon"}, dwell.InvalidTime, "due_from: got str 'soon', expected ISO 8601"),
        ({"due_to": datetime(2030, 1, 1)}, dwell.InvalidTime, "due_to: got datetime "),
        ({"due_to": -1}, dwell.InvalidTime, "due_to: got int -1, expected a time from 1970"),
        ({"due_to": 1_900_000_000}, dwell.InvalidTime, "due_to: got int 1900000000, expected mill"),
        (
            {"due_from": 20, "due_to": 10},
            dwell.InvalidTime,
            "due_to: got int 10, expected a time that is not before due_from, 20",
        ),
        ({"key": ""}, dwell.InvalidKey, "key: got str '', expected text of 1-256 bytes"),
        ({"headers": {"h": 1}}, dwell.InvalidHeaders, "headers: got dict {'h': 1}, expected"),
        ({"headers": "h=1"}, dwell.InvalidHeaders, "headers: got str 'h=1', expected a mapping"),
        ({"error": ""}, dwell.InvalidInput, "error: got str '', expected text of 1-1000"),
        ({"error": 5}, dwell.InvalidInput, "error: got int 5, expected text"),
        ({"attempt_from": -1}, dwell.InvalidAttempts, "attempt_from: got int -1, expected a whole"),
        ({"attempt_to": "3"}, dwell.InvalidAttempts, "attempt_to: got str '3', expected a whole"),
        (
            {"attempt_from": 3, "attempt_to": 2},
            dwell.InvalidAttempts,
            "attempt_to: got int 2, expected a number that is not below attempt_from, 3",
        ),
        ({"where": ""}, dwell.InvalidQuery, "where: got str '', expected an expression"),
    ],
)
def test_a_bad_selection_is_refused(said, error, words):
    with pytest.raises(error) as caught:
        dwell.select(**said)
    assert type(caught.value) is error
    assert words in str(caught.value)


BAD = [
    (dwell.Selection(due_from_ms=20, due_to_ms=10), "due_to_ms: got int 10, expected a time"),
    (dwell.Selection(due_from_ms="1"), "due_from_ms: got str '1', expected a whole number"),
    (dwell.Selection(attempt_from=-1), "attempt_from: got int -1, expected a whole number"),
    (dwell.Selection(states=("gone",)), "state: got str 'gone', expected delayed"),
    (dwell.Selection(where="a["), "where: got str 'a[', expected an expression of JMESPath"),
    (dwell.Selection(error=""), "error: got str '', expected text"),
    (None, "where: got NoneType None, expected an expression"),
    (["n"], "where: got list ['n'], expected an expression"),
]


async def test_each_verb_refuses_a_bad_selection(face):
    async with opened(MemoryStore(RealClock()), face) as queue:
        await queue.put("t", {"n": 1})
        for which, words in BAD:
            for call in (
                queue.find("t", which),
                queue.take_where("t", which),
                queue.cancel_where("t", which),
                queue.reschedule_where("t", which, delay="1h"),
                queue.kick_where("t", which),
                *([anext(queue.pages("t", which=which))] if which is not None else []),
            ):
                with pytest.raises(dwell.InvalidInput) as caught:
                    await call
                assert words in str(caught.value)
        assert (await queue.stats()).topics["t"] == dwell.TopicStats(ready=1)


CALLS = [
    (lambda q: q.find("t", dwell.select(state="dead"), state="ready"), "state: got str 'ready'"),
    (lambda q: q.take_where("t", dwell.select(state="dead")), "state: got str 'dead', expected re"),
    (lambda q: q.cancel_where("a b", "n"), "topic: got str 'a b'"),
    (lambda q: q.cancel_where("t", "n", limit=0), "limit: got int 0, expected a whole number"),
    (
        lambda q: q.kick_where("t", "n", limit=MAX_CHANGE_MESSAGES + 1),
        "limit: got int 1000001, expected a whole number from 1 to 1000000",
    ),
    (lambda q: q.kick_where("t", "n", delay=-1), "delay: got int -1"),
    (lambda q: q.reschedule_where("t", "n"), "due: got none, expected one of delay, due and"),
    (
        lambda q: q.reschedule_where("t", "n", due=1, shift=1),
        "due: got due and shift, expected one of delay, due and shift",
    ),
    (lambda q: q.reschedule_where("t", "n", due="soon"), "due: got str 'soon'"),
    (lambda q: q.reschedule_where("t", "n", shift="x"), "shift: got str 'x', expected"),
    (lambda q: q.reschedule_where("t", "n", shift="--1s"), "shift: got str '--1s', expected"),
    (lambda q: q.reschedule_where("t", "n", shift=[1]), "shift: got list [1], expected"),
]


async def test_bad_calls_are_refused(face):
    async with opened(MemoryStore(RealClock()), face) as queue:
        await queue.put("t", {"n": 1})
        for call, words in CALLS:
            with pytest.raises(dwell.InvalidInput) as caught:
                await call(queue)
            assert words in str(caught.value)
        assert (await queue.stats()).topics["t"] == dwell.TopicStats(ready=1)


# --- what is changed ------------------------------------------------------------------------------


class Disturbed(MemoryStore):
    """A store in which one message is taken and one is gone just before each change by id."""

    async def disturb(self, topic):
        taken = await self.take_ids(topic, [b"2", b"3"], 60_000, "")
        await self.ack(taken.receipts[1:])

    async def cancel(self, *args, **how):
        await self.disturb(args[0])
        return await super().cancel(*args, **how)

    async def reschedule(self, *args, **how):
        await self.disturb(args[0])
        return await super().reschedule(*args, **how)


async def test_what_was_taken_or_done_meanwhile_is_told(face):
    for verb, how, done in (
        ("cancel", {}, Result.CANCELLED),
        ("reschedule", {"delay": "1h"}, Result.MOVED),
    ):
        async with opened(Disturbed(RealClock()), face) as queue:
            await queue.put_many("t", [{"n": n} for n in range(5)], ids=list("01234"))
            changed = await getattr(queue, f"{verb}_where")("t", "n > `0`", **how)
            results = Counter({done: 2, Result.LEASED: 1, Result.UNKNOWN: 1})
            assert changed == dwell.Changed(4, results, is_complete=True)


async def test_a_kick_of_what_is_no_longer_dead_is_told(face):
    class Cancelling(MemoryStore):
        async def kick(self, topic, ids, *how, **more):
            await self.cancel(topic, ids[:1])
            return await super().kick(topic, ids, *how, **more)

    async with opened(Cancelling(RealClock()), face) as queue:
        await queue.put_many("t", [{"n": n} for n in range(3)])
        await queue.bury(await queue.take("t", 3), "timeout")
        changed = await queue.kick_where("t", dwell.select(error="time"), delay="1h")
        results = Counter({Result.KICKED: 2, Result.UNKNOWN: 1})
        assert changed == dwell.Changed(3, results, is_complete=True)
        assert (await queue.stats()).topics["t"] == dwell.TopicStats(delayed=2)


async def test_a_shift_may_lead_back(face):
    async with opened(MemoryStore(RealClock()), face) as queue:
        await queue.put("t", {"n": 1}, id="a", due=FAR_MS)
        for shift, due_ms in (
            ("1m", FAR_MS + 60_000),
            ("-30s", FAR_MS + 30_000),
            (-30, FAR_MS),
            (0.5, FAR_MS + 500),
            (timedelta(seconds=-1), FAR_MS - 500),
        ):
            await queue.reschedule_where("t", "n", shift=shift)
            assert (await queue.get("t", "a")).due_ms == due_ms
        # None is due before 1970.
        await queue.reschedule_where("t", "n", shift="-2000w")
        await queue.reschedule_where("t", "n", shift="-5200w")
        assert (await queue.get("t", "a")).due_ms == 0


async def test_a_limit_stops_and_the_same_again_goes_on(face):
    async with opened(MemoryStore(RealClock()), face) as queue:
        await queue.put_many("t", [{"n": n} for n in range(5)], due=[1, 2, 3, FAR_MS, FAR_MS])
        which = dwell.select("n >= `0`")
        for left in (5, 3, 1):
            changed = await queue.cancel_where("t", which, limit=2)
            assert (changed.matched, changed.is_complete) == (min(left, 2), left == 1)
        assert (await queue.cancel_where("t", which)).matched == 0


# --- a bounded part a request ---------------------------------------------------------------------


async def test_a_change_takes_so_many_steps_a_request_and_the_client_goes_on(monkeypatch):
    monkeypatch.setattr(filters, "MOST_STEPS", 2_000)
    async with opened(MemoryStore(RealClock()), "http") as queue, asyncio.timeout(60):
        dues = [FAR_MS * (n % 2) + n for n in range(1_500)]
        await queue.put_many("t", [{"n": n} for n in range(1_500)], due=dues)
        asked = noted(monkeypatch)
        # Nothing of the first parts matches, and yet each request begins behind the one before.
        changed = await queue.cancel_where("t", "n == `1498`")
        assert changed == dwell.Changed(1, Counter({Result.CANCELLED: 1}), is_complete=True)
        assert asked.count("cancel") == 3
        changed = await queue.cancel_where("t", "n < `1000`", limit=900)
        assert (changed.matched, changed.is_complete) == (900, False)
        assert changed.results == {Result.CANCELLED: 900}


async def test_what_is_moved_over_http_is_moved_once(monkeypatch):
    monkeypatch.setattr(filters, "MOST_STEPS", 2_000)
    async with opened(MemoryStore(RealClock()), "http") as queue, asyncio.timeout(60):
        ids = [f"{n}" for n in range(1_500)]
        await queue.put_many("t", [{"n": n} for n in range(1_500)], ids=ids, due=FAR_MS)
        asked = noted(monkeypatch)
        counted = await queue.reschedule_where("t", "n >= `0`", shift="1h", dry_run=True)
        assert counted == dwell.Changed(1_500, Counter(), is_complete=True)
        asked.clear()
        changed = await queue.reschedule_where("t", "n >= `0`", shift="1h")
        assert asked == ["reschedule"]
        assert not changed.is_complete
        dues = Counter(message.due_ms for message in await queue.get("t", ids))
        assert dues == {
            FAR_MS + 3_600_000: changed.matched,
            FAR_MS: 1_500 - changed.matched,
        }


async def test_the_ids_of_a_large_change_are_nothing_for_the_collector_of_garbage(monkeypatch):
    """It would go through all of a million each time, as long as nothing else can be done."""
    # What there was before is no longer looked at.
    gc.collect()
    gc.freeze()
    store, seen = MemoryStore(RealClock()), {"scan": [], "cancel": []}
    ids = {b"m%d" % number: None for number in range(2_000)}

    def looked(verb):
        call = getattr(store, verb)

        async def look(*args, **words):
            gc.collect()
            kinds = (list, set, tuple, dict)
            large = [x for x in gc.get_objects() if type(x) in kinds and len(x) >= 100]
            first = ((type(x), next(iter(x))) for x in large)
            seen[verb].append(
                [kind for kind, id_ in first if isinstance(id_, bytes) and id_ in ids]
            )
            return await call(*args, **words)

        return look

    for verb in seen:
        monkeypatch.setattr(store, verb, looked(verb))
    monkeypatch.setattr(changes, "_KNOWN_PARTS", 2)
    try:
        async with dwell.Queue(store) as queue:
            await queue.put_many("t", ["x"] * 2_000, ids=[id_.decode() for id_ in ids])
            assert (await queue.cancel_where("t", dwell.select())).matched == 2_000
    finally:
        gc.unfreeze()
    for verb, found in seen.items():
        assert found == [[]] * len(found) != [], verb
