"""Whatever bytes come: an answer or a refusal, never a surprise, and nothing is half done.

``DWELL_FUZZ`` says how many inputs to try; with it they are other ones each time.
"""

import asyncio
import contextlib
import io
import os
import struct
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import get_args
from urllib.parse import quote, urlencode

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dwell.batch.puts import Puts
from dwell.batch.stats import TopicStats
from dwell.clock import RealClock
from dwell.message import MAX_BODY_BYTES, MAX_DELAY_MS, MAX_LEASE_MS, State, encode_extra
from dwell.queue import Queue
from dwell.server.http.api import ENDPOINTS
from dwell.server.http.app import App
from dwell.server.http.delivery import Delivery
from dwell.server.http.media import Media
from dwell.server.http.waits import Waits
from dwell.server.inflight import InFlight
from dwell.server.service import Service
from dwell.server.tokens import Tokens
from dwell.store.memory import MemoryStore
from dwell.wire.columns import PutColumns, ReceiptColumns, columns_of_puts
from dwell.wire.problems import CLASSES
from tests.damage import WAYS, damages

FUZZ = int(os.environ.get("DWELL_FUZZ", "0"))
PUT = "/v1/topics/t/messages"
_STATES = ("delayed", "ready", "leased", "dead")

if FUZZ:
    pytestmark = pytest.mark.timeout(0)

#: So many inputs are asked of one server; then comes a new one, as what was put stays in it.
_PER_SERVER = 100


