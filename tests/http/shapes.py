"""Shapes of requests: drawn from what the endpoints declare; some are nearly valid, or nonsense.

What is drawn follows from a seed, and is bounded: a body is as long as its endpoint allows, or a
little longer.
"""

import io
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
import numpy as np
import pyarrow as pa

from dwell.message import MAX_BATCH_MESSAGES, MAX_BODY_BYTES
from dwell.server.http.endpoint import Endpoint
from dwell.server.http.media import Media
from dwell.server.http.openapi import document
from dwell.wire.columns import PutColumns, ReceiptColumns

TOPIC = "t"
_PARAMETER = re.compile(r"{(\w+)(?::path)?}")
_MOST_HEAD_BYTES = 60_000

#: What stands for a text of some meaning: what is valid, and some that nearly is.
_WORDS: dict[str, Sequence[str]] = {
    "topic": (TOPIC, "u", "dwell:schedules", "a" * 200, "a b", ""),
    "id": ("1", "17", "no", "é" * 128, "x" * 257, "a/b c?d", ""),
    "poll": ("p", "x" * 10_000),
    "stream": ("s", "0" * 32),
    "name": ("s1", "s2", "new", "x" * 201),
    "file": ("app.js", "../../etc/passwd"),
    "span": ("30m", "1h30m", "250ms", "9" * 400, "-1s", "1y", ""),
    "when": ("2031-01-31T09:00:00+01:00", "2031-01-31", "now", "9" * 30),
    "cron": ("0 9 * * mon-fri", "*/7 * * * * *", "0 0 30 2 *", "@daily", "* " * 9_000),
    "rrule": (
        "FREQ=DAILY;BYHOUR=9",
        "FREQ=MINUTELY;INTERVAL=7",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=YEARLY;BYSETPOS=-1;BYDAY=MO,TU,WE,TH,FR,SA,SU;BYMONTH=1,2,3,4,5,6,7,8,9,10,11,12",
        "DTSTART;TZID=Asia/Tokyo:20300101T090000\nRRULE:FREQ=DAILY\nEXDATE;VALUE=DATE:20300102",
        "FREQ=DAILY\nEXDATE:" + ",".join(["20300101T090000Z"] * 500),
        "FREQ=DAILY" + "\n " * 4_000,
        "FREQ=" * 5_000,
    ),
    "zone": ("UTC", "Europe/Berlin", "Mars/Phobos", "../UTC"),
    "where": (
        "city == 'Rome'",
        "length(keys(@))",
        "sort_by(items, &n)[-1].n == `3`",
        "@" + "[*]" * 200,
        "map(&map(&map(&@, @), @), [@,@,@])",
        "[" * 600,
        "(",
    ),
    "command": ("add", "pop", "finish", "delete", "nonsense"),
    "cursor": ("0-0", "1-1", "9" * 40, "x"),
    "state": ("ready", "delayed", "leased", "dead", "gone"),
    "header": ("a:b", "a", ":"),
    "owner": ("worker", "w" * 5_000),
    "receipt": ("0" * 32, "f" * 32, "z" * 32, "0"),
    "text": ("", "x", "\x00", "😀" * 50, "x" * 4_000, '"\\', "‮"),
}
#: Which words a field has, by its name; texts of others are of any kind.
_FIELDS: dict[str, str] = {
    **dict.fromkeys(("topic", "topics", "after"), "topic"),
    **dict.fromkeys(("id", "ids"), "id"),
    **dict.fromkeys(("delay", "lease", "ttl", "wait", "every", "jitter", "grace"), "span"),
    **dict.fromkeys(("due", "start", "end", "expires"), "when"),
    **dict.fromkeys(("state", "states"), "state"),
    "receipts": "receipt",
}


class Shape(NamedTuple):
    """One request as bytes, and what made it, for people."""

    data: bytes
    told: str


