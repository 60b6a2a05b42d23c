"""Short keys: what stands behind the bodies of a block is what the extras say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dwell.message import encode_extra
from dwell.store.redis.shortkeys import ShortKeys

_KEYS = st.none() | st.text(max_size=12) | st.sampled_from(("k" * 31, "k" * 32, "\xe9" * 16))
_EXTRAS = st.tuples(_KEYS, st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=1))


def _texts(data: bytes) -> list[str]:
    found, at = [], 0
    while at < len(data):
        found.append(data[at + 1 : at + 1 + data[at]].decode())
        at += 1 + data[at]
    return found


@given(st.lists(_EXTRAS, min_size=1, max_size=20), st.data())
def test_all_keys_of_a_part_are_there_or_none(pairs, data):
    """One that has no key, or a long one, lets its block have none."""
    extras = [encode_extra(key, headers) for key, headers in pairs]
    keys = ShortKeys(extras, np.array([len(extra) for extra in extras]))
    start = data.draw(st.integers(0, len(pairs) - 1))
    part = slice(start, data.draw(st.integers(start + 1, len(pairs))))
    own = [key for key, _ in pairs[part]]
    are_short = all(key is not None and len(key.encode()) < 32 for key in own)
    assert _texts(keys.of(part)) == (own if are_short else [])
