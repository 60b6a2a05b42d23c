"""Drawn messages come out of any store, and into any other, as the page says."""

import itertools
import time

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dwell
from dwell import State
from dwell.message import DEFAULT_PRIORITY
from tests import RUNS
from tests.exports.conftest import KINDS, everything

HOUR_MS = 3_600_000
FAR_MS = 4_102_444_800_000

_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
_names = st.text("ab~äö0", min_size=1, max_size=3).filter(lambda text: text[0] != "~")
DRAWN = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from("ab"),
            "id": st.none() | _names,
            "body": st.binary(max_size=40),
            "due": st.sampled_from([0, 1, 10**9, FAR_MS, FAR_MS + 1]),
            "priority": st.sampled_from([0, DEFAULT_PRIORITY, 2**32 - 1]),
            "lease": st.sampled_from([None, "7s", "7d"]),
            "max_attempts": st.sampled_from([None, 1, 65_535]),
            "expires": st.sampled_from([None, FAR_MS + HOUR_MS]),
            "key": st.none() | _names,
            "headers": st.none() | st.dictionaries(_names, _texts, max_size=2),
            "fate": st.sampled_from(["stay", "stay", "lease", "bury", "bury said"]),
        }
    ),
    max_size=12,
    unique_by=lambda one: (one["topic"], one["id"] or object()),
)
_rounds = itertools.count()


def put(queue, drawn, suffix):
    """Put messages, take some, and bury some of those."""
    for one in drawn:
        words = {
            name: value for name, value in one.items() if name not in ("topic", "fate", "body")
        }
        if one["due"] == 10**9:
            # As a number it would be taken for seconds.
            words["due"] = "1970-01-12T13:46:40Z"
        topic = one["topic"] + suffix
        made = queue.put(topic, one["body"], **words)
        if one["fate"] != "stay":
            taken = queue.take_ids(topic, [made.id], lease="1h")
            if one["fate"].startswith("bury"):
                queue.bury(taken, "no such address" if one["fate"] == "bury said" else None)


def promised(message, store, dead):
    """Return what becomes of an exported message elsewhere, None if nothing does."""
    id_ = f"moved-{store}-{message.id[1:]}" if message.id[0] == "~" else message.id
    headers, expires_ms = dict(message.headers), message.expires_ms
    now_ms = time.time_ns() // 1_000_000
    state = State.READY if message.due_ms <= now_ms else State.DELAYED
    if message.state is State.DEAD:
        if dead == "skip":
            return None
        if dead == "keep":
            state, expires_ms = State.DEAD, None
            if message.last_error is not None:
                headers["dwell-reason"] = message.last_error
    return (
        (message.topic, id_),
        (message.body, message.due_ms, message.priority, message.lease_ms, message.max_attempts),
        (message.key, headers, expires_ms, state),
    )


def told(message):
    expires_ms = None if message.state is State.DEAD else message.expires_ms
    return (
        (message.topic, message.id),
        (message.body, message.due_ms, message.priority, message.lease_ms, message.max_attempts),
        (message.key, dict(message.headers), expires_ms, message.state),
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=20 * RUNS,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(drawn=DRAWN, source=st.sampled_from(KINDS), dead=st.sampled_from(["keep", "put", "skip"]))
def test_what_is_promised_arrives(stores, tmp_path, kind, drawn, source, dead):
    number = next(_rounds)
    suffix, folder = f"{kind}{number}", tmp_path / f"export{number}"
    topics = [f"a{suffix}", f"b{suffix}"]
    if source == kind:
        source = "folder"
    with dwell.open(stores.new(source)) as queue:
        put(queue, drawn, suffix)
        before = everything(queue, topics)
        manifest = queue.export(folder, topics)
        assert everything(queue, topics) == before
    assert manifest.rows == len(before) == len(drawn)
    counted = {(topic, str(state)): count for topic, state, count in by_state(folder)}
    assert counted == {
        (topic, state): count
        for topic, counts in manifest.topics.items()
        for state in ("delayed", "ready", "leased", "dead")
        if (count := getattr(counts, state))
    }
    expected = [
        one for m in before.values() if (one := promised(m, manifest.store, dead)) is not None
    ]
    with dwell.open(stores.new(kind)) as queue:
        for is_again in (False, True):
            done = queue.put_export(folder, dead=dead)
            assert done.balances
            assert done.is_whole
            assert done.total.read == len(before)
            assert (done.total.kept if is_again else done.total.created) == len(expected)
            assert sorted(map(told, everything(queue, topics).values())) == sorted(expected)


def by_state(folder):
    query = "SELECT topic, state, count(*) FROM read_parquet($files) GROUP BY ALL"
    return duckdb.execute(query, {"files": f"{folder}/*.parquet"}).fetchall()
