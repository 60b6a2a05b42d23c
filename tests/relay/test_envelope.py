"""What a record had when it came is what it has when it goes, byte for byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell.batch.batch import Batch
from dwell.errors import InvalidHeaders
from dwell.relay import envelope
from dwell.relay.record import Record

NAMES = st.text(max_size=12) | st.sampled_from(["a", "dwell", "x-delay"])
VALUES = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(lambda text: text.encode())
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=5)
KEYS = st.none() | st.binary(max_size=300) | st.text(max_size=80).map(lambda text: text.encode())
BODIES = st.none() | st.binary(max_size=50)


def held(body: bytes | None, extra: bytes) -> Batch:
    """Return a batch as a take gives it, by way of a real store."""
    with dwell.open("memory:") as queue:
        queue.put("t", body or b"", id="i")
        batch = queue.take("t")
    batch.extras = [extra]
    return batch


EMPTY = held(b"", b"")


def through(record: Record) -> Record:
    extra = envelope.extra_of(record, "target")
    EMPTY.bodies, EMPTY.extras = [record.body or b""], [extra]
    (found,) = envelope.records_of(EMPTY)
    return found


@settings(deadline=None)
@given(BODIES, KEYS, HEADERS)
def test_a_record_comes_out_as_it_went_in(body, key, headers):
    headers = [(name, value) for name, value in headers if not name.startswith("dwell-")]
    found = through(Record("in", "id", body, key, headers, origin="in-0-1"))
    assert (found.topic, found.body, found.key, found.headers) == ("target", body, key, headers)
    (origin,) = envelope.origins_of(EMPTY)
    assert origin == "in-0-1"


def test_what_is_text_stands_as_text():
    extra = envelope.extra_of(Record("in", "i", b"", b"k", [("h", b"v")], origin="i"), "to")
    (message,) = held(b"", extra)
    assert message.key == "k"
    assert message.headers == {"dwell-to": "to", "h": "v"}


def test_more_headers_than_a_message_may_have_are_refused():
    many = [(str(at), b"x" * 100) for at in range(200)]
    with pytest.raises(InvalidHeaders, match="headers: got"):
        envelope.extra_of(Record("in", "i", b"", None, many, origin="i"), "to")


@pytest.mark.parametrize("size", [5_000, 9_000, 12_000])
def test_text_and_binary_headers_fit_together(size):
    """A stack trace beside a number in binary, as retry topics have them."""
    headers = [("trace", b"x" * size), ("offset", b"\x00\xff")]
    record = Record("in", "i", b"1", b"k", headers, origin="i")
    assert through(record).headers == headers
    (message,) = held(b"1", envelope.extra_of(record, "target"))
    assert (message.key, message.headers["dwell-to"]) == ("k", "target")
    assert ("trace" in message.headers) == (size == 5_000)


def test_a_header_of_the_record_replaces_none_of_the_relay():
    headers = [("dwell-raw", b"x"), ("dwell-to", b"elsewhere"), ("offset", b"\xff")]
    record = Record("in", "i", b"1", b"k", headers, origin="i")
    assert through(record).headers == headers


LARGE = 20_000


@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("x" * LARGE, {}),
        ("to", {"properties": bytes(LARGE)}),
        ("to", {"origin": "x" * LARGE}),
        ("to", {"headers": [("h", b"x" * LARGE)]}),
        ("to", {"body": None, "key": b"\xff" * LARGE}),
    ],
)
def test_what_is_kept_in_headers_is_bounded_whatever_it_is(target, more):
    given = {"topic": "in", "id": "i", "body": b"", "origin": "i"} | more
    with pytest.raises(InvalidHeaders, match="headers: got"):
        envelope.extra_of(Record(**given), target)


def test_a_message_of_somebody_else_goes_where_all_go():
    with dwell.open("memory:") as queue:
        queue.put("t", b"1", key="k", headers={"a": "b"})
        batch = queue.take("t")
    (found,) = envelope.records_of(batch, "fixed")
    assert (found.topic, found.key, found.headers) == ("fixed", b"k", [("a", b"b")])
