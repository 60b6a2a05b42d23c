"""Small domains that the machine draws from, so that its steps affect each other."""

from typing import NamedTuple

from hypothesis import strategies as st

from dwell.message import encode_extra
from dwell.testing.model import Entry

TOPICS = ("a", "b")
IDS = ("1", "2", "3", "4", "5")
OWNERS = ("me", "you")
_YEAR_MS = 366 * 24 * 3_600_000
HEADERS = {"name": "value"}


class Draft(NamedTuple):
    """A message to be put, with times relative to the put."""

    id: str
    delay_ms: int
    priority: int
    lease_ms: int
    max_attempts: int
    expires_in_ms: int | None
    key: str | None

    def entry(self, id_: str, body: bytes, now_ms: int) -> Entry:
        """Return the message."""
        return Entry(
            id=id_,
            body=body,
            due_ms=now_ms + self.delay_ms,
            priority=self.priority,
            lease_ms=self.lease_ms,
            max_attempts=self.max_attempts,
            expires_ms=0 if self.expires_in_ms is None else now_ms + self.expires_in_ms,
            extra=b"" if self.key is None else encode_extra(self.key, HEADERS),
        )


#: A message that is due at once.
PLAIN = Draft("", 0, 1024, 0, 0, None, None)

a_topic = st.sampled_from(("a", "a", "a", "b"))
a_delay_ms = st.sampled_from((0, 500, 1_000, 5_000, 60_000))
a_due_ms = st.sampled_from(
    (0, 0, -1_000, -1, -1, 1, 300, 500, 1_000, 5_000, 3_600_000, 50 * _YEAR_MS)
)
a_lease_ms = st.sampled_from((0, 2_000, 0, 300, 9_000))
a_new_priority = st.sampled_from((None, None, 0, 1024, 2_000))
a_conflict = st.sampled_from(("keep", "replace", "error"))
a_result = st.sampled_from((b"result", None, b"", b"another result"))
an_error = st.sampled_from((None, "", "oops"))
#: Numbers that pick from the values known to the machine; the smallest pick values that a verb can
#: act on.
some_picks = st.lists(st.sampled_from((0, 0, 0, 0, 1, 1, 2, 3, 5, 9)), min_size=1, max_size=4)
some_drafts = st.lists(
    st.builds(
        Draft,
        st.sampled_from(IDS),
        a_due_ms,
        st.sampled_from((1024, 1024, 0, 2**32 - 1)),
        a_lease_ms,
        st.sampled_from((0, 0, 1, 2)),
        st.sampled_from((None, None, None, None, None, 600, 2_000, 5_000, 0, -1)),
        st.sampled_from((None, None, "key", "key", "other")),
    ),
    min_size=1,
    max_size=5,
)
some_keys = st.lists(st.sampled_from(("key", "key", "key", "other", None)), min_size=6, max_size=9)
some_bounds = st.fixed_dictionaries(
    {
        "fair": st.sampled_from((True, True, False)),
        "paused": st.just(False),
        "max_pending": st.just(0),
        "most_leased": st.just(0),
        "ordered": st.sampled_from((False, False, True)),
        "rate": st.sampled_from((0, 0, 5, 20)),
    }
)
some_changes = st.fixed_dictionaries(
    {},
    optional={
        "lease_ms": st.sampled_from((3_000, 400, 1_000)),
        "max_attempts": st.integers(1, 3),
        "retry_delays_ms": st.sampled_from(((), (500, 1_000))),
        "remember_ms": st.sampled_from((0, 1_000, 60_000)),
        "paused": st.sampled_from((False, False, False, True)),
        "max_pending": st.sampled_from((0, 0, 0, 3)),
        "on_full": st.sampled_from(("refuse", "drop")),
        "most_leased": st.sampled_from((0, 0, 0, 1, 2)),
        "ordered": st.booleans(),
        "fair": st.booleans(),
        "rate": st.sampled_from((0, 0, 0, 5, 20)),
        "keep_dead_ms": st.sampled_from((0, 1_000)),
    },
)
