"""Records that are valid for a broker and odd for a relay: it moves them or sets them aside."""

import asyncio
import ctypes
import random
from decimal import Decimal
from pathlib import Path

import confluent_kafka
import pytest

import dwell
from dwell.relay.process import relay_of
from dwell.relay.settings import RelaySettings
from tests.relay.kafka import relaying
from tests.relay.outbox import held
from tests.waiting import PATIENCE_S, until, until_async

COUNT = 150
#: As many as it takes for the interpreter to call the client by its fast path.
RAW = 30
TELLS = ("due-ms", "delay", "delay-level", "to", "id", "cancel", "raw", "properties", "from", "x")
BODIES = (
    b"",
    b"[" * 5_000,
    b"[" * 100_000,
    b'{"a":' * 3_000,
    b"\xff\xfe",
    b"null",
    b"NaN",
    b"1e999",
    b"9" * 5_000,
    b'{"due": 1e308, "to": {"a": []}}',
    b'{"due": "0000-00-00T00:00:00Z", "to": ""}',
    b'{"due": -1, "to": "\\ud800"}',
    b'{"due": true, "to": "out"}',
    b"x" * 900_000,
)


def text(draw: random.Random) -> str:
    """Draw a short text of any characters that UTF-8 has."""
    ranges = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0x10FFFF))
    return "".join(chr(draw.randint(*draw.choice(ranges))) for _ in range(draw.randint(0, 12)))


def name(draw: random.Random) -> str:
    return draw.choice([text(draw), f"dwell-{draw.choice(TELLS)}", "x-delay", "a", ""])


def data(draw: random.Random) -> bytes:
    sources = (text(draw).encode(), draw.randbytes(draw.randint(0, 40)), b"-1", b"1h", b"9" * 30)
    return draw.choice([*sources, str(draw.randint(-(2**70), 2**70)).encode()])


async def all_settled(source: str, count: int, last: bytes, **more: str) -> None:
    """Run a relay for workers until it has settled so many records; the last one is held."""
    async with dwell.open("memory:") as queue:
        relay = relay_of(queue, RelaySettings(source=source, sink=None, **more))
        stopping = asyncio.Event()
        running = asyncio.create_task(relay.run(stopping))
        await until_async(lambda: relay.tally.settled == count or running.done())
        stopping.set()
        await running
        assert relay.tally.settled == count
        assert last in [one.body for one in await held(queue, "good")]
        assert relay.tally.dead["source"] > 0
        letters = await held(queue, "relay-dead")
        assert all(letter.headers["dwell-reason"] for letter in letters)


class Raw:
    """A producer of Kafka that writes header names of any bytes, as those of C and Go do."""

    END, TOPIC, VALUE, FLAGS, HEADER, COPY = 0, 1, 4, 7, 9, 2

    def __init__(self, hosts: str) -> None:
        folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
        self._library = library = ctypes.CDLL(str(next(folder.glob("librdkafka-*.so*"))))
        library.rd_kafka_conf_new.restype = ctypes.c_void_p
        library.rd_kafka_new.restype = ctypes.c_void_p
        conf = ctypes.c_void_p(library.rd_kafka_conf_new())
        why = ctypes.create_string_buffer(200)
        library.rd_kafka_conf_set(conf, b"bootstrap.servers", hosts.encode(), why, 200)
        self._producer = ctypes.c_void_p(library.rd_kafka_new(0, conf, why, 200))

    def say(self, topic: str, body: bytes, header: bytes) -> None:
        error = self._library.rd_kafka_producev(
            *(self._producer, self.TOPIC, topic.encode(), self.FLAGS, self.COPY),
            *(self.VALUE, body, ctypes.c_size_t(len(body))),
            *(self.HEADER, header, b"value", ctypes.c_ssize_t(5), self.END),
        )
        assert not error
        assert not self._library.rd_kafka_flush(self._producer, PATIENCE_S * 1000)


