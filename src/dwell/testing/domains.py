"""The small worlds that the machine draws from, so that what it does meets."""

from hypothesis import strategies as st

from dwell.message import TopicSettings, encode_extra

TOPICS = ("a", "b")
IDS = ("1", "2", "3", "4", "5")
OWNERS = ("me", "you")
_YEAR_MS = 366 * 24 * 3_600_000
EXTRA = encode_extra("key", {"name": "value"})

a_topic = st.sampled_from(("a", "a", "a", "b"))
a_delay_ms = st.sampled_from((0, 500, 1_000, 5_000, 60_000))
a_due_ms = st.sampled_from(
    (0, 0, -1_000, -1, -1, 1, 300, 500, 1_000, 5_000, 3_600_000, 50 * _YEAR_MS)
)
a_lease_ms = st.sampled_from((0, 2_000, 0, 300, 9_000))
a_new_priority = st.sampled_from((None, None, 0, 1024, 2_000))
a_conflict = st.sampled_from(("keep", "replace", "error"))
an_error = st.sampled_from((None, "", "oops"))
#: Numbers that pick from what the machine knows by now; the least pick what a verb can act on.
some_picks = st.lists(st.sampled_from((0, 0, 0, 0, 1, 1, 2, 3, 5, 9)), min_size=1, max_size=4)
some_entries = st.lists(
    st.tuples(
        st.integers(0, len(IDS) - 1),
        a_due_ms,
        st.sampled_from((1024, 1024, 0, 2**32 - 1)),
        a_lease_ms,
        st.sampled_from((0, 0, 1, 2)),
        st.sampled_from((None, None, None, None, None, 600, 2_000, 5_000, 0, -1)),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
some_settings = st.builds(
    TopicSettings,
    lease_ms=st.sampled_from((3_000, 400, 1_000)),
    max_attempts=st.integers(1, 3),
    retry_delays_ms=st.sampled_from(((), (500, 1_000))),
    remember_ms=st.sampled_from((0, 1_000, 60_000)),
    paused=st.sampled_from((False, False, False, True)),
    max_pending=st.sampled_from((0, 0, 0, 3)),
    on_full=st.sampled_from(("refuse", "drop")),
)
