"""Verbs by topic and id: kick, cancel, reschedule and get answer correctly for each id."""

import numpy as np
import pytest

from dwell.message import State
from dwell.testing.rig import Rig, Suite, encoded, receipts_of, scenario, words
from dwell.testing.suite.arrows import ACTS, BY_ID, LATER_MS
from dwell.testing.suite.shards import within_a_shard


async def one_in_each_state(rig: Rig) -> None:
    """Put four messages named after their states."""
    await rig.put("dead")
    await rig.bury(receipts_of(await rig.take()), "broken")
    await rig.put("leased")
    await rig.take()
    await rig.put("delayed", delay_ms=LATER_MS)
    await rig.put("ready")


ALL = ("ready", "none", "leased", "delayed", "dead")


class ByIdVerbs(Suite):
    """The verbs ``kick``, ``cancel``, ``reschedule`` and ``get``."""

    @scenario
    async def test_cancel_tells_the_truth(self, rig: Rig) -> None:
        """Cancel removes waiting and dead messages, and keeps leased messages."""
        await one_in_each_state(rig)
        answer = await rig.cancel(*ALL)
        assert answer == ["cancelled", "unknown", "leased", "cancelled", "cancelled"]
        left = [id_ for id_ in ALL if await rig.find(id_)]
        assert left == ["leased"]
        rig.advance(LATER_MS)
        assert await rig.take_ids() == []

    @scenario
    async def test_reschedule_tells_the_truth(self, rig: Rig) -> None:
        """Reschedule moves waiting messages, and nothing else."""
        await one_in_each_state(rig)
        answer = await rig.reschedule(*ALL, delay_ms=77)
        assert answer == ["moved", "unknown", "leased", "moved", "unknown"]
        due = {id_: (await rig.get(id_)).due_ms - rig.now_ms for id_ in ALL if id_ != "none"}
        assert due == {"ready": 77, "leased": 0, "delayed": 77, "dead": 0}

    @scenario
    async def test_kick_tells_the_truth(self, rig: Rig) -> None:
        """Kick brings dead messages back, and nothing else."""
        await one_in_each_state(rig)
        answer = await rig.kick(*ALL)
        assert answer == ["unknown", "unknown", "unknown", "unknown", "kicked"]

    @pytest.mark.parametrize(
        ("verb", "state", "answer"),
        [
            ("cancel", State.READY, ["cancelled", "unknown"]),
            ("reschedule", State.READY, ["moved", "moved"]),
            ("kick", State.DEAD, ["kicked", "unknown"]),
        ],
    )
    @scenario
    async def test_id_twice_in_a_batch(
        self, rig: Rig, verb: str, state: State, answer: list[str]
    ) -> None:
        """The second occurrence meets the result of the first."""
        await rig.put("x")
        if state is State.DEAD:
            await rig.bury(receipts_of(await rig.take()))
        start = len(await rig.events())
        call = {"cancel": rig.cancel, "reschedule": rig.reschedule, "kick": rig.kick}[verb]
        assert await call("x", "x") == answer
        assert len(await rig.events(start)) == len(answer) - answer.count("unknown")

    @pytest.mark.parametrize("verb", BY_ID)
    @scenario
    async def test_ids_of_another_topic(self, rig: Rig, verb: str) -> None:
        """An id is known in its own topic only, and an unused topic knows none."""
        await rig.put("x", topic="u")
        await rig.bury(receipts_of(await rig.take(topics="u")))
        assert await ACTS[verb](rig, np.zeros((0, 2), np.uint64)) == ["unknown"]
        assert await rig.state("x", topic="u") is State.DEAD

    @scenario
    async def test_ids_none(self, rig: Rig) -> None:
        """An empty batch gets an empty answer."""
        assert (await rig.cancel(), await rig.kick(), await rig.reschedule()) == ([], [], [])
        assert await rig.store.get("t", []) == []

    @within_a_shard
    @scenario
    async def test_cancel_many(self, rig: Rig) -> None:
        """Cancelled messages are never taken, and their ids are free."""
        ids = [f"{number}" for number in range(1_000)]
        await rig.put(*ids, delay_ms=LATER_MS)
        assert await rig.cancel(*ids[::2]) == ["cancelled"] * 500
        rig.advance(LATER_MS)
        assert await rig.take_ids() == ids[1::2]
        assert await rig.put(*ids[::2]) == ["created"] * 500

    @scenario
    async def test_reschedule_later_and_sooner(self, rig: Rig) -> None:
        """A ready message waits again; a waiting message becomes ready, and comes at its due."""
        await rig.put("ready")
        await rig.put("delayed", delay_ms=LATER_MS)
        await rig.reschedule("ready", delay_ms=300)
        await rig.reschedule("delayed", delay_ms=0)
        assert await rig.take_ids() == ["delayed"]
        rig.advance(299)
        assert await rig.take_ids() == []
        rig.advance(1)
        assert await rig.take_ids() == ["ready"]

    @scenario
    async def test_reschedule_each_to_its_own_time(self, rig: Rig) -> None:
        """Each id has its own due; for a repeated id, the last counts."""
        await rig.put("a", "b", delay_ms=LATER_MS)
        due_ms = rig.now_ms + np.array([30, 20, 10], np.int64)
        results = await rig.store.reschedule("t", encoded(["a", "b", "a"]), due_ms)
        assert words(results) == ["moved"] * 3
        assert (await rig.get("a")).due_ms == rig.now_ms + 10
        assert (await rig.get("b")).due_ms == rig.now_ms + 20

    @scenario
    async def test_kick_gives_all_attempts_again(self, rig: Rig) -> None:
        """It is due after the delay, its attempts count from 0, and its error can still be read."""
        await rig.configure(max_attempts=1)
        await rig.put("x")
        await rig.release(receipts_of(await rig.take()), 0, "oops")
        rig.advance(50)
        assert await rig.kick("x", delay_ms=LATER_MS) == ["kicked"]
        message = await rig.get("x")
        assert (message.state, message.attempt) == (State.DELAYED, 0)
        assert (message.due_ms, message.last_error) == (rig.now_ms + LATER_MS, "oops")
        rig.advance(LATER_MS)
        assert [message.attempt for message in await rig.take()] == [1]

    @scenario
    async def test_kick_each_to_its_own_time(self, rig: Rig) -> None:
        """Each id has its own due, next to ids that are not kicked; a past due becomes now."""
        await rig.put("a", "b", "c", "d")
        batch = await rig.take()
        await rig.bury(receipts_of(batch)[np.array(batch.ids) != "b"])
        due_ms = rig.now_ms + np.array([30, 20, 10, -5], np.int64)
        results = await rig.store.kick("t", encoded("abcd"), due_ms)
        assert words(results) == ["kicked", "unknown", "kicked", "kicked"]
        dues_ms = [(await rig.get(id_)).due_ms for id_ in "acd"]
        assert dues_ms == [rig.now_ms + 30, rig.now_ms + 10, rig.now_ms]

    @scenario
    async def test_kick_what_expired(self, rig: Rig) -> None:
        """A past expiry is cleared; a future expiry is kept."""
        await rig.put("expired", expires_in_ms=100)
        await rig.put("buried", expires_in_ms=1_000, delay_ms=-1)
        await rig.bury(receipts_of(await rig.take(1)))
        rig.advance(100)
        assert await rig.kick("expired", "buried") == ["kicked"] * 2
        assert (await rig.get("expired")).expires_ms == 0
        assert (await rig.get("buried")).expires_ms == rig.now_ms + 900
        rig.advance(900)
        assert await rig.take_ids() == ["expired"]
        assert await rig.state("buried") is State.DEAD

    @pytest.mark.parametrize("verb", ["kick", "reschedule"])
    @scenario
    async def test_expiry__new_due_after_it__is_cleared(self, rig: Rig, verb: str) -> None:
        """A message that is moved past its expiry is there when it falls due."""
        await rig.put("before", "at", "after", expires_in_ms=1_000)
        if verb == "kick":
            await rig.bury(receipts_of(await rig.take()))
        for id_, delay_ms in (("before", 999), ("at", 1_000), ("after", 2_000)):
            await getattr(rig, verb)(id_, delay_ms=delay_ms)
        expiries = [(await rig.get(id_)).expires_ms for id_ in ("before", "at", "after")]
        assert expiries == [rig.now_ms + 1_000, 0, 0]
        rig.advance(2_000)
        assert sorted(await rig.take_ids()) == ["after", "at"]

    @pytest.mark.parametrize("counted", [True, False])
    @scenario
    async def test_expiry__release_until_after_it__buries(self, rig: Rig, counted: bool) -> None:
        """A message that will have expired at its next attempt is dead, with the reason."""
        await rig.put("now", "told", "untold", expires_in_ms=1_000)
        await rig.put("lasting")
        taken = receipts_of(await rig.take_by_ids("now", "told", "untold", "lasting"))
        delays = np.array([999, 1_000, 5_000, 5_000])
        errors = ["soon", "451 greylisted", None, None]
        answers = await rig.release(taken, delays, errors, counted=counted)
        assert answers == ["released", "buried", "buried", "released"]
        found = [await rig.get(id_) for id_ in ("now", "told", "untold", "lasting")]
        reasons = [message.last_error for message in found]
        assert reasons == ["soon", "451 greylisted", "expired", None]
        assert [message.state for message in found] == [
            State.DELAYED,
            State.DEAD,
            State.DEAD,
            State.DELAYED,
        ]
        assert found[1].due_ms == rig.now_ms

    @scenario
    async def test_expiry__passed_while_leased__release_buries(self, rig: Rig) -> None:
        """A message that expired under its lease is not given back."""
        await rig.put("x", "y", expires_in_ms=1_000)
        taken = receipts_of(await rig.take_by_ids("x", "y"))
        rig.advance(1_000)
        assert await rig.release(taken[:1], 0, "why") == ["buried"]
        assert await rig.release(taken[1:], 0, counted=False) == ["buried"]
        assert (await rig.get("x")).last_error == "why"
        assert (await rig.get("y")).last_error == "expired"

    @scenario
    async def test_last_lease__ends_without_an_ack__is_the_reason(self, rig: Rig) -> None:
        """A message whose last lease ended has this reason, and not an earlier error."""
        await rig.configure(max_attempts=2)
        await rig.put("x")
        await rig.release(receipts_of(await rig.take()), 0, "the bank is closed")
        await rig.take(lease_ms=1_000)
        rig.advance(1_000)
        message = await rig.get("x")
        assert (message.state, message.last_error) == (State.DEAD, "lease ended")

    @scenario
    async def test_get_in_the_order_of_the_ids(self, rig: Rig) -> None:
        """Each id has its answer, even if it is repeated or unknown."""
        await one_in_each_state(rig)
        messages = await rig.found(encoded([*ALL, "ready"]))
        assert [message and message.id for message in messages] == [
            "ready",
            None,
            "leased",
            "delayed",
            "dead",
            "ready",
        ]
        assert [message.state.name.lower() for message in messages if message] == [
            "ready",
            "leased",
            "delayed",
            "dead",
            "ready",
        ]
        assert all(message.receipt is None for message in messages if message)