class Shapes:
    """Draws requests for endpoints from one seed; ``receipts`` are some that are good."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._components: dict[str, Any] = document()["components"]["schemas"]
        self.receipts: Sequence[str] = ()

    def draw(self, endpoint: Endpoint) -> Shape:
        """Return a request: as it may be, with some of it changed, or hardly one."""
        bend = self._chance.choices((0.0, 0.1, 0.5), (5, 4, 2))[0]
        form, body = None, b""
        if endpoint.body is not None:
            form, body = self._body(endpoint, bend)
        path = self._path(endpoint, bend) + self._query(endpoint, bend)
        head = self._head(endpoint, path, form, body, bend)
        told = f"{endpoint.method} {path[:200]} {form} {len(body)} bytes: {body[:200]!r}"
        return Shape(head + body, told)

    # --- head ---------------------------------------------------------------------------------

    def _path(self, endpoint: Endpoint, bend: float) -> str:
        def part(found: re.Match[str]) -> str:
            words = _WORDS[found[1]]
            word = self._word(words, bend)
            return quote(word, safe="" if self._is(0.5) else "/")

        path = _PARAMETER.sub(part, endpoint.path)
        if self._is(bend / 4):
            path += self._chance.choice(("/", "//x", "%", "%00", "%ff", "x" * 5_000))
        return path

    def _query(self, endpoint: Endpoint, bend: float) -> str:
        schema = self._components[endpoint.query.__name__]
        given = self._object(schema, bend)
        pairs = [(name, _text(value)) for name, value in given.items() if value is not None]
        if pairs and self._is(bend / 2):
            pairs.append(self._chance.choice(pairs))
        return f"?{urlencode(pairs)[:_MOST_HEAD_BYTES]}" if pairs else ""

    def _head(
        self, endpoint: Endpoint, path: str, form: str | None, body: bytes, bend: float
    ) -> bytes:
        chance = self._chance
        lines = [f"{endpoint.method} {path} HTTP/1.1", "host: localhost"]
        if form is not None or body:
            lines += [f"content-length: {len(body)}"]
        if form is not None and not self._is(bend / 4):
            lines += [f"content-type: {form}"]
        if endpoint.gives and self._is(0.5):
            lines += [f"accept: {chance.choice(endpoint.gives)}"]
        more = (
            f"dwell-call: {chance.randbytes(16).hex()}",
            f"dwell-call: {chance.randbytes(16).hex()};again",
            f"dwell-now-ms: {chance.choice((1, 10**12, 10**17))}",
            "accept: text/nonsense;q=0.5, */*",
            "expect: 100-continue",
            "content-encoding: gzip",
            "origin: http://example.org",
            "authorization: Bearer x",
            "sec-fetch-site: cross-site",
            "x: " + "y" * chance.choice((1, 1_000, _MOST_HEAD_BYTES // 2)),
        )
        names = {line.partition(":")[0] for line in lines}
        if self._is(max(bend, 0.05)):
            line = chance.choice(more)
            lines += [line] * (line.partition(":")[0] not in names)
        if self._is(bend / 8):
            lines += [f"h{n}: v" for n in range(chance.choice((50, 90, 200)))]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    # --- bodies -------------------------------------------------------------------------------

    def _body(self, endpoint: Endpoint, bend: float) -> tuple[str, bytes]:
        chance = self._chance
        form = chance.choice(endpoint.takes)
        data = _MAKERS[form](self, endpoint, bend)
        if self._is(bend / 3):
            data = self._damaged(data)
        if self._is(0.01):
            # As long as may be, or longer.
            size = endpoint.most_bytes + chance.choice((-1, 0, 1, 1_000_000))
            data += chance.choice((b" ", b"\x00", b"[", b"\n")) * max(size - len(data), 0)
        if self._is(bend / 6):
            form = chance.choice((*Media, "text/plain", "application/json; charset=utf-16"))
        return str(form), data

    def _damaged(self, data: bytes) -> bytes:
        chance = self._chance
        if self._is(0.4):
            return data[: chance.randrange(len(data) + 1)]
        if self._is(0.3):
            return chance.randbytes(chance.choice((1, 100, 10_000)))
        changed = bytearray(data or b"x")
        for _ in range(chance.randrange(1, 6)):
            changed[int(len(changed) * chance.random() ** 3)] = chance.randrange(256)
        return bytes(changed)

    def _value(self, endpoint: Endpoint, bend: float) -> Any:
        """Return what the body is to hold, as objects."""
        if endpoint.name != "put":
            return self._any(self._components[endpoint.body.__name__], bend)
        message = self._components["NewMessage"]
        count = self._count(MAX_BATCH_MESSAGES)
        # Many are alike, as they are where somebody has many.
        kinds = [self._object(message, bend) for _ in range(min(count, 20))]
        rows = [{**self._chance.choice(kinds)} for _ in range(count)]
        return rows[0] if count == 1 and self._is(0.7) else rows

    def _json(self, endpoint: Endpoint, bend: float) -> bytes:
        try:
            return json.dumps(self._value(endpoint, bend), default=repr).encode()
        except UnicodeEncodeError:
            return b'"\xed\xa0\x80"'

    def _msgpack(self, endpoint: Endpoint, bend: float) -> bytes:
        try:
            return msgspec.msgpack.encode(self._value(endpoint, bend))
        except (msgspec.MsgspecError, OverflowError, ValueError, RecursionError):
            return msgspec.msgpack.encode([b"\xff" * 10, -1, 2**64 - 1])

    def _ndjson(self, endpoint: Endpoint, bend: float) -> bytes:
        value = self._value(endpoint, bend)
        rows = value if isinstance(value, list) else [value]
        end = self._chance.choice((b"\n", b"\r\n", b"\n\n"))
        return b"".join(json.dumps(row, default=repr).encode() + end for row in rows)

    def _arrow(self, endpoint: Endpoint, bend: float) -> bytes:
        count = self._count(MAX_BATCH_MESSAGES)
        chance = self._chance
        columns: dict[str, Any] = {
            "body": pa.array(["x" * chance.choice((1, 100))] * count),
            "id": pa.array([f"{chance.randrange(10**9)}.{n}" for n in range(count)]),
            "delay_ms": pa.array([chance.randrange(10**6)] * count),
            "priority": pa.array([1] * count, pa.uint32()),
            "key": pa.array(["k"] * count),
            "headers": pa.array([[("a", "b")]] * count, pa.map_(pa.string(), pa.string())),
        }
        strange: tuple[Any, ...] = (
            pa.nulls(count),
            pa.array([-(2**63)] * count),
            pa.array([float("nan")] * count),
            pa.array([b"\xff"] * count),
            pa.array([[1]] * count),
            pa.array(["x"] * count).dictionary_encode(),
            pa.array([0] * count, pa.timestamp("ns", "Asia/Tokyo")),
        )
        names = [name for name in columns if name == "body" or self._is(0.4)]
        for name in names:
            if self._is(bend):
                columns[name] = chance.choice(strange)
        if self._is(bend):
            names.append(chance.choice(("due", "ttl", "colour", "x" * 10_000)))
            columns[names[-1]] = chance.choice(strange)
        sink = io.BytesIO()
        batch = pa.record_batch([columns[name] for name in names], names=names)
        codec = chance.choice((None, None, None, "lz4", "zstd"))
        with pa.ipc.new_stream(
            sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
        ) as writer:
            writer.write_batch(batch)
        return sink.getvalue()

    def _columns(self, endpoint: Endpoint, bend: float) -> bytes:
        chance = self._chance
        count = self._count(MAX_BATCH_MESSAGES)
        if endpoint.name == "put":
            body = b"x" * chance.choice((1, 100))
            put = PutColumns(
                count=count,
                bodies=body * count,
                sizes=len(body),
                due_ms=chance.choice((0, 10**12, np.arange(count, dtype=np.int64).tobytes())),
                priority=1,
                lease_ms=0,
                max_attempts=chance.choice((0, 3)),
                expires_ms=0,
            )
            given = msgspec.to_builtins(put, builtin_types=(bytes,))
        else:
            receipts = [one for one in self.receipts if self._is(0.5)] or ["0" * 32]
            told = ReceiptColumns(bytes.fromhex("".join(receipts)))
            given = msgspec.to_builtins(told, builtin_types=(bytes,))
        for name in list(given):
            if self._is(bend):
                given[name] = self._strange()
        if self._is(bend):
            given[chance.choice(("versions", "counted", "ids", "extras", "x"))] = self._strange()
        try:
            return msgspec.msgpack.encode(given)
        except (msgspec.MsgspecError, OverflowError, ValueError, RecursionError):
            return msgspec.msgpack.encode({"count": 2**64 - 1, "bodies": b""})

    # --- values -------------------------------------------------------------------------------

    def _is(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _word(self, words: Sequence[str], bend: float) -> str:
        # The first is the usual one.
        return self._chance.choice(words) if self._is(max(bend, 0.3)) else words[0]

    def _count(self, most: int) -> int:
        """Return how many of something there are: mostly few, at times as many as may be."""
        counts = (1, 2, 20, min(most, 500), most, most + 1)
        return self._chance.choices(counts, (30, 20, 10, 3, 1, 1))[0]

    def _any(self, schema: Any, bend: float, name: str = "") -> Any:
        """Return a value of a schema, or, as often as is said, another one."""
        if self._is(bend / 6):
            return self._strange()
        if "$ref" in schema:
            return self._any(self._components[schema["$ref"].rpartition("/")[2]], bend, name)
        if "anyOf" in schema:
            return self._any(self._chance.choice(schema["anyOf"]), bend, name)
        if "enum" in schema:
            return self._chance.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, bend)
        if kind == "array":
            most = schema.get("maxItems", 100)
            count = max(min(self._count(most), most + 1), schema.get("minItems", 0))
            few = [self._any(schema.get("items", {}), bend, name) for _ in range(min(count, 50))]
            return [self._chance.choice(few) for _ in range(count)] if few else []
        if kind in ("integer", "number"):
            return self._number(schema, bend)
        if kind == "boolean":
            return self._is(0.5)
        if kind == "null":
            return None
        return self._written(schema, name, bend) if kind == "string" else self._free()

    def _object(self, schema: Any, bend: float) -> dict[str, Any]:
        required = schema.get("required", ())
        found = {
            name: self._any(part, bend, name)
            for name, part in schema.get("properties", {}).items()
            if (name in required and not self._is(bend / 4)) or self._is(0.25)
        }
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            names = (f"h{n}" for n in range(self._count(300)))
            found |= {name: self._any(extra, bend) for name in names}
        if not self._is(bend):
            _leave_one_way(found)
            _complete(found, schema.get("properties", {}))
        if self._is(bend / 2):
            name = self._chance.choice(("colour", "", "\x00", "x" * 100_000))
            found[name] = self._strange()
        return found

    def _number(self, schema: Any, bend: float) -> int | float:
        low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
        chance = self._chance
        if self._is(bend / 2):
            return chance.choice((low - 1, high + 1, 2**64, -(2**63), 0.5, 1e308))
        usual = max(min(chance.choice((0, 1, 5, 1_000)), high), low)
        return chance.choices(
            (usual, low, high, chance.randint(int(low), int(high))), (6, 1, 1, 1)
        )[0]

    def _written(self, schema: Any, name: str, bend: float) -> str:
        pattern = schema.get("pattern", "")
        if "0-9a-fA-F" in pattern:
            is_good = self.receipts and not self._is(max(bend, 0.1))
            words = self.receipts if is_good else _WORDS["receipt"]
            return self._chance.choice(words)
        kind = "topic" if "A-Za-z0-9" in pattern else _FIELDS.get(name, name)
        return self._word(_WORDS.get(kind, _WORDS["text"]), bend)

    def _free(self) -> Any:
        """Return a body, which may be whatever JSON can say."""
        chance = self._chance
        usual = ("x", {"city": "Rome", "items": [{"n": n} for n in range(5)]}, 1, None, [[]])
        if self._is(0.01):
            return chance.choice(("x", "é", '"', "\x00")) * (MAX_BODY_BYTES // 6)
        return chance.choice(usual)

    def _strange(self) -> Any:
        chance = self._chance
        deep: Any = []
        for _ in range(chance.choice((3, 500))):
            deep = [deep]
        strange = (
            *(None, True, -1, 0, 2**63, 1e300, float("nan"), "", "x" * 70_000, [], {}, deep),
            *({"x": {}}, [None] * 2_000, {f"k{n}": n for n in range(300)}, "\ud800"),
        )
        return chance.choice(strange)


#: Of these ways to say the same a request says one.
_WAYS = (("delay", "due", "delay_level", "shift"), ("ttl", "expires"), ("cron", "rrule", "every"))
_WAYS += tuple((name,) for name in ("lease", "wait", "jitter", "grace"))


def _leave_one_way(found: dict[str, Any]) -> None:
    """Let an object say in one way only what may be said in several."""
    for names in _WAYS:
        for name in [name for name in found if name.removesuffix("_ms") in names][1:]:
            del found[name]


def _complete(found: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Let an object say what it has to, by the fields that it may have, and only once."""
    if "body" in fields:
        found.setdefault("body", "x")
        found.pop("body_base64", None)
    if "cron" in fields and not {"cron", "rrule", "every", "every_ms"} & found.keys():
        found["every"] = "1h"
    if "dry_run" in fields:
        # By ids or by a filter, which have words of their own.
        by_filter = "filter" in found and "ids" not in found
        found.update({} if by_filter else {"ids": found.get("ids", ["1"])})
        for name in () if by_filter else ("filter", "dry_run", "cursor", "shift_ms", "pace"):
            found.pop(name, None)
        found.pop("versions", None)
    if "shift_ms" in fields and not {"delay", "delay_ms", "due", "due_ms"} & found.keys():
        found["delay"] = "5m"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return text.encode(errors="replace").decode()[:2_000]


_MAKERS: dict[Media, Callable[[Shapes, Endpoint, float], bytes]] = {
    Media.JSON: Shapes._json,
    Media.MSGPACK: Shapes._msgpack,
    Media.NDJSON: Shapes._ndjson,
    Media.ARROW: Shapes._arrow,
    Media.COLUMNS: Shapes._columns,
}
