"""Follow-ups: a message that is put in the same step as the ack of another."""

from typing import Any

import pytest

from dwell.batch.outcome import Outcome
from dwell.batch.puts import Puts
from dwell.errors import InvalidInput, TopicFull
from dwell.message import U64
from dwell.testing.rig import Rig, Suite, encoded, receipts_of, scenario, words
from dwell.testing.suite.shards import within_a_shard
from dwell.testing.views import puts_of


def follow_up(rig: Rig, id_: str = "", topic: str = "u", **values: Any) -> Puts:
    """Return a put of one message; without an id the store makes it."""
    return puts_of(topic, [rig.entry(id_, body=b"next", **values)], own_ids=id_ != "")


async def ack_then(rig: Rig, receipts: U64, then: Puts, result: bytes | None = None) -> list[str]:
    """Ack one message, and put another."""
    return words(await rig.store.ack(receipts, None if result is None else [result], then))


class Follows(Suite):
    """Acks with a follow-up."""

    @scenario
    async def test_follow_up_is_put_if_the_ack_counts(self, rig: Rig) -> None:
        """In another topic, due in time, once; its event comes with the ack's."""
        await rig.put("x")
        receipts = receipts_of(await rig.take())
        assert await ack_then(rig, receipts, follow_up(rig, delay_ms=1_000)) == ["acked"]
        assert await ack_then(rig, receipts, follow_up(rig)) == ["stale"]
        assert await rig.find("x") is None
        assert await rig.take_ids(topics="u") == []
        rig.advance(1_000)
        (message,) = await rig.take(topics="u")
        assert (message.topic, message.body, message.attempt) == ("u", b"next", 1)
        assert message.id.startswith("~")
        happened = [event.split()[0] for event in await rig.happened()]
        assert sorted(happened) == ["ack", "put", "put", "take", "take"]

    @scenario
    async def test_stale_receipt_puts_nothing(self, rig: Rig) -> None:
        """Neither when the lease has ended, nor when another has the message."""
        await rig.put("x")
        receipts = receipts_of(await rig.take(lease_ms=1_000))
        rig.advance(1_000)
        assert await ack_then(rig, receipts, follow_up(rig)) == ["stale"]
        await rig.take(owner="another")
        assert await ack_then(rig, receipts, follow_up(rig), b"result") == ["stale"]
        assert await rig.take_ids(topics="u") == []
        assert (await rig.store.results("t", [b"x"])) == [Outcome("leased")]

    @scenario
    async def test_follow_up_comes_with_a_result(self, rig: Rig) -> None:
        """Both are of one ack."""
        await rig.put("x")
        receipts = receipts_of(await rig.take())
        assert await ack_then(rig, receipts, follow_up(rig), b"result") == ["acked"]
        assert (await rig.store.results("t", [b"x"])) == [Outcome("done", b"result")]
        assert len(await rig.take(topics="u")) == 1

    @within_a_shard
    @scenario
    async def test_follow_up_has_what_a_put_has(self, rig: Rig) -> None:
        """Id, key, priority, lease, attempts, expiry and headers."""
        await rig.put("x")
        receipts = receipts_of(await rig.take())
        values: dict[str, Any] = {"key": "k", "priority": 7, "lease_ms": 5_000, "max_attempts": 3}
        then = follow_up(rig, "y", **values, expires_in_ms=9_000, headers={"a": "b"})
        assert await ack_then(rig, receipts, then) == ["acked"]
        message = await rig.get("y", "u")
        assert (message.key, message.priority, message.headers) == ("k", 7, {"a": "b"})
        assert (message.lease_ms, message.max_attempts) == (5_000, 3)
        assert message.expires_ms == rig.now_ms + 9_000
        assert await rig.take_ids(topics="u") == ["y"]

    @within_a_shard
    @scenario
    async def test_follow_up_with_an_existing_id_is_kept(self, rig: Rig) -> None:
        """Of a message, and of a memory; the ack counts."""
        await rig.put("1", "2")
        await rig.put("y", topic="u", body=b"old")
        batch = await rig.take()
        receipts = dict(zip(batch.ids, receipts_of(batch)[:, None], strict=True))
        assert await ack_then(rig, receipts["1"], follow_up(rig, "y")) == ["acked"]
        assert (await rig.get("y", "u")).body == b"old"
        assert await ack_then(rig, receipts["2"], follow_up(rig, "1", "t")) == ["acked"]
        assert await rig.found(encoded(["1", "2"])) == [None] * 2

    @within_a_shard
    @scenario
    async def test_follow_up_with_the_id_of_its_own_message_is_refused(self, rig: Rig) -> None:
        """The message would keep it out; nothing is done, and a stale receipt is stale."""
        await rig.put("1", "2")
        batch = await rig.take(lease_ms=1_000)
        receipts = receipts_of(batch)
        for at, id_ in enumerate(batch.ids):
            for result in (None, b"result"):
                with pytest.raises(InvalidInput, match=f"got '{id_}', expected none of its own"):
                    await ack_then(rig, receipts[at : at + 1], follow_up(rig, id_, "t"), result)
        # One of them is given back, so that the other is no longer one of a whole batch.
        await rig.store.release(receipts[:1], 0, None, counted=True)
        with pytest.raises(InvalidInput):
            await ack_then(rig, receipts[1:], follow_up(rig, batch.ids[1], "t"))
        assert await ack_then(rig, receipts[1:], follow_up(rig, batch.ids[1])) == ["acked"]
        assert await ack_then(rig, receipts[:1], follow_up(rig, batch.ids[0], "t")) == ["stale"]
        assert await rig.take_ids() == [batch.ids[0]]

    @within_a_shard
    @scenario
    async def test_full_topic_refuses_both(self, rig: Rig) -> None:
        """Also one that drops what is put; after a refusal the message is as it was."""
        await rig.put("1", "2")
        await rig.put("full", topic="u")
        batch = await rig.take()
        first, second = receipts_of(batch)[:1], receipts_of(batch)[1:]
        for on_full in ("refuse", "drop"):
            await rig.configure("u", max_pending=1, on_full=on_full)
            for id_ in ("", "new"):
                with pytest.raises(TopicFull):
                    await ack_then(rig, first, follow_up(rig, id_), b"result")
        assert (await rig.store.results("t", [b"1"])) == [Outcome("leased")]
        assert await ack_then(rig, first, follow_up(rig, "full")) == ["acked"]
        assert await ack_then(rig, second, follow_up(rig, topic="v")) == ["acked"]
        assert await rig.take_ids(topics="u") == ["full"]

    @within_a_shard
    @scenario
    async def test_follow_up_of_an_ordered_key_waits_for_those_before_it(self, rig: Rig) -> None:
        """It is the last of its key, and may be taken when its turn comes."""
        await rig.configure(ordered=True)
        await rig.put("1", "2", key="k")
        for expected in ("1", "2", "3"):
            batch = await rig.take()
            assert list(batch.ids) == [expected]
            then = follow_up(rig, "3" if expected == "1" else "", "t", key="k")
            if expected != "3":
                assert await ack_then(rig, receipts_of(batch), then) == ["acked"]

    @scenario
    async def test_follow_up_wakes_takers(self, rig: Rig) -> None:
        """As a put does."""
        await rig.put("x")
        receipts = receipts_of(await rig.take())
        rig.hush()
        await ack_then(rig, receipts, follow_up(rig))
        assert rig.woken["u"] == 1

    @scenario
    async def test_follow_up_is_in_one_step_or_refused(self, rig: Rig) -> None:
        """With an id it may belong to another shard: then nothing is done."""
        refused = 0
        for number in range(20):
            await rig.put("x" + str(number))
            receipts = receipts_of(await rig.take())
            try:
                assert await ack_then(rig, receipts, follow_up(rig, f"y{number}")) == ["acked"]
                assert await rig.find(f"y{number}", "u") is not None
            except InvalidInput:
                refused += 1
                assert await rig.find(f"y{number}", "u") is None
                assert await ack_then(rig, receipts, follow_up(rig)) == ["acked"]
        assert (refused > 0) == (self.shards > 1)  # type: ignore[attr-defined]