def fuzz(share, **strategies):
    """Try a share of all inputs, in percent."""
    how = settings(
        max_examples=max((FUZZ or 10_000) * share // 100 // WAYS, 1),
        deadline=None,
        derandomize=not FUZZ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: how(given(**strategies)(test))


class Reader(Delivery):
    """A connection whose client reads every answer at once."""

    def deliver(self, undo):
        pass


class Room:
    """A server without sockets: what comes from the wire goes straight to the application."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.asked, self.statuses = 0, Counter()
        self._open()

    def _open(self):
        self.queue = Queue(MemoryStore(RealClock()))
        self.loop.run_until_complete(self.queue.open())
        self.service = Service(self.queue, Tokens(), InFlight(100, 1 << 28), 0)
        self.app = App(self.service, Waits())
        self.receipts = []

    def close(self):
        self.loop.run_until_complete(self.queue.close())

    def run(self, call):
        return self.loop.run_until_complete(call)

    def ask(self, method, path, data=b"", query=b"", **headers):
        """Send a request; return the status and the answer. It must be one that is known."""
        status, answer = self.send(method, path, data, query, **headers)
        self.statuses[status] += 1
        return status, answer

    def send(self, method, path, data=b"", query=b"", **headers):
        """Send a request that does not count as one of the inputs."""
        self.asked += 1
        if self.asked % _PER_SERVER == 0:
            self.close()
            self._open()
        delivery = Reader()
        # The client has ended its half, so that no take waits.
        delivery.end()
        target = (quote(path) + "?" + quote(query, safe="=&%+")).encode()
        heads = {n.replace("_", "-").encode(): v for n, v in headers.items()}
        heads[b"host"] = b"localhost"
        status, answer = self.run(
            asyncio.wait_for(self._ask(method, target, heads, data, delivery), 20)
        )
        assert self.service.in_flight.requests == self.service.in_flight.size_bytes == 0
        self._check(status, answer)
        return status, answer

    async def _ask(self, method, target, headers, data, delivery):
        try:
            call = self.app.call(method, target, headers, delivery)
            self.app.begin(call)
            call.add(data[:10])
            call.add(data[10:])
        except Exception as error:
            answer = self.app.refusal(error)
        else:
            answer = await self.app.answer(call)
            call.deliver()
            call.release_answer()
        return answer.status, answer.data

    def _check(self, status, answer):
        if status != 200:
            problem = msgspec.json.decode(answer)
            assert status in (400, 404, 405, 406, 409, 413, 415), problem
            assert problem["status"] == status
            assert problem.get("error", "InvalidInput") in CLASSES

    def books(self):
        """Return how many messages there are and were."""
        stats = self.run(self.queue.stats())
        there = sum(getattr(topic, s) for topic in stats.topics.values() for s in _STATES)
        return there, Counter(stats.totals)

    def put(self, data, content, query=b""):
        """Put something; what is refused changes nothing, what is taken can be read again."""
        before = self.books()
        status, answer = self.ask("POST", PUT, data, query, content_type=content)
        if self.asked % _PER_SERVER == 0:
            before = (0, Counter())
        there, totals = self.books()
        if status != 200:
            assert (there, totals) == before
        else:
            assert there - before[0] == totals["put"] - before[1]["put"]
            self.read_all()
        return status, answer

    def read_all(self):
        """Look at every message in every way, and then forget it."""
        now_ms = self.queue.clock.now_ms()
        counts = self.run(self.queue.stats()).topics.get("t", TopicStats())
        for state in filter(lambda name: getattr(counts, name), _STATES):
            for form in (Media.JSON, Media.MSGPACK, Media.NDJSON, Media.ARROW, Media.COLUMNS):
                query = b"limit=10000&state=" + state.encode()
                assert self.send("GET", PUT, b"", query, accept=form.encode())[0] == 200
            for message in self.run(self.queue.scan("t", state, limit=10_000)).messages:
                assert len(message.body) <= MAX_BODY_BYTES
                assert 0 <= message.due_ms <= now_ms + MAX_DELAY_MS + 1000
                assert 0 <= message.expires_ms <= now_ms + MAX_DELAY_MS + 1000
                assert 0 <= message.lease_ms <= MAX_LEASE_MS
                assert 1 <= len(message.id.encode()) <= 256
                assert message.key is None or 1 <= len(message.key.encode()) <= 256
        batch = self.run(self.queue.take("t", 10_000))
        self.run(self.queue.ack(batch))
        for state in (State.DELAYED, State.DEAD):
            page = self.run(self.queue.scan("t", state, limit=10_000)).messages
            self.run(self.queue.cancel("t", list(page.ids)))


@pytest.fixture(scope="module")
def room():
    made = Room()
    yield made
    made.close()
    made.loop.close()
    # It has to have found the way in, or it has proved nothing. Where other processes run tests of
    # this file too, a room may have been asked too little to say.
    if made.statuses.total() < 1000:
        return
    assert made.statuses[200] > made.statuses.total() // 20
    assert made.statuses[400] > made.statuses.total() // 20


# --- values ---------------------------------------------------------------------------------------

_EDGES = [0, 1, -1, 2**15, 2**16, 2**31, 2**32 - 1, 2**32, 2**52, 2**53, 2**62, 2**63 - 1]
_TEXTS = [
    *("", "t", "a", "~", "~1-1", "a b", "ä€", "\0", "\n", "x" * 201, "ä" * 200, "0" * 32, "f" * 32),
    *("1h", "1h30m", "250ms", "-1s", "1e3", "0", "1.5", "9" * 30, "NaN", "inf", "100000d"),
    *("2030-01-31T09:00:00Z", "2030-01-31", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00Z"),
    *("keep", "replace", "error", "delayed", "ready", "leased", "dead", "gone", "eA==", "!"),
    *("5.5", "--5.1", "5.-1", "²", "5.²", ".", "1.", ".1", "add", "pop", "finish", "delete"),
]
_text = st.sampled_from(_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=6)
_number = st.sampled_from([*_EDGES, *(-n for n in _EDGES)]) | st.integers(-10, 10_000)
_float = st.floats() | st.sampled_from([0.5, 1e18, -0.0])
_raw = st.sampled_from([b"1e400", b"-0", b"1" * 30, b'"\\ud800"', b"[" * 2000]).map(msgspec.Raw)
_scalar = _raw | st.none() | st.booleans() | _number | _float | _text | st.binary(max_size=6)
_value = st.recursive(
    _scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
)

#: What makes sense for a field, so that one that does not stands beside others that do.
_GOOD = {
    "body": _text | st.binary(max_size=6) | _value,
    "body_base64": st.sampled_from(["", "eA==", "/w=="]),
    "id": st.sampled_from("abc"),
    "ids": st.lists(st.sampled_from("abc"), max_size=3),
    "topic": st.just("t"),
    "topics": st.sampled_from(["t", ["t"], ["t", "u"], "t,u"]),
    "receipts": st.lists(st.sampled_from(["0" * 32, "f" * 32]), max_size=3),
    "numbers": st.lists(st.sampled_from([0, 1, 2**63 - 1]), max_size=3),
    "delay": st.sampled_from(["1h", 0, 0.5, 60]),
    "due": st.sampled_from(["2030-01-31T09:00:00Z", 0, 4_000_000_000_000]),
    "due_ms": st.sampled_from([0, 1000, 4_000_000_000_000]),
    "expires_ms": st.sampled_from([1, 1000, 4_000_000_000_001]),
    "filter": st.fixed_dictionaries(
        {},
        optional={
            "key": _text,
            "headers": st.just({"h": "v"}),
            "error": _text,
            "attempt_from": st.integers(0, 3),
            "where": st.sampled_from(["a", "@", "n > `1`"]),
        },
    ),
    "where": st.sampled_from(["a", "@", "n > `1`"]),
    "attempt_to": st.integers(0, 3),
    "headers": st.just({"h": "v"}),
    "command": st.sampled_from(["add", "pop", "finish", "delete"]),
    "limit": st.integers(1, 10),
    "credit": st.integers(1, 10),
    "cursor": st.sampled_from(["0.0", "5.7", "-1.0", "4000000000000.3"]),
    "state": st.sampled_from(["delayed", "ready", "leased", "dead"]),
    "on_conflict": st.sampled_from(["keep", "replace", "error"]),
}


def _field(name):
    good = _GOOD.get(name)
    return _value if good is None else good | good | good | _value


def _object(kind):
    """Return objects that have the fields of a struct, some of them, and sometimes another."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    needed = {
        field.encode_name: _field(field.encode_name)
        for field in msgspec.structs.fields(kind)
        if field.required or field.encode_name in ("body", "ids")
    }
    some = {name: _field(name) for name in names if name not in needed}
    return st.fixed_dictionaries(needed, optional=some) | st.fixed_dictionaries(
        {}, optional={**needed, **some, "other": _value}
    )


def _body_of(kind):
    if kind is None:
        return _value
    many = [part for part in get_args(kind) or (kind,) if isinstance(part, type)]
    structs = [part for part in many if issubclass(part, msgspec.Struct)]
    objects = st.one_of(*map(_object, structs))
    return objects | objects | st.lists(objects, max_size=3) | _value


def encoded(value, form):
    encode = msgspec.msgpack.encode if form is Media.MSGPACK else msgspec.json.encode
    return encode(value)


# --- rows -----------------------------------------------------------------------------------------

_CALLS = [e for e in ENDPOINTS if e.name not in ("put", "push", "backup", "metrics")]
_JSON = st.sampled_from([Media.JSON, Media.MSGPACK])


@fuzz(24, data=st.data(), form=_JSON, damage=damages)
def test_every_endpoint(room, data, form, damage):
    endpoint = data.draw(st.sampled_from(_CALLS))
    body = encoded(data.draw(_body_of(endpoint.body)), form)
    query = b""
    if msgspec.structs.fields(endpoint.query):
        given_ = data.draw(_object(endpoint.query))
        query = "&".join(f"{name}={value}" for name, value in given_.items()).encode()
    path = endpoint.path.replace("{id:path}", "{id}")
    if data.draw(st.integers(0, 9)):
        path = path.format(topic="t", id="a", poll="p", stream="s", name="n")
    else:
        path = path.format_map(_Odd(data))
    room.run(room.queue.put("t", "x", id="a"))
    headers = {"content_type": form.encode(), "accept": data.draw(_JSON).encode()}
    for some_body, some_query in zip(damage(body), damage(query), strict=True):
        status, _ = room.ask(endpoint.method, path, some_body, some_query, **headers)
        assert status == 200 or endpoint.path not in ("/healthz", "/readyz")


_HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "accept": st.sampled_from([form.encode() for form in Media]) | st.binary(max_size=20),
        "authorization": st.sampled_from([b"Bearer x", b"bearer"]) | st.binary(max_size=20),
        "content_length": st.sampled_from([b"0", b"99999999"]),
        "dwell_now_ms": _text.map(str.encode) | st.binary(max_size=20),
    },
)
_CURSORS = st.from_regex(r"\A[-+]{0,2}[0-9²_ ]{0,19}\.[-+]?[0-9²_ ]{0,19}\Z") | _text


