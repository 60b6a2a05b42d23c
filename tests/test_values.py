import math
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dwell
from dwell.batch.page import Cursor
from dwell.batch.puts import DUE_COUNTED, EXPIRY_COUNTED
from dwell.batch.sweep import Wanted
from dwell.given import columns, values
from dwell.given.receipts import given_receipts
from dwell.message import DELAY_LEVELS_MS, MAX_DELAY_MS, receipts_to_text
from dwell.queue.bulk import puts_of
from dwell.store.memory import MemoryStore

NOW = 1_700_000_000_000
MB = 1024 * 1024
GARBLED = "z" * 32
#: More digits than Python writes.
ENDLESS = 10**5000
FOREIGN = receipts_to_text(np.array([[0xFFFF_FFFF << 32, 1]], dtype=np.uint64))[0]


def named(bad):
    """Name a case after its value, or its kind when that cannot be written."""
    return "endless" if bad is ENDLESS else repr(bad)[:20]


async def check_refused(error, words, use):
    """Let ``use`` be refused by a queue, and prove that nothing was written."""
    async with dwell.Queue(MemoryStore(dwell.SimulatedClock(NOW))) as queue:
        with pytest.raises(error) as caught:
            await use(queue)
        assert type(caught.value) is error
        assert isinstance(caught.value, ValueError)
        for word in words:
            assert word in str(caught.value)
        stats = await queue.stats()
        assert stats.totals == {}
        assert (await queue.events()).events == []
        assert await queue.settings("t") == dwell.TopicSettings()


BAD_TOPICS = ["", "a b", "é", "x" * 201, None, 7, b"t", "a\n", "a/b"]


@pytest.mark.parametrize("topic", BAD_TOPICS)
async def test_bad_topic(topic):
    await check_refused(dwell.InvalidTopic, ["topic", "1-200"], lambda q: q.put(topic, b""))
    await check_refused(dwell.InvalidTopic, ["topic", "1-200"], lambda q: q.put_many(topic, [b""]))
    await check_refused(dwell.InvalidTopic, ["topic", "1-200"], lambda q: q.take([topic]))
    await check_refused(dwell.InvalidTopic, ["topic", "1-200"], lambda q: q.cancel(topic, "a"))


@pytest.mark.parametrize("topics", [[], (), None, 3, {"a": 1}])
async def test_bad_topics(topics):
    await check_refused(dwell.InvalidTopic, ["topics"], lambda q: q.take(topics))


BAD_IDS = ["", "é" * 129, "x" * 257, 7, b"id", "\ud800"]


@pytest.mark.parametrize("bad", [*BAD_IDS, "~", "~1"])
async def test_bad_own_id(bad):
    await check_refused(dwell.InvalidId, ["id: got"], lambda q: q.put("t", b"", id=bad))
    await check_refused(
        dwell.InvalidId, ["ids[1]: got"], lambda q: q.put_many("t", [b"", b""], ids=["a", bad])
    )


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_bad_id_of_a_verb(bad):
    await check_refused(dwell.InvalidId, ["ids[1]: got"], lambda q: q.cancel("t", ["a", bad]))
    await check_refused(dwell.InvalidId, ["ids[0]: got"], lambda q: q.get("t", [bad]))
    await check_refused(
        dwell.InvalidId, ["ids[0]: got"], lambda q: q.reschedule("t", [bad], delay=1)
    )


async def test_ids_must_be_as_many_as_bodies():
    await check_refused(
        dwell.InvalidId, ["got 1", "expected 2"], lambda q: q.put_many("t", [b"", b""], ids=["a"])
    )
    await check_refused(
        dwell.InvalidId, ["ids", "sequence"], lambda q: q.put_many("t", [b""], ids="a")
    )
    await check_refused(dwell.InvalidId, ["ids", "sequence"], lambda q: q.cancel("t", 7))


