"""Results: what an ack keeps, for how long, and how an outcome reads."""

from collections.abc import Sequence

import numpy as np
import pytest

from dwell.batch.outcome import UNKNOWN, Outcome
from dwell.errors import StoreDamaged
from dwell.message import U64, State
from dwell.testing.rig import Rig, Suite, encoded, receipts_of, scenario, words
from dwell.testing.suite.receipts import taken
from dwell.testing.suite.shards import within_a_shard

_REMEMBER_MS = 60_000


async def outcomes(rig: Rig, *ids: str, topic: str = "t") -> list[Outcome]:
    """Return what came of messages."""
    found = await rig.store.results(topic, encoded(ids))
    assert not any(isinstance(one, StoreDamaged) for one in found)
    return list(found)  # type: ignore[arg-type]


async def done(rig: Rig, *ids: str, results: Sequence[bytes | None]) -> None:
    """Put, take and ack messages with results."""
    await rig.configure(remember_ms=_REMEMBER_MS)
    await rig.put(*ids)
    batch, own = await rig.take(), dict(zip(ids, results, strict=True))
    acked = await rig.store.ack(receipts_of(batch), [own[id_] for id_ in batch.ids])
    assert words(acked) == ["acked"] * len(ids)


class Results(Suite):
    """Results of acks, and outcomes."""

    @scenario
    async def test_outcome_follows_a_message(self, rig: Rig) -> None:
        """It tells each state on the way, and the reason of a death."""
        await rig.configure(remember_ms=_REMEMBER_MS)
        assert await outcomes(rig, "x", topic="none") == [UNKNOWN]
        await rig.put("x", "y", delay_ms=1_000)
        assert await outcomes(rig, "x", "?", "y") == [
            Outcome("delayed"),
            UNKNOWN,
            Outcome("delayed"),
        ]
        rig.advance(1_000)
        assert await outcomes(rig, "x") == [Outcome("ready")]
        first = receipts_of(await rig.take_by_ids("x"))
        assert await outcomes(rig, "x") == [Outcome("leased")]
        await rig.bury(receipts_of(await rig.take()), "because")
        await rig.store.ack(first, [b"result"])
        assert await outcomes(rig, "y", "x") == [
            Outcome("dead", error="because"),
            Outcome("done", b"result"),
        ]
        assert await rig.cancel("y") == ["cancelled"]
        assert await outcomes(rig, "y") == [UNKNOWN]

    @scenario
    async def test_each_message_has_its_own_result(self, rig: Rig) -> None:
        """A batch may mix results with none; an empty result is one."""
        ids = [f"{number}" for number in range(100)]
        results = [None if n % 3 == 0 else b"%d" % n * (n % 3 - 1) for n in range(100)]
        await done(rig, *ids, results=results)
        assert await outcomes(rig, *ids) == [Outcome("done", result) for result in results]

    @scenario
    async def test_result_is_kept_as_long_as_the_id(self, rig: Rig) -> None:
        """To the millisecond."""
        await done(rig, "x", results=[b"result"])
        rig.advance(_REMEMBER_MS - 1)
        assert await outcomes(rig, "x") == [Outcome("done", b"result")]
        assert await rig.put("x") == ["kept"]
        rig.advance(1)
        assert await outcomes(rig, "x") == [UNKNOWN]
        assert await rig.put("x") == ["created"]

    @scenario
    async def test_outcome_outlives_an_unused_topic(self, rig: Rig) -> None:
        """The store may drop a topic that holds nothing and has the usual settings."""
        await rig.store.ack(await taken(rig, "x"), [None])
        assert await outcomes(rig, "x") == [Outcome("done")]
        await rig.configure()
        assert await outcomes(rig, "x") == [Outcome("done")]
        assert await rig.put("x") == ["kept"]

    @scenario
    async def test_results_of_made_ids_are_kept_too(self, rig: Rig) -> None:
        """But an ack without one leaves nothing of such an id."""
        await rig.configure(remember_ms=_REMEMBER_MS)
        ids = await rig.put_made(3)
        batch = await rig.take()
        assert sorted(batch.ids) == sorted(ids)
        results = {id_: b"of " + id_.encode() for id_ in ids[:2]}
        await rig.store.ack(receipts_of(batch), [results.get(id_) for id_ in batch.ids])
        kept = [Outcome("done", results[id_]) for id_ in ids[:2]]
        assert await outcomes(rig, *ids) == [*kept, UNKNOWN]
        rig.advance(_REMEMBER_MS)
        assert await outcomes(rig, *ids) == [UNKNOWN] * 3

    @scenario
    async def test_topic_that_remembers_nothing_keeps_no_result(self, rig: Rig) -> None:
        """The ack counts all the same."""
        await rig.configure(remember_ms=0)
        receipts = await taken(rig, "x")
        assert words(await rig.store.ack(receipts, [b"result"])) == ["acked"]
        assert await outcomes(rig, "x") == [UNKNOWN]
        assert await rig.put("x") == ["created"]

    @scenario
    async def test_stale_receipt_keeps_nothing(self, rig: Rig) -> None:
        """Neither one whose lease is over, nor a second ack, nor a receipt twice in a batch."""
        await rig.configure(remember_ms=_REMEMBER_MS)
        late = await taken(rig, "late", lease_ms=1_000)
        rig.advance(1_000)
        assert words(await rig.store.ack(late, [b"late"])) == ["stale"]
        assert await outcomes(rig, "late") == [Outcome("ready")]
        receipts = receipts_of(await rig.take())
        assert words(await rig.store.ack(receipts[[0, 0]], [b"first", b"second"])) == [
            "acked",
            "stale",
        ]
        assert words(await rig.store.ack(receipts, [b"third"])) == ["stale"]
        assert await outcomes(rig, "late") == [Outcome("done", b"first")]

    @pytest.mark.parametrize("on_conflict", ["replace", "error"])
    @scenario
    async def test_put_over_a_memory_ends_the_result(self, rig: Rig, on_conflict: str) -> None:
        """The id stands for the new message, and for nothing older once that is gone."""
        await done(rig, "x", "y", results=[b"old", b"of y"])
        assert await rig.put("x", on_conflict=on_conflict) == ["created"]
        assert await outcomes(rig, "x", "y") == [Outcome("ready"), Outcome("done", b"of y")]
        assert [one.id for one in await rig.take()] == ["x"]
        rig.advance(60_000)
        assert await rig.cancel("x", "y") == ["cancelled", "unknown"]
        assert await outcomes(rig, "x", "y") == [UNKNOWN, UNKNOWN]

    @scenario
    async def test_put_over_a_memory_leaves_the_memory(self, rig: Rig) -> None:
        """Cancelled again, the id is still remembered as done, without a result."""
        await done(rig, "x", results=[b"old"])
        assert await rig.put("x", on_conflict="replace") == ["created"]
        assert await rig.cancel("x") == ["cancelled"]
        assert await outcomes(rig, "x") == [Outcome("done")]
        assert await rig.put("x") == ["kept"]

    @scenario
    async def test_message_with_a_kept_result_is_gone(self, rig: Rig) -> None:
        """For every verb, for counts and for readers it is as after an ack without a result."""
        await done(rig, "x", results=[b"result"])
        assert await rig.find("x") is None
        assert await rig.cancel("x") == ["unknown"]
        assert await rig.kick("x") == ["unknown"]
        assert await rig.reschedule("x") == ["unknown"]
        assert len(await rig.take_by_ids("x")) == len(await rig.take()) == 0
        stats = (await rig.store.stats()).topics["t"]
        assert (stats.delayed, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)
        assert await rig.happened() == ["put x", "take x", "ack x"]
        assert (await rig.store.clear_part("t", 0))[0] == 0
        assert await outcomes(rig, "x") == [Outcome("done", b"result")]

    @scenario
    async def test_number_of_a_done_message_names_nothing(self, rig: Rig) -> None:
        """Neither its number nor its receipt."""
        await rig.configure(remember_ms=_REMEMBER_MS)
        await rig.put("x", "y")
        x, y = await rig.take_by_ids("x"), await rig.take()
        numbers = np.concatenate([x.numbers, y.numbers])
        receipts = np.concatenate([receipts_of(x), receipts_of(y)])
        assert await rig.store.named(numbers) == [("t", "x"), ("t", "y")]
        await rig.store.ack(receipts[:1], [b"result"])
        assert await rig.store.named(numbers) == [None, ("t", "y")]
        assert await rig.store.taken_from(receipts) == [None, "t"]

    @scenario
    async def test_results_count_as_stored(self, rig: Rig) -> None:
        """Where a store counts bytes; until they are forgotten."""
        if not rig.store.counts_bytes:
            return
        await done(rig, "x", results=[b"r" * 5_000])
        assert 5_000 <= (await rig.store.stored_bytes())["t"] < 6_000
        rig.advance(_REMEMBER_MS)
        await rig.tick()
        assert (await rig.store.stored_bytes()).get("t", 0) == 0

    @scenario
    async def test_ordered_topic_goes_on_after_a_result(self, rig: Rig) -> None:
        """The next message of the key comes at once."""
        await rig.configure(remember_ms=_REMEMBER_MS, ordered=True)
        await rig.put("1", "2", "3", key="k")
        for id_ in ("1", "2", "3"):
            batch = await rig.take()
            assert list(batch.ids) == [id_]
            await rig.store.ack(receipts_of(batch), [id_.encode()])
        assert [one.result for one in await outcomes(rig, "1", "2", "3")] == [b"1", b"2", b"3"]

    @within_a_shard
    @scenario
    async def test_most_leased_counts_no_results(self, rig: Rig) -> None:
        """A result leaves room for the next lease, and wakes its taker."""
        await rig.configure(remember_ms=_REMEMBER_MS, most_leased=1)
        await rig.put("1", "2")
        batch = await rig.take()
        rig.hush()
        await rig.store.ack(receipts_of(batch), [b"result"])
        assert rig.woken["t"]
        assert len(await rig.take()) == 1

    @scenario
    async def test_ends_are_told_to_those_who_watch(self, rig: Rig) -> None:
        """Every way for a message to end, and only in watched topics."""
        told: list[str] = []
        rig.store.ended = told.append
        rig.store.watched = lambda: ("t",)
        await rig.configure(remember_ms=_REMEMBER_MS, max_attempts=1)
        await rig.put("1", "2", "3", "4", "5", "6")
        await rig.put("7", delay_ms=10, expires_in_ms=5)
        await rig.put("other", topic="u")
        # A store with many instances learns here that somebody watches, in each shard.
        await outcomes(rig, "1", "2", "3", "4", "5", "6", "7")
        assert not told
        batch = await rig.take(lease_ms=3_000)
        ids = list(batch.ids)

        def one(id_: str) -> U64:
            return receipts_of(batch)[[ids.index(id_)]]

        steps = (
            lambda: rig.store.ack(one("1"), [b"result"]),
            lambda: rig.store.ack(one("2")),
            lambda: rig.bury(one("3")),
            lambda: rig.release(one("4")),
            lambda: rig.cancel("4"),
        )
        for step in steps:
            told.clear()
            await step()
            assert set(told) == {"t"}
        told.clear()
        rig.advance(5)
        await rig.tick()
        assert set(told) == {"t"}
        told.clear()
        await rig.take(topics="u")
        await rig.store.cancel("u", [b"other"])
        await rig.touch(one("5"))
        assert not told
        rig.advance(3_000)
        await rig.tick()
        assert set(told) == {"t"}
        assert await rig.state("6") is State.DEAD
