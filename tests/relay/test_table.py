"""Values of AMQP's tables: what is written is known again, and what is none is refused."""

from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import decode

from dwell.relay.rabbitmq import properties, table
from dwell.relay.rabbitmq.properties import Properties

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary().map(bytearray)
    | st.just(Decimal("3.5"))
    | st.just(datetime(2030, 1, 1, tzinfo=UTC))
)
NAMES = st.text(max_size=60)
VALUES = st.recursive(PLAIN, lambda one: st.lists(one) | st.dictionaries(NAMES, one), max_leaves=9)


@given(VALUES)
def test_what_is_written_is_a_value(value):
    table.check(table.value(value))


@given(VALUES, st.binary(min_size=1, max_size=4), st.integers(1, 9))
def test_what_is_longer_or_shorter_is_none(value, more, cut):
    data = table.value(value)
    for wrong in (data + more, data[:-cut] if cut <= len(data) else b""):
        with pytest.raises(ValueError, match="got"):
            table.check(wrong)


@given(st.binary(max_size=30))
@example(b"A\x00\x00\x00\x01")
@example(b"F\x00\x00\x00\x02\x05t")
@example(b"T\x00\x01\x00\x00\x00\x00\x00\x00")
def test_what_passes_can_be_read_by_others(data):
    try:
        table.check(data)
    except ValueError:
        return
    size, _ = decode.embedded_value(data)
    assert size == len(data)


def test_a_timestamp_that_clients_cannot_read_is_refused():
    last_s = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())
    for time_s in (None, 0, last_s):
        found = properties.read(msgspec.msgpack.encode(Properties("m", timestamp=time_s)))
        assert found.timestamp == time_s
    for time_s in (-1, last_s + 1):
        with pytest.raises(ValueError, match=f"^got the time {time_s} s, expected 0 to"):
            properties.read(msgspec.msgpack.encode(Properties("m", timestamp=time_s)))
