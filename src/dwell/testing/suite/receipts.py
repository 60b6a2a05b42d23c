"""Receipts, and the verbs that need them: ack, release, touch and bury."""

import numpy as np
import pytest

from dwell.errors import ForeignReceipt
from dwell.message import U64, State, receipts_from_text, receipts_to_text
from dwell.testing.rig import Rig, Suite, receipts_of, scenario
from dwell.testing.suite.arrows import ACTS, BY_RECEIPT, LATER_MS
from dwell.testing.suite.shards import within_a_shard

_HIGH = np.uint64(32)


async def taken(rig: Rig, *ids: str, lease_ms: int = 60_000) -> U64:
    """Put and take messages; return their receipts."""
    await rig.put(*ids)
    return receipts_of(await rig.take(lease_ms=lease_ms))


class Receipts(Suite):
    """Receipts and their use."""

    @scenario
    async def test_receipts_name_the_store(self, rig: Rig) -> None:
        """Each is new, contains the store's number, and survives a conversion to text."""
        ids = [f"{number}" for number in range(200)]
        receipts = await taken(rig, *ids)
        rig.advance(60_000)
        receipts = np.concatenate([receipts, receipts_of(await rig.take())])
        assert len({tuple(words) for words in receipts.tolist()}) == 400
        assert 0 < rig.store.number < 2**31
        assert set((receipts[:, 0] >> _HIGH).tolist()) == {rig.store.number}
        again = receipts_from_text(receipts_to_text(receipts))
        assert await rig.ack(again) == ["stale"] * 200 + ["acked"] * 200

    @pytest.mark.parametrize("verb", BY_RECEIPT)
    @scenario
    async def test_foreign_receipt_changes_nothing(self, rig: Rig, verb: str) -> None:
        """One receipt of another store refuses the batch, including its good receipts."""
        receipts = await taken(rig, "x", "y")
        mixed = receipts.copy()
        mixed[1, 0] ^= np.uint64(1) << _HIGH
        before = [await rig.get("x"), await rig.get("y")]
        with pytest.raises(ForeignReceipt):
            await ACTS[verb](rig, mixed)
        assert [await rig.get("x"), await rig.get("y")] == before
        assert await rig.ack(receipts) == ["acked"] * 2

    @pytest.mark.parametrize("verb", BY_RECEIPT)
    @scenario
    async def test_invented_receipt_is_stale(self, rig: Rig, verb: str) -> None:
        """An invented receipt with the store's number is stale."""
        receipts = await taken(rig, "x")
        for word, value in ((0, 1), (0, 2**31), (1, 1), (1, 2**62), (1, 2**63)):
            other = receipts.copy()
            other[0, word] ^= np.uint64(value)
            assert await ACTS[verb](rig, other) == ["stale"]
        assert await rig.ack(receipts) == ["acked"]

    @pytest.mark.parametrize(
        ("verb", "answer"),
        [
            ("ack", ["acked", "stale"]),
            ("release", ["released", "stale"]),
            ("bury", ["buried", "stale"]),
            ("touch", ["touched", "touched"]),
        ],
    )
    @scenario
    async def test_receipt_twice_in_a_batch(self, rig: Rig, verb: str, answer: list[str]) -> None:
        """A receipt is good once, except for touch."""
        receipts = await taken(rig, "x")
        assert await ACTS[verb](rig, np.concatenate([receipts, receipts])) == answer

    @pytest.mark.parametrize("verb", BY_RECEIPT)
    @scenario
    async def test_receipt_after_the_lease(self, rig: Rig, verb: str) -> None:
        """It is stale from the moment the lease ends, even when another taker has the message."""
        old = await taken(rig, "x", lease_ms=1_000)
        rig.advance(1_000)
        assert await ACTS[verb](rig, old) == ["stale"]
        new = receipts_of(await rig.take())
        assert len(new) == 1
        before = await rig.get("x")
        assert await ACTS[verb](rig, old) == ["stale"]
        assert await rig.get("x") == before
        assert await ACTS[verb](rig, new) != ["stale"]

    @pytest.mark.parametrize("verb", BY_RECEIPT)
    @scenario
    async def test_receipts_none(self, rig: Rig, verb: str) -> None:
        """An empty batch gets an empty answer."""
        assert await ACTS[verb](rig, np.zeros((0, 2), np.uint64)) == []

    @within_a_shard
    @scenario
    async def test_receipts_keep_their_order(self, rig: Rig) -> None:
        """Answers are in the order of the receipts."""
        receipts = await taken(rig, "a", "b", "c")
        assert await rig.ack(receipts[1:2]) == ["acked"]
        assert await rig.ack(receipts[::-1]) == ["acked", "stale", "acked"]
        assert (await rig.happened())[-3:] == ["ack b", "ack c", "ack a"]

    # --- release ------------------------------------------------------------------------------

    @scenario
    async def test_release_with_a_delay(self, rig: Rig) -> None:
        """It comes back after the delay, with its attempt counted."""
        receipts = await taken(rig, "x")
        rig.advance(50)
        assert await rig.release(receipts, LATER_MS, "oops") == ["released"]
        message = await rig.get("x")
        assert (message.state, message.attempt) == (State.DELAYED, 1)
        assert (message.due_ms, message.lease_until_ms) == (rig.now_ms + LATER_MS, 0)
        assert message.last_error == "oops"
        rig.advance(LATER_MS)
        assert [message.attempt for message in await rig.take()] == [2]

    @scenario
    async def test_release_after_the_retry_delays(self, rig: Rig) -> None:
        """Without a delay it waits for the topic's delay of the attempt; the last delay repeats."""
        await rig.configure(retry_delays_ms=(100, 2_000))
        receipts = await taken(rig, "x")
        for delay_ms in (100, 2_000, 2_000):
            assert await rig.release(receipts, None) == ["released"]
            assert (await rig.get("x")).due_ms == rig.now_ms + delay_ms
            rig.advance(delay_ms)
            receipts = receipts_of(await rig.take())

    @scenario
    async def test_release_without_retry_delays(self, rig: Rig) -> None:
        """A topic without retry delays gives it back at once."""
        await rig.configure(retry_delays_ms=())
        await rig.release(await taken(rig, "x"), None)
        assert await rig.take_ids() == ["x"]

    @scenario
    async def test_release_keeps_the_error_there_is(self, rig: Rig) -> None:
        """None keeps the last error; an empty text is an error."""
        for given, kept in (("first", "first"), (None, "first"), ("", ""), (None, "")):
            receipts = await taken(rig, "x")
            await rig.release(receipts, 0, given)
            assert (await rig.get("x")).last_error == kept

    @scenario
    async def test_release_of_the_last_attempt(self, rig: Rig) -> None:
        """It is buried, with the given error."""
        await rig.configure(max_attempts=2)
        await rig.release(await taken(rig, "x"), 0, "first")
        receipts = receipts_of(await rig.take())
        assert await rig.release(receipts, LATER_MS, "second") == ["buried"]
        message = await rig.get("x")
        assert (message.state, message.attempt) == (State.DEAD, 2)
        assert (message.last_error, message.lease_until_ms) == ("second", 0)

    @scenario
    async def test_release_uncounted(self, rig: Rig) -> None:
        """It gives the attempt back, and never buries."""
        await rig.configure(max_attempts=1)
        receipts = await taken(rig, "x")
        for _ in range(3):
            assert await rig.release(receipts, 0, counted=False) == ["released"]
            assert (await rig.get("x")).attempt == 0
            receipts = receipts_of(await rig.take())
        assert await rig.release(receipts, 0) == ["buried"]

    @scenario
    async def test_release_uncounted_leaves_the_place(self, rig: Rig) -> None:
        """Without a delay it keeps its due too; with one the message is due after that."""
        await rig.put("a", "b", "c")
        before = [await rig.get(id_) for id_ in "abc"]
        receipts = receipts_of(await rig.take(2))
        rig.advance(10)
        await rig.put("d")
        assert await rig.release(receipts, 0, counted=False) == ["released"] * 2
        assert [await rig.get(id_) for id_ in "abc"] == before
        batch = await rig.take(9)
        assert await rig.release(receipts_of(batch)[:1], 5, counted=False) == ["released"]
        assert await rig.state(batch.ids[0]) is State.DELAYED
        rig.advance(5)
        assert await rig.state(batch.ids[0]) is State.READY

    @scenario
    async def test_release_uncounted_by_the_topics_delay(self, rig: Rig) -> None:
        """Without a topic's delay, the message is due now, and not as it was."""
        await rig.configure(retry_delays_ms=())
        receipts = await taken(rig, "x")
        rig.advance(10)
        assert await rig.release(receipts, None, counted=False) == ["released"]
        assert (await rig.get("x")).due_ms == rig.clock.now_ms()

    @scenario
    async def test_release_each_after_its_own_delay(self, rig: Rig) -> None:
        """Delays may differ; without one and uncounted a message is unchanged."""
        await rig.put("a", "b")
        await rig.put("c", "d")
        batch = await rig.take()
        rig.advance(10)
        receipts, now_ms = receipts_of(batch), rig.now_ms
        assert await rig.ack(receipts[1:2]) == ["acked"]
        delays_ms = np.array([20, 99, 0, 30])
        answers = ["released", "stale", "released", "released"]
        assert await rig.release(receipts, delays_ms, counted=False) == answers
        left = [await rig.get(batch.ids[at]) for at in (0, 2, 3)]
        dues_ms = [now_ms + 20, int(batch.due_ms[2]), now_ms + 30]
        assert [message.due_ms for message in left] == dues_ms
        rig.advance(20)
        again = await rig.take()
        assert set(again.ids) == {batch.ids[2], batch.ids[0]}
        now_ms = rig.now_ms
        assert await rig.release(receipts_of(again), np.array([0, 5])) == ["released"] * 2
        dues_ms = [(await rig.get(id_)).due_ms for id_ in again.ids]
        assert dues_ms == [now_ms, now_ms + 5]

    @within_a_shard
    @scenario
    async def test_release_each_with_its_own_error(self, rig: Rig) -> None:
        """None keeps the earlier error; the events are in the order of the receipts."""
        await rig.put("a", "b")
        await rig.put("c", "d", "e")
        await rig.release(receipts_of(await rig.take()), 0, "before", counted=False)
        batch = await rig.take()
        receipts = receipts_of(batch)
        assert await rig.ack(receipts[:1]) == ["acked"]
        errors = ["gone", "one", None, "", "one"]
        answers = ["stale", *["released"] * 4]
        assert await rig.release(receipts, 0, errors, counted=False) == answers
        found = [(await rig.get(id_)).last_error for id_ in list(batch.ids)[1:]]
        assert found == ["one", "before", "", "one"]
        told = [line for line in await rig.happened() if line.startswith("release")]
        assert told[-4:] == [f"release {id_}" for id_ in list(batch.ids)[1:]]

    @scenario
    async def test_release_many_in_different_attempts(self, rig: Rig) -> None:
        """Each message of a batch has its own attempt, limit and answer."""
        await rig.configure(retry_delays_ms=(100, 200), max_attempts=2)
        await rig.release(await taken(rig, "second"))
        await rig.put("first", delay_ms=1)
        await rig.put("patient", max_attempts=9, delay_ms=1)
        await rig.release(receipts_of(await rig.take()), 1, counted=False)
        rig.advance(1)
        await rig.put("only", max_attempts=1, delay_ms=1)
        rig.advance(1)
        batch = await rig.take()
        answers = dict(zip(batch.ids, await rig.release(receipts_of(batch), None), strict=True))
        assert answers == {
            "second": "buried",
            "first": "released",
            "patient": "released",
            "only": "buried",
        }
        assert (await rig.get("first")).due_ms == rig.now_ms + 100

    # --- touch and bury -----------------------------------------------------------------------

    @scenario
    async def test_touch_moves_the_end(self, rig: Rig) -> None:
        """The lease ends ``lease_ms`` from now, later or sooner; the receipt stays good."""
        receipts = await taken(rig, "x", lease_ms=1_000)
        rig.advance(999)
        assert await rig.touch(receipts, 5_000) == ["touched"]
        rig.advance(4_999)
        assert await rig.state("x") is State.LEASED
        assert await rig.touch(receipts, 10) == ["touched"]
        assert (await rig.get("x")).lease_until_ms == rig.now_ms + 10
        rig.advance(10)
        assert await rig.state("x") is State.READY

    @scenario
    async def test_touch_with_the_usual_lease(self, rig: Rig) -> None:
        """0 means the message's own lease, or else its topic's."""
        await rig.configure(lease_ms=3_000)
        await rig.put("own", lease_ms=2_000)
        await rig.put("usual")
        batch = await rig.take()
        rig.advance(1_000)
        assert await rig.touch(receipts_of(batch)) == ["touched"] * 2
        assert (await rig.get("own")).lease_until_ms == rig.now_ms + 2_000
        assert (await rig.get("usual")).lease_until_ms == rig.now_ms + 3_000

    @scenario
    async def test_touch_is_no_event(self, rig: Rig) -> None:
        """Touching changes neither due nor attempt, and is not reported."""
        receipts = await taken(rig, "x")
        before, start = await rig.get("x"), len(await rig.events())
        rig.advance(5)
        await rig.touch(receipts, 100)
        after = await rig.get("x")
        assert (after.due_ms, after.attempt) == (before.due_ms, before.attempt)
        assert await rig.events(start) == []

    @pytest.mark.parametrize(("reason", "kept"), [("bad", "bad"), ("", ""), (None, "before")])
    @scenario
    async def test_bury(self, rig: Rig, reason: str | None, kept: str) -> None:
        """It stays dead with the reason, until it is kicked."""
        await rig.release(await taken(rig, "x"), 0, "before")
        assert await rig.bury(receipts_of(await rig.take()), reason) == ["buried"]
        rig.advance(10**10)
        message = await rig.get("x")
        assert (message.state, message.attempt, message.last_error) == (State.DEAD, 2, kept)
        assert await rig.take_ids() == []

    @pytest.mark.parametrize("is_ordered", [False, True])
    @pytest.mark.parametrize("verb", ["release", "bury"])
    @within_a_shard
    @scenario
    async def test_what_was_given_back_goes_its_own_way(
        self, rig: Rig, verb: str, is_ordered: bool
    ) -> None:
        """Messages of one take are independent: a lease ends for its own message alone."""
        await rig.configure(ordered=is_ordered)
        for id_ in "xyz":
            await rig.put_entries(
                [rig.entry(f"{id_}{at}", key=f"{at}", max_attempts=1) for at in range(12)]
            )
        receipts = await self._first(rig, lease_ms=100)
        if verb == "bury":
            await rig.bury(receipts[3:4])
        else:
            await rig.release(receipts[3:4], counted=False)
            await rig.take_by_ids("x3", lease_ms=1_000)
        state, start = await rig.get("x3"), len(await rig.events())
        rig.advance(100)
        await rig.tick()
        assert await rig.get("x3") == state
        assert [event.id for event in await rig.events(start) if event.id == "x3"] == []

    async def _first(self, rig: Rig, lease_ms: int) -> U64:
        batch = await rig.take(12, lease_ms=lease_ms)
        assert list(batch.ids) == [f"x{at}" for at in range(12)]
        return receipts_of(batch)

    @scenario
    async def test_bury_frees_the_message_from_its_owner(self, rig: Rig) -> None:
        """A dead message is held by no owner, and has no lease."""
        receipts = await taken(rig, "x")
        await rig.bury(receipts)
        start = len(await rig.events())
        assert len(await rig.store.held("me")) == 0
        rig.advance(10**6)
        assert await rig.tick() is None
        assert await rig.events(start) == []