def test_an_id_that_only_looks_like_the_queues_own_is_accepted():
    ids = ["a\n~b", "b~", "é"]
    assert columns.own_ids(ids, 3) == [id_.encode() for id_ in ids]


@pytest.mark.parametrize("body", [object(), {1, object()}, float, "\ud800"])
async def test_bad_body(body):
    await check_refused(dwell.InvalidBody, ["body: got"], lambda q: q.put("t", body))
    await check_refused(
        dwell.InvalidBody, ["bodies[1]: got"], lambda q: q.put_many("t", [b"", body])
    )


async def test_body_over_the_limit():
    big = b"x" * (MB + 1)
    await check_refused(dwell.InvalidBody, ["1048577 bytes", "1048576"], lambda q: q.put("t", big))
    await check_refused(
        dwell.InvalidBody, ["bodies[1]", "1048577"], lambda q: q.put_many("t", [b"", big])
    )


@pytest.mark.parametrize("bodies", [b"abc", "abc", 7, None, {"a": 1}])
async def test_bodies_that_are_not_a_sequence(bodies):
    await check_refused(
        dwell.InvalidBody, ["bodies", "sequence"], lambda q: q.put_many("t", bodies)
    )


async def test_batch_too_large():
    await check_refused(
        dwell.BatchTooLarge, ["10001", "10000"], lambda q: q.put_many("t", [object()] * 10_001)
    )
    await check_refused(
        dwell.BatchTooLarge, ["17825792", "16777216"], lambda q: q.put_many("t", [b"x" * MB] * 17)
    )
    await check_refused(dwell.BatchTooLarge, ["10001"], lambda q: q.cancel("t", ["a"] * 10_001))
    await check_refused(dwell.BatchTooLarge, ["10001"], lambda q: q.ack(["0" * 32] * 10_001))