def test_header_names_of_any_bytes(topics, tmp_path):
    mine = topics(1)
    raw = Raw(mine.hosts)
    for _ in range(RAW):
        raw.say(mine.came, b"raw", b"\xff\xfe name")
    mine.say(b"good", {"dwell-delay": "1ms"})
    mine.flush()
    options = ["--from", mine.source, "--to", mine.sink, "--dead", mine.dead]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: relay.process.poll() is not None or len(mine.read(mine.dead, 0)) == RAW)
        assert relay.process.poll() is None
        assert [one.value() for one in mine.read(mine.goes, 1)] == [b"good"]


@pytest.mark.parametrize("seed", range(2))
async def test_records_of_kafka(topics, seed):
    mine, draw = topics(1), random.Random(seed)
    for _ in range(COUNT):
        headers = [(name(draw), draw.choice([None, data(draw)])) for _ in range(draw.randint(0, 4))]
        key, body = draw.choice([None, b"", data(draw)]), draw.choice([*BODIES, None, data(draw)])
        mine.say(body, headers, key)
    mine.say(b'{"due": 0, "to": "good"}', {})
    mine.flush()
    more = {"due": "due", "target": "to"}
    await all_settled(mine.source, COUNT + 1, b'{"due": 0, "to": "good"}', **more)


def amqp_value(draw: random.Random, depth: int = 0) -> object:
    kinds = [
        *(None, True, draw.randint(-(2**63), 2**63 - 1), draw.random() * 1e30, Decimal("1.5")),
        *(text(draw), bytearray(draw.randbytes(5)), text(draw) * 50),
    ]
    if depth < 3:
        kinds += [[amqp_value(draw, depth + 1)], {text(draw)[:8]: amqp_value(draw, depth + 1)}]
    return draw.choice(kinds)


@pytest.mark.parametrize("seed", range(2))
async def test_messages_of_rabbitmq(queues, seed):
    draw, messages = random.Random(seed), []
    mine = await asyncio.to_thread(queues)
    for _ in range(COUNT):
        headers = {name(draw): amqp_value(draw) for _ in range(draw.randint(0, 4))}
        messages.append((draw.choice([*BODIES, data(draw)]), headers))
    good = b'{"due": 0, "to": "good"}'
    await asyncio.to_thread(mine.say_all, [*messages, (good, None)])
    more = {"due": "due", "target": "to"}
    await all_settled(mine.source, COUNT + 1, good, **more)


WHOLE = (0, 1, -1, 2**31, 2**62, -(2**63), 2**63 - 1)


@pytest.mark.parametrize("seed", range(2))
async def test_rows_of_an_outbox(box, seed):
    draw, is_lite = random.Random(seed), box.engine.name == "sqlite"

    def words() -> str:
        found = draw.choice([text(draw), "good", "{", '{"a": 1}', "[" * 5_000])
        return found.replace("\0", "")

    def whole() -> object:
        # A column of SQLite holds a value of any type.
        odd = (1.5, "x", b"\xff", 1e308) if is_lite else ()
        return draw.choice([*WHOLE, *odd])

    def small() -> object:
        return whole() if is_lite else draw.choice([0, -1, 2**31 - 1])

    def maybe(value: object) -> object:
        return draw.choice([None, value])

    rows = [
        {
            "id": words(),
            "topic": words(),
            "body": draw.choice([*BODIES, data(draw)]),
            "due_ms": whole(),
            "priority": whole(),
            "lease_ms": whole(),
            "max_attempts": small(),
            "expires_ms": whole(),
            "key": maybe(words()),
            "headers": maybe(words()),
        }
        for _ in range(COUNT)
    ]
    columns = ", ".join(rows[0])
    values = ", ".join(f":{column}" for column in rows[0])
    for row in rows:
        box.do(f"INSERT INTO {{table}} ({columns}) VALUES ({values})", **row)
    box.put("good", b"last")
    await all_settled(box.address, COUNT + 1, b"last")
    assert box.count() == 0