@fuzz(6, cursor=_CURSORS, more=_text, headers=_HEADERS, damage=damages)
def test_lists_and_their_cursors(room, cursor, more, headers, damage):
    given_ = {"cursor": cursor, "state": "ready", "limit": 1}
    if more:
        given_ |= {"header": more, "key": more, "due_from_ms": more}
    room.run(room.queue.put("t", "x", id="a"))
    for query in damage(urlencode(given_).encode()):
        room.ask("GET", PUT, b"", query, **headers)


class _Odd(dict):
    """Odd parts of a path."""

    def __init__(self, data):
        super().__init__()
        self._data = data

    def __missing__(self, name):
        return self._data.draw(_text)


_ROWS = next(e.body for e in ENDPOINTS if e.name == "put")


@fuzz(20, rows=_body_of(_ROWS), form=_JSON, damage=damages, query=st.booleans())
def test_rows_that_are_put(room, rows, form, damage, query):
    for data in damage(encoded(rows, form)):
        room.put(data, form.encode(), b"on_conflict=replace" * query)


@fuzz(10, rows=st.lists(_body_of(_ROWS), max_size=5), damage=damages)
def test_lines_that_are_put(room, rows, damage):
    for data in damage(b"\n".join(map(msgspec.json.encode, rows))):
        room.put(data, Media.NDJSON.encode())