BAD_DELAYS = ["", "30", "m", "1h 30m", "-1s", "1.5.5s", "1y", -1, -0.5, float("nan"), float("inf")]
BAD_DELAYS += [1.7e308, -1.7e308]
BAD_DELAYS += [
    timedelta.max,
    timedelta.min,
    timedelta(seconds=-1),
    True,
    b"1s",
    [],
    "9" * 70 + "s",
    "99999999w",
]
BAD_DELAYS += [MAX_DELAY_MS // 1000 + 1, timedelta(days=40_000), 10**400, np.array(5)]
BAD_DELAYS += [np.timedelta64(2, "M"), np.timedelta64(1, "Y"), np.timedelta64(5)]
BAD_DELAYS += [np.timedelta64("NaT"), np.timedelta64(-1, "ms"), np.timedelta64(2**62, "W")]


@pytest.mark.parametrize("bad", [*BAD_DELAYS, ENDLESS], ids=named)
async def test_bad_delay(bad):
    await check_refused(dwell.InvalidTime, ["delay: got"], lambda q: q.put("t", b"", delay=bad))
    await check_refused(dwell.InvalidTime, ["ttl: got"], lambda q: q.put("t", b"", ttl=bad))
    await check_refused(dwell.InvalidTime, ["lease: got"], lambda q: q.put("t", b"", lease=bad))
    await check_refused(
        dwell.InvalidTime,
        ["delay[1]: got"],
        lambda q: q.put_many("t", ["ab"] * 2, delay=[1, bad]),
    )


async def test_bad_delay_of_other_verbs():
    receipt = "0" * 32
    await check_refused(dwell.InvalidTime, ["wait: got"], lambda q: q.take("t", wait=-1))
    await check_refused(dwell.InvalidTime, ["lease: got"], lambda q: q.take("t", lease=0))
    await check_refused(dwell.InvalidTime, ["lease: got"], lambda q: q.touch(receipt, "8d"))
    await check_refused(dwell.InvalidTime, ["delay: got"], lambda q: q.release(receipt, "soon"))
    await check_refused(
        dwell.InvalidTime, ["delay", "retry"], lambda q: q.release(receipt, 1, retry=True)
    )
    await check_refused(dwell.InvalidTime, ["delay: got"], lambda q: q.kick("t", "a", delay=-1))
    await check_refused(dwell.InvalidTime, ["neither"], lambda q: q.reschedule("t", "a"))
    await check_refused(
        dwell.InvalidTime, ["together"], lambda q: q.reschedule("t", "a", delay=1, due=NOW)
    )


BAD_DUES = [datetime(2030, 1, 1), 1.5, "2030-01-01", -1, True, NOW + MAX_DELAY_MS + 1]
BAD_DUES += [np.timedelta64(NOW, "ms"), np.datetime64(NOW, "ms"), np.array(NOW)]
BAD_DUES += [datetime(1969, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize("bad", BAD_DUES, ids=repr)
async def test_bad_due(bad):
    await check_refused(dwell.InvalidTime, ["due: got"], lambda q: q.put("t", b"", due=bad))
    await check_refused(dwell.InvalidTime, ["expires: got"], lambda q: q.put("t", b"", expires=bad))
    await check_refused(
        dwell.InvalidTime, ["due[1]: got"], lambda q: q.put_many("t", [b"", b""], due=[NOW, bad])
    )
    await check_refused(dwell.InvalidTime, ["due: got"], lambda q: q.reschedule("t", "a", due=bad))


@pytest.mark.parametrize(
    "dues",
    [
        np.array([NOW, -1]),
        np.array([NOW, NOW + MAX_DELAY_MS + 1]),
        np.array([NOW, 2**64 - 1], dtype=np.uint64),
        np.array([1.5, 2.5]),
        np.array([True, False]),
        np.array([NOW]),
        np.array([[NOW, NOW]]),
    ],
    ids=repr,
)
async def test_bad_due_arrays(dues):
    await check_refused(dwell.InvalidTime, ["due"], lambda q: q.put_many("t", [b"", b""], due=dues))


@pytest.mark.parametrize(
    "delays",
    [np.array([1.0, np.nan]), np.array([1, -1]), np.array([1, "NaT"], "m8[s]")],
    ids=repr,
)
async def test_bad_delay_arrays(delays):
    await check_refused(
        dwell.InvalidTime, ["delay[1]"], lambda q: q.put_many("t", [b"", b""], delay=delays)
    )


async def test_an_expiry_at_the_epoch_does_not_mean_never():
    for bad in (0, np.int64(0), datetime(1970, 1, 1, tzinfo=UTC)):
        await check_refused(
            dwell.InvalidTime, ["expires: got"], lambda q, v=bad: q.put("t", b"", expires=v)
        )
        for many in ([NOW, bad], [None, bad]):
            await check_refused(
                dwell.InvalidTime,
                ["expires[1]: got"],
                lambda q, v=many: q.put_many("t", [b"", b""], expires=v),
            )
    array = np.array([NOW, 0])
    await check_refused(
        dwell.InvalidTime,
        ["expires[1]: got"],
        lambda q: q.put_many("t", [b"", b""], expires=array),
    )


async def test_two_times_together():
    await check_refused(
        dwell.InvalidTime, ["delay and due"], lambda q: q.put("t", b"", delay=1, due=NOW)
    )
    await check_refused(
        dwell.InvalidTime, ["together"], lambda q: q.put("t", b"", delay=1, delay_level=1)
    )
    await check_refused(
        dwell.InvalidTime, ["expires and ttl"], lambda q: q.put("t", b"", expires=NOW, ttl=1)
    )
    await check_refused(
        dwell.InvalidTime, ["delay and due"], lambda q: q.put_many("t", [b""], delay=1, due=NOW)
    )


async def test_a_ttl_that_ends_before_the_due():
    await check_refused(dwell.InvalidTime, ["ttl"], lambda q: q.put("t", b"", delay="1h", ttl="1h"))
    await check_refused(
        dwell.InvalidTime, ["ttl"], lambda q: q.put_many("t", [b"", b""], delay=[0, 60], ttl=60)
    )


@pytest.mark.parametrize("level", [0, 19, -1, "3", 1.0])
async def test_bad_level(level):
    await check_refused(
        dwell.InvalidTime, ["delay_level", "1 to 18"], lambda q: q.put("t", b"", delay_level=level)
    )


@pytest.mark.parametrize(
    "bad", [-1, 2**32, "1", 1.0, True, np.timedelta64(1, "s"), ENDLESS], ids=named
)
async def test_bad_priority(bad):
    await check_refused(
        dwell.InvalidPriority, ["priority"], lambda q: q.put("t", b"", priority=bad)
    )
    await check_refused(
        dwell.InvalidPriority,
        ["priority[1]"],
        lambda q: q.put_many("t", [b"", b""], priority=[1, bad]),
    )


@pytest.mark.parametrize("bad", [0, 65_536, "1", 1.0])
async def test_bad_max_attempts(bad):
    await check_refused(
        dwell.InvalidAttempts, ["max_attempts"], lambda q: q.put("t", b"", max_attempts=bad)
    )
    await check_refused(
        dwell.InvalidAttempts,
        ["max_attempts[0]"],
        lambda q: q.put_many("t", [b""], max_attempts=[bad]),
    )


@pytest.mark.parametrize("bad", ["", "x" * 257, 7, b"k"])
async def test_bad_key(bad):
    await check_refused(dwell.InvalidKey, ["key"], lambda q: q.put("t", b"", key=bad))
    await check_refused(dwell.InvalidKey, ["key[0]"], lambda q: q.put_many("t", [b""], key=[bad]))


@pytest.mark.parametrize("bad", [{1: "a"}, {"a": 1}, "ab", [("a", "b")], {"a": "x" * 20_000}])
async def test_bad_headers(bad):
    await check_refused(dwell.InvalidHeaders, ["headers"], lambda q: q.put("t", b"", headers=bad))


@pytest.mark.parametrize("bad", ["", "0" * 31, GARBLED, "0 " * 16, None, 7])
async def test_bad_receipt(bad):
    await check_refused(dwell.InvalidReceipt, ["receipt"], lambda q: q.ack([bad]))
    await check_refused(dwell.InvalidReceipt, ["receipt"], lambda q: q.bury(["0" * 32, bad]))


@given(
    st.sampled_from((np.float16, np.float32, np.float64, np.longdouble, np.uint8, np.int32)),
    st.lists(
        st.floats(0, 65_000) | st.sampled_from((70.0, 65_504.0, 1e9, 31_536_002.0)), min_size=1
    ),
)
def test_an_array_of_seconds_says_what_its_values_say(kind, seconds):
    with np.errstate(all="ignore"):
        given = np.array(seconds, np.float64).astype(kind)
    try:
        expected = [values.delay_ms(one) for one in given]
    except dwell.InvalidTime:
        with pytest.raises(dwell.InvalidTime):
            columns.delays(given, len(given))
        return
    assert columns.delays(given, len(given)).tolist() == expected


@given(st.text("a\ud800\U0001f600", max_size=400), st.integers(1, 40))
def test_what_is_kept_of_an_error_is_text_and_no_longer_than_it_may_be(text, times):
    kept = values.error_text(text * times)
    assert kept.encode().decode() == kept
    assert len(kept) <= 1_000
    assert values.error_text(kept) == kept
    assert kept.startswith(text[:20].encode("utf-8", "backslashreplace").decode()[:20])


@pytest.mark.parametrize("bad", ["no", 1, [1], np.array([1, 2]), None])
async def test_bad_flag(bad):
    receipt = "0" * 32
    for what in (receipt, [receipt]):
        for name in ("retry", "counted"):
            await check_refused(
                dwell.InvalidInput,
                [f"{name}: got", "True or False"],
                lambda q, what=what, name=name: q.release(what, **{name: bad}),
            )


_GOOD = st.text("0aF", min_size=32, max_size=32)


@given(st.lists(_GOOD | st.text("0aF g", min_size=30, max_size=34), min_size=1, max_size=3))
def test_a_receipt_is_bad_whatever_stands_beside_it(texts):
    bad = [at for at, text in enumerate(texts) if len(text) != 32 or set(text) - set("0aF")]
    if not bad:
        assert receipts_to_text(given_receipts(texts)) == [text.lower() for text in texts]
        return
    with pytest.raises(dwell.InvalidReceipt, match=rf"^receipts\[{bad[0]}\]: "):
        given_receipts(texts)


@given(st.integers(1, 31))
def test_digits_of_one_receipt_are_no_other_ones(moved):
    texts = ["0" * (32 - moved), "0" * (32 + moved)]
    with pytest.raises(dwell.InvalidReceipt, match=r"^receipts\[0\]: "):
        given_receipts(texts)


async def test_what_was_put_is_not_what_was_taken():
    put = dwell.Put("x", dwell.Result.CREATED)
    await check_refused(
        dwell.InvalidReceipt, ["Put", "a message that was taken"], lambda q: q.ack(put)
    )


async def test_foreign_receipt():
    await check_refused(dwell.ForeignReceipt, ["another store"], lambda q: q.ack(FOREIGN))
    await check_refused(dwell.ForeignReceipt, ["another store"], lambda q: q.touch([FOREIGN]))


@pytest.mark.parametrize("bad", [0, -1, 10_001, "1", 1.0, True])
async def test_bad_limit(bad):
    await check_refused(dwell.InvalidLimit, ["limit", "1 to 10000"], lambda q: q.take("t", bad))
    await check_refused(dwell.InvalidLimit, ["limit"], lambda q: q.scan("t", "dead", limit=bad))
    await check_refused(dwell.InvalidLimit, ["limit"], lambda q: q.kick("t", limit=bad))
    await check_refused(dwell.InvalidLimit, ["limit"], lambda q: q.events(0, bad))


async def test_other_bad_values():
    await check_refused(dwell.InvalidLimit, ["position"], lambda q: q.events(-1))
    await check_refused(dwell.InvalidLimit, ["cursor"], lambda q: q.scan("t", "dead", cursor=7))
    await check_refused(
        dwell.InvalidInput, ["on_conflict"], lambda q: q.put("t", b"", on_conflict="drop")
    )
    await check_refused(dwell.InvalidInput, ["state"], lambda q: q.scan("t", "gone"))
    await check_refused(dwell.InvalidInput, ["state"], lambda q: q.scan("t", 9))
    await check_refused(dwell.InvalidInput, ["error"], lambda q: q.release("0" * 32, error=7))
    await check_refused(dwell.InvalidId, ["owner"], lambda q: q.take("t", owner="x" * 257))


ONE, TWO = np.array("x"), np.array(["x", "y"])


async def test_arrays_that_are_one_value_or_too_many():
    await check_refused(dwell.InvalidBody, ["bodies"], lambda q: q.put_many("t", np.array(b"x")))
    await check_refused(dwell.InvalidId, ["ids"], lambda q: q.put_many("t", [b"x"], ids=ONE))
    await check_refused(dwell.InvalidId, ["ids"], lambda q: q.cancel("t", ONE))
    await check_refused(dwell.InvalidKey, ["key"], lambda q: q.put_many("t", [b"x"], key=ONE))
    await check_refused(
        dwell.InvalidHeaders, ["headers"], lambda q: q.put_many("t", [b""], headers=ONE)
    )
    await check_refused(
        dwell.InvalidPriority, ["priority"], lambda q: q.put_many("t", [b""], priority=ONE)
    )
    await check_refused(dwell.InvalidReceipt, ["receipts"], lambda q: q.ack(np.array(5)))
    await check_refused(
        dwell.InvalidInput, ["on_conflict"], lambda q: q.put("t", b"", on_conflict=TWO)
    )
    await check_refused(dwell.InvalidId, ["owner"], lambda q: q.take("t", owner=TWO))
    await check_refused(dwell.InvalidSettings, ["on_full"], lambda q: q.configure("t", on_full=TWO))


BAD_NUMBERS = [np.array(5), 5, [-1], [2**63], [True], [1.0], [np.timedelta64(1, "s")], [ENDLESS]]


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=lambda bad: f"{type(bad).__name__}")
async def test_bad_numbers(bad):
    await check_refused(dwell.InvalidId, ["numbers"], lambda q: q.named(bad))


BAD_CURSORS = [(0, -1), (0, 2**64), (0, "b"), ("a", 0), (None, 0), (2**70, 1), (0, 1.0)]


@pytest.mark.parametrize("bad", BAD_CURSORS, ids=repr)
async def test_bad_cursor(bad):
    await check_refused(
        dwell.InvalidLimit, ["cursor."], lambda q: q.scan("t", "dead", cursor=Cursor(*bad))
    )


@pytest.mark.parametrize(
    ("error", "field", "bad"),
    [
        (dwell.InvalidTime, "due_from_ms", "x"),
        (dwell.InvalidTime, "due_to_ms", None),
        (dwell.InvalidTime, "due_to_ms", 2**64),
        (dwell.InvalidKey, "key", 7),
        (dwell.InvalidTopic, "topics", 7),
        (dwell.InvalidTopic, "topics", TWO),
        (dwell.InvalidTopic, "topic", ["a b"]),
        (dwell.InvalidInput, "states", None),
        (dwell.InvalidInput, "state", ["gone"]),
    ],
)
async def test_bad_sweep(error, field, bad):
    name = {"topic": "topics", "state": "states"}.get(field, field)
    await check_refused(error, [f"{field}: got"], lambda q: q.sweep(Wanted(**{name: bad})))


async def test_a_sweep_of_what_is_no_wish():
    await check_refused(dwell.InvalidInput, ["wanted: got"], lambda q: q.sweep(None))


BAD_SETTINGS = [
    {"lease": 5},
    {"lease_ms": 0},
    {"lease_ms": "soon"},
    {"lease_ms": "0s"},
    {"lease_ms": [1]},
    {"max_attempts": 0},
    {"max_attempts": 1.5},
    {"retry_delays_ms": [-1]},
    {"retry_delays_ms": 5},
    {"retry_delays_ms": [1] * 257},
    {"remember_ms": -1},
    {"paused": "yes"},
    {"max_pending": -1},
    {"max_pending": ENDLESS},
    {"retry_delays_ms": [ENDLESS]},
    {"on_full": "explode"},
    {"delay_levels_ms": ["1 s"]},
    {"max_attempts": "1s"},
    {"rate": -1},
    {"rate": True},
    {"rate": None},
    {"rate": float("nan")},
    {"rate": float("inf")},
    {"rate": 1e-9},
    {"rate": ENDLESS},
    {"rate": "fast"},
    {"rate": "1/0s"},
    {"rate": "1/8d"},
    {"rate": "-1/s"},
    {"rate": "9999999999/ms"},
    {"rate": "1" * 5000 + "/s"},
    {"rate": "1/" + "9" * 400 + "s"},
]


@pytest.mark.parametrize("changes", BAD_SETTINGS, ids=lambda c: next(iter(c)))
async def test_bad_settings(changes):
    name = next(iter(changes))
    await check_refused(dwell.InvalidSettings, [name], lambda q: q.configure("t", **changes))


@pytest.mark.parametrize(
    ("changes", "name", "expected"),
    [
        ({"lease_ms": "5m"}, "lease_ms", 300_000),
        ({"lease_ms": 5_000}, "lease_ms", 5_000),
        ({"remember_ms": timedelta(days=1)}, "remember_ms", 86_400_000),
        (
            {"retry_delays_ms": ["1s", 2_000, timedelta(seconds=3)]},
            "retry_delays_ms",
            (1000, 2000, 3000),
        ),
        ({"rate": "100/m"}, "rate", 100 / 60),
        ({"rate": "1/5s"}, "rate", 0.2),
        ({"rate": "300/m"}, "rate", 5),
        ({"rate": 0.0}, "rate", 0),
    ],
)
def test_settings_take_spans_and_rates(changes, name, expected):
    assert values.setting_changes(changes) == {name: expected}


#: What a clock of this century counts in seconds, and what is in 1970 as milliseconds.
IN_SECONDS = 1_900_000_000
TODAY_MS = 1_800_000_000_000


@pytest.mark.parametrize("bad", [IN_SECONDS, 10**9, str(IN_SECONDS), np.int64(IN_SECONDS)])
def test_seconds_are_taken_for_no_milliseconds(bad):
    with pytest.raises(dwell.InvalidTime, match="expected milliseconds: those are seconds, so "):
        values.due_ms(bad, TODAY_MS)
    for many in ([TODAY_MS, bad], np.array([TODAY_MS, int(bad)])):
        with pytest.raises(dwell.InvalidTime, match=r"due\[1\]: .* those are seconds"):
            columns.dues(None, many, None, 2, TODAY_MS)
        with pytest.raises(dwell.InvalidTime, match=r"expires\[1\]: .* those are seconds"):
            columns.expiries(many, None, np.zeros(2, np.int64), TODAY_MS)


def test_what_is_meant_as_1970_is_1970():
    moment = datetime(1970, 1, 20, tzinfo=UTC)
    assert values.due_ms(moment, TODAY_MS) == 19 * 86_400_000
    assert values.due_ms(0, TODAY_MS) == 0
    assert values.due_ms(1_900_000_000, 5) == 1_900_000_000
    assert columns.dues(None, [moment], None, 1, TODAY_MS).tolist() == [19 * 86_400_000]


@pytest.mark.parametrize(
    "text", ["2030-01-31T09:00:00Z", "2030-01-31T10:00:00+01:00", "1896080400000"]
)
def test_a_due_may_be_text(text):
    assert values.due_ms(text, TODAY_MS) == 1_896_080_400_000
    assert columns.dues(None, [text, None], None, 2, 7).tolist() == [1_896_080_400_000, 7]


# --- what is accepted -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("30m", 1_800_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("1.5s", 1_500),
        ("0s", 0),
        (values.Millis(250), 250),
        (3, 3_000),
        (0.25, 250),
        (np.int32(2), 2_000),
        (np.float64(0.5), 500),
        (timedelta(minutes=1), 60_000),
        (timedelta(microseconds=1), 1),
        (np.timedelta64(5, "m"), 300_000),
        (np.timedelta64(2, "W"), 1_209_600_000),
        (np.timedelta64(500, "ms"), 500),
        (np.timedelta64(3, "25s"), 75_000),
        (np.timedelta64(1_000_000, "ns"), 1),
        (np.timedelta64(1_000_001, "ns"), 2),
        (np.timedelta64(1, "as"), 1),
    ],
)
def test_delays(given, ms):
    assert values.delay_ms(given) == ms
    assert columns.dues([given, given], None, None, 2, NOW).tolist() == [NOW + ms] * 2


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), NOW),
        (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), NOW),
        (datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC), NOW + 1),
        (NOW - 5, NOW - 5),
        (np.int64(NOW), NOW),
        (0, 0),
    ],
)
def test_dues(given, ms):
    assert values.due_ms(given, NOW) == ms
    assert columns.dues(None, [given, None], None, 2, NOW).tolist() == [ms, NOW]


