"""Rows of a put: what they say column by column is what they say one by one."""

import asyncio
import json

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dwell.batch.puts import Puts
from dwell.errors import InvalidInput
from dwell.server.http import newrows
from dwell.server.http.media import Media
from dwell.server.http.putrows import Times, bodies_of, in_columns, one_by_one
from tests.http.newrows import rows_of

TIMES = Times(1_800_000_000_000, (1_000, 60_000))

spans = st.sampled_from(["5s", "1h", "7", "0.5", 3, 0.25, 0, -1, "x", "90d", ""])
millis = st.sampled_from([0, 1, 250, 3_600_000, -5, 10**15])
moments = st.sampled_from(
    [1_800_000_000_000, 1_900_000_000_000, 5, 1_800_000_000, "2030-01-31T09:00:00Z", "soon", -1]
)
FIELDS = {
    "delay": spans,
    "delay_ms": millis,
    "due": moments,
    "due_ms": moments.filter(lambda moment: isinstance(moment, int)),
    "delay_level": st.sampled_from([0, 1, 2, 3]),
    "id": st.sampled_from(["a", "b", "~c", "", "x" * 300]),
    "priority": st.sampled_from([0, 7, -1, 2**32]),
    "lease": spans,
    "lease_ms": millis,
    "max_attempts": st.sampled_from([1, 9, 0, 70_000]),
    "ttl": spans,
    "ttl_ms": millis,
    "expires": moments,
    "expires_ms": moments.filter(lambda moment: isinstance(moment, int)),
    "key": st.sampled_from(["k", "", "k" * 300]),
    "headers": st.sampled_from([{}, {"a": "b"}]),
}
bodies = st.sampled_from(["x", "", "tab\t", 'quote"', "\u00e9", {"n": 1}, [1], 7, None, True])


@st.composite
def some_rows(draw):
    """Rows that mostly say the same fields, and mostly what is good."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True))
    size = draw(st.integers(2, 5))
    row = st.fixed_dictionaries({"body": bodies, **{name: FIELDS[name] for name in names}})
    rows = draw(st.lists(row, min_size=size, max_size=size))
    if names and draw(st.integers(0, 2)) == 0:
        del rows[draw(st.integers(0, size - 1))][names[0]]
    return rows


def singly(rows):
    """Return what rows say, looked at one by one, or the error that they are refused with."""
    try:
        return asyncio.run(one_by_one("t", rows, asyncio.run(bodies_of(rows)), TIMES))
    except InvalidInput as error:
        return type(error)


@given(some_rows())
@example([{"body": "x", "headers": {"a": "b"}}, {"body": "x", "headers": {}}])
def test_columns_say_what_rows_say(written):
    rows = rows_of(msgspec.json.encode(written), Media.JSON)
    found, expected = in_columns("t", rows, asyncio.run(bodies_of(rows)), TIMES), singly(rows)
    if found is None:
        return
    assert isinstance(expected, Puts), (expected, written)
    for name in ("due_ms", "priority", "lease_ms", "max_attempts", "expires_ms", "counted"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    for name in ("bodies", "ids", "extras"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours and list(ours)) == (theirs and list(theirs)), name


def read(data, form):
    """Return what the messages of a body say, or that it is refused."""
    try:
        rows = rows_of(data, form)
    except InvalidInput:
        return None
    fields = msgspec.structs.asdict
    return [
        {name: bytes(v) if isinstance(v, msgspec.Raw) else v for name, v in fields(row).items()}
        for row in rows
    ]


#: What may stand in a body where a sign is put that does not belong there.
_SIGNS = (b"", b",", b"]", b"[", b"{", b"}", b'"', b"\\", b" ", b"\n", b"\x80", b"\xff", b"\x91")


@given(some_rows(), st.data())
@pytest.mark.parametrize("form", [Media.JSON, Media.MSGPACK])
def test_messages_read_one_by_one_are_those_read_at_once(form, written, data):
    if form is Media.JSON:
        body = json.dumps(written, indent=data.draw(st.sampled_from([None, 1]))).encode()
    else:
        body = msgspec.msgpack.encode(written)
    begin = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(begin, min(begin + 2, len(body))))
    body = body[:begin] + data.draw(st.sampled_from(_SIGNS)) + body[end:]
    expected = read(body, form)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(newrows, "AT_ONCE_BYTES", -1)
        assert read(body, form) == expected, body


@pytest.mark.parametrize(
    ("form", "data", "refusal"),
    [
        (Media.JSON, b'[{"body":1},{"body":2,"priority":"x"}]', "messages[1]: Expected `int"),
        (Media.JSON, b'[{"body":1},{"body":2]', "messages[1]: JSON is malformed"),
        (Media.JSON, b'[{"body":1},{"body":2}', "messages[1]: JSON is malformed"),
        (Media.JSON, b'[{"body":1}] 5', "body: JSON is malformed: trailing characters (byte 13)"),
        (Media.JSON, b'[{"body":1},]', "messages[1]: JSON is malformed"),
        (Media.JSON, b'[{"body":1},5]', "messages[1]: Expected `object`, got `int`"),
        (Media.JSON, b'[{"body":1},{"bode":1}]', "messages[1]: Object contains unknown field"),
        (Media.JSON, b'[{"body":"\xff"}]', "messages[0]: 'utf-8' codec"),
        (Media.MSGPACK, b"\x92\x80", "messages[1]: Input data was truncated"),
        (Media.MSGPACK, b"\x91\x80\x80", "body: MessagePack is malformed: trailing characters"),
    ],
)
def test_a_bad_message_of_many_bytes_is_named(form, data, refusal, monkeypatch):
    monkeypatch.setattr(newrows, "AT_ONCE_BYTES", -1)
    with pytest.raises(InvalidInput) as raised:
        rows_of(data, form)
    assert str(raised.value).startswith(refusal)


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - {"headers"}))
def test_a_field_that_all_rows_say_is_a_column(name):
    good = {
        "id": ["a", "b"],
        "lease_ms": [5, 9],
        "due": [1_900_000_000_000, "2030-01-31T09:00:00Z"],
    }
    usual = {"delay": "5s", "lease": "1m", "ttl": "1h", "expires": 1_900_000_000_000, "key": "k"}
    first = good.get(name, [usual.get(name, 1)] * 2)
    if name in ("due_ms", "expires_ms"):
        first = [1_900_000_000_000] * 2
    rows = [{"body": "x", name: value} for value in first]
    read = rows_of(msgspec.json.encode(rows), Media.JSON)
    assert in_columns("t", read, asyncio.run(bodies_of(read)), TIMES) is not None