# --- columns --------------------------------------------------------------------------------------


def _puts(count, ids, extras):
    """Return a good put."""
    return Puts(
        topic="t",
        bodies=[b"body"[: n % 5] for n in range(count)],
        due_ms=np.arange(count, dtype=np.int64) * 1000,
        priority=np.full(count, 7, np.uint32),
        lease_ms=np.zeros(count, np.uint32),
        max_attempts=np.full(count, 3, np.uint16),
        expires_ms=np.zeros(count, np.int64),
        ids=[b"id%d" % n for n in range(count)] if ids else None,
        extras=[encode_extra("k", {"h": "v"} if n else None) for n in range(count)]
        if extras
        else None,
    )


_bytes = st.binary(max_size=24)
_column = _number | _bytes | st.integers(0, 3).map(lambda n: b"\1\0\0\0\0\0\0\0" * n) | _value
_extra = _value.map(msgspec.msgpack.encode) | st.just(encode_extra("k", {"h": "v"})) | _bytes
_COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        **{f.name: _column for f in msgspec.structs.fields(PutColumns)},
        "count": st.integers(-1, 5) | _number,
        "ids": st.lists(_text, max_size=3) | _value,
        "extras": st.lists(_extra, max_size=3) | _value,
    },
)


@fuzz(20, count=st.integers(0, 3), ids=st.booleans(), extras=st.booleans(), changes=_COLUMNS,
      most=st.integers(0, 2), damage=damages)  # fmt: skip
def test_columns_that_are_put(room, count, ids, extras, changes, most, damage):
    fields = msgspec.to_builtins(columns_of_puts(_puts(count, ids, extras)), builtin_types=(bytes,))
    fields |= dict(list(changes.items())[:most])
    for data in damage(msgspec.msgpack.encode(fields)):
        room.put(data, Media.COLUMNS.encode())


_RECEIPTS = st.fixed_dictionaries(
    {}, optional={f.name: _column for f in msgspec.structs.fields(ReceiptColumns)}
)


@fuzz(8, verb=st.sampled_from(["ack", "release", "touch", "bury"]), changes=_RECEIPTS,
      damage=damages, own=st.booleans())  # fmt: skip
def test_columns_of_receipts(room, verb, changes, damage, own):
    room.run(room.queue.put("t", "x"))
    batch = room.run(room.queue.take("t"))
    fields = {"receipts": batch.receipts.astype(">u8").tobytes() if own else b"", **changes}
    for data in damage(msgspec.msgpack.encode(fields)):
        before = room.books()
        status, _ = room.ask("POST", f"/v1/{verb}", data, content_type=Media.COLUMNS.encode())
        if status != 200 and room.asked % _PER_SERVER:
            assert room.books() == before