def test_due_arrays_are_copied():
    given = np.array([NOW, NOW + 1])
    due_ms = columns.dues(None, given, None, 2, NOW)
    given[:] = 0
    assert due_ms.tolist() == [NOW, NOW + 1]
    assert due_ms.dtype == np.int64


def test_delay_arrays_are_seconds():
    assert columns.dues(np.array([0.5, 2]), None, None, 2, NOW).tolist() == [NOW + 500, NOW + 2000]


def test_arrays_of_spans_have_units_of_their_own():
    for unit, ms in (("h", 3_600_000), ("ms", 1), ("us", 1)):
        spans = np.array([1, 0], f"m8[{unit}]")
        assert columns.dues(spans, None, None, 2, NOW).tolist() == [NOW + ms, NOW]
        assert columns.expiries(None, spans[:1], np.array([NOW]), NOW).tolist() == [NOW + ms]


def test_levels():
    assert [values.level_ms(n, DELAY_LEVELS_MS) for n in (1, 18)] == [1_000, 7_200_000]
    assert columns.dues(None, None, [1, 3], 2, NOW, DELAY_LEVELS_MS).tolist() == [
        NOW + 1_000,
        NOW + 10_000,
    ]


def test_expiries():
    due_ms = np.array([NOW, NOW])
    assert columns.expiries(None, None, due_ms, NOW).tolist() == [0, 0]
    assert columns.expiries([NOW + 5, None], None, due_ms, NOW).tolist() == [NOW + 5, 0]
    assert columns.expiries(None, ["1s", None], due_ms, NOW).tolist() == [NOW + 1_000, 0]


@pytest.mark.parametrize(
    ("given", "data"),
    [
        (b"x", b"x"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"xyz")[::2], b"xz"),
        ("é", "é".encode()),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (None, b"null"),
        (b"", b""),
    ],
)
def test_bodies(given, data):
    assert values.body(given) == data
    assert list(columns.bodies([given, b"y"])) == [data, b"y"]
    assert list(columns.bodies(iter([given]))) == [data]


def test_extras_of_one_and_of_many():
    assert columns.extras(None, None, 2) is None
    one, other = columns.extras("k", None, 2)
    assert one == other != b""
    both = columns.extras(["k", None], {"a": "b"}, 2)
    assert [dwell.message.decode_extra(data).key for data in both] == ["k", None]
    assert dwell.message.decode_extra(both[1]).headers == {"a": "b"}


def test_error_text_is_cut_and_made_storable():
    assert values.error_text("x" * 2000) == "x" * 1000
    assert values.error_text("\ud800") == "\\ud800"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "body", [lambda n: n, lambda n: {"a": [1, {"b": n}]}, lambda n: [None, (n,)]]
)
def test_numbers_that_json_cannot_say_are_refused(number, body):
    with pytest.raises(dwell.InvalidBody, match=r"body: got .*nan and infinite"):
        values.body(body(number))