# --- Arrow ----------------------------------------------------------------------------------------

_moments = st.sampled_from([datetime(2030, 1, 1), datetime(1, 1, 1), datetime(9999, 12, 31)])
_TYPES = {
    **dict.fromkeys([pa.int8(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64()], _number),
    **dict.fromkeys([pa.float16(), pa.float32(), pa.float64()], _float),
    **dict.fromkeys([pa.string(), pa.large_string(), pa.string_view()], _text),
    **dict.fromkeys([pa.binary(), pa.large_binary(), pa.binary(3)], st.binary(max_size=3)),
    **dict.fromkeys([pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")], _moments | _number),
    pa.timestamp("us", "UTC"): _moments.map(lambda moment: moment.replace(tzinfo=UTC)),
    pa.timestamp("ns", "Nowhere/Land"): _number,
    pa.date32(): st.sampled_from([date(2030, 1, 1), date(1, 1, 1)]),
    pa.duration("ns"): _number,
    pa.duration("us"): st.just(timedelta(hours=1)) | _number,
    pa.time64("ns"): st.integers(0, 10**12),
    pa.bool_(): st.booleans(),
    pa.null(): st.none(),
    pa.decimal128(20, 2): st.just(Decimal("1.5")),
    pa.list_(pa.int64()): st.lists(_number, max_size=2),
    pa.map_(pa.string(), pa.string()): st.dictionaries(_text, _text, max_size=2).map(
        lambda found: list(found.items())
    ),
    pa.map_(pa.int64(), pa.string()): st.just([(1, "a")]),
    pa.struct([("a", pa.string())]): st.just({"a": "b"}),
    pa.dictionary(pa.int8(), pa.string()): _text,
}
_NAMES = [
    *("id", "due_ms", "due", "delay", "delay_ms", "delay_level", "priority", "lease", "lease_ms"),
    *("max_attempts", "expires_ms", "expires", "ttl", "ttl_ms", "key", "headers", "other"),
]


@st.composite
def _arrow_column(draw, size):
    kind = draw(st.sampled_from(list(_TYPES)))
    values = draw(st.lists(st.none() | _TYPES[kind], min_size=size, max_size=size))
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return pa.nulls(size, kind)


@st.composite
def _streams(draw):
    size = draw(st.integers(0, 3))
    columns = {"body": pa.array([b"x"] * size, pa.binary())}
    if draw(st.integers(0, 5)) == 0:
        columns["body"] = draw(_arrow_column(size))
    for name in draw(st.lists(st.sampled_from(_NAMES), max_size=2, unique=True)):
        columns[name] = draw(_arrow_column(size))
    table, sink = pa.table(columns), io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=draw(st.sampled_from([None, None, "lz4", "zstd"])))
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


@fuzz(12, data=_streams(), damage=damages)
def test_arrow_that_is_put(room, data, damage):
    for some in damage(data):
        room.put(some, Media.ARROW.encode())


def test_views_in_a_buffer_that_is_longer_by_a_byte(room):
    sink = io.BytesIO()
    table = pa.table({"body": pa.array(["a"], pa.string_view()), "id": ["a"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data, size, longer = sink.getvalue(), struct.pack("<q", 16), struct.pack("<q", 17)
    tried = 0
    for at in range(len(data)):
        if data.startswith(size, at):
            changed = data[:at] + longer + data[at + 8 :]
            with contextlib.suppress(pa.ArrowException, OSError):
                buffers = pa.ipc.open_stream(changed).read_all()["body"].chunk(0).buffers()
                if buffers[1].size == 17:
                    tried += 1
                    assert room.put(changed, Media.ARROW.encode())[0] == 200
    assert tried == 1


def test_a_small_stream_that_unpacks_to_a_large_one(room):
    table = pa.table({"body": pa.array([bytes(1 << 20)] * 100, pa.binary())})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    before = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    assert room.put(sink.getvalue(), Media.ARROW.encode())[0] in (400, 413)
    assert pool.max_memory() - before < 200 << 20