def test_null_and_its_text_are_bodies():
    assert values.body(None) == b"null"
    assert values.body({"a": "null", "b": None, "c": 1.5}) == b'{"a":"null","b":null,"c":1.5}'
    assert values.body("null nan") == b"null nan"


def test_setting_changes_have_only_what_was_named():
    changes = values.setting_changes({"lease_ms": "5s", "retry_delays_ms": [1, "2s"]})
    assert changes == {"lease_ms": 5_000, "retry_delays_ms": (1, 2_000)}
    assert values.setting_changes({}) == {}


def test_a_message_names_what_came_shortened():
    with pytest.raises(dwell.InvalidTopic) as caught:
        values.topic("x" * 100_000)
    assert len(str(caught.value)) < 200
    assert "str 'xxx" in str(caught.value)


def test_what_has_no_ttl_never_expires_whichever_now_it_is_counted_from():
    puts = puts_of("t", ["a", "b"], TODAY_MS, ttl=[None, "1h"])
    assert puts.counted.tolist() == [DUE_COUNTED, DUE_COUNTED | EXPIRY_COUNTED]
    puts.count_anew(5_000)
    assert puts.due_ms.tolist() == [TODAY_MS + 5_000] * 2
    assert puts.expires_ms.tolist() == [0, TODAY_MS + 3_605_000]
