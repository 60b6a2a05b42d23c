"""Messages that are written in a transaction of SQL are in the queue once it is committed."""

import asyncio
import contextlib
import json
import shutil
import signal
import time
import uuid
import zlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import dwell
from bench.servers import free_port
from dwell.errors import InvalidInput
from dwell.message import MAX_BODY_BYTES, MAX_DELAY_MS, MAX_PRIORITY, Result
from dwell.outbox import Outbox
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.outbox.entry import COLUMNS
from dwell.relay.outbox.place import source_at
from dwell.relay.outbox.source import OutboxSource
from dwell.relay.relay import Plan, Relay
from tests.relay.kafka import relaying
from tests.relay.outbox import Box, held, held_at, moved, moving
from tests.relay.test_kafka import asked
from tests.waiting import until, until_async


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- what is put ----------------------------------------------------------------------------------


async def test_what_is_rolled_back_was_never_put(box):
    with box.engine.connect() as link:
        box.outbox.put(link, "t", "one", id="gone")
        box.outbox.put_many(link, "t", ["two", "three"])
        link.rollback()
        box.outbox.put(link, "t", "four", id="there")
        link.commit()
    async with dwell.open("memory:") as queue:
        await moved(box, queue)
        assert [one.id for one in await held(queue, "t")] == ["there"]


@pytest.mark.parametrize("is_first", [False, True])
async def test_a_savepoint_is_part_of_its_transaction(box, is_first):
    """Also where it is the first that a transaction has to do."""
    with box.engine.connect() as link:
        if not is_first:
            box.outbox.put(link, "t", "zero", id="gone-0")
        with link.begin_nested():
            box.outbox.put(link, "t", "one", id="gone-1")
        link.rollback()
        with link.begin_nested():
            box.outbox.put(link, "t", "two", id="there")
        inner = link.begin_nested()
        box.outbox.put(link, "t", "three", id="gone-2")
        inner.rollback()
        link.commit()
    async with dwell.open("memory:") as queue:
        await moved(box, queue)
        assert [one.id for one in await held(queue, "t")] == ["there"]


async def test_a_session_has_the_transaction_too(box):
    make = sessionmaker(box.engine)
    with make.begin() as session:
        box.outbox.put(session, "t", "kept")
    with make() as session:
        box.outbox.put(session, "t", "lost")
        session.rollback()
    scoped = scoped_session(make)
    box.outbox.put_many(scoped, "t", ["scoped"])
    scoped.commit()
    scoped.remove()
    # A session of several databases finds that of the table.
    with Session(binds={box.outbox.table: box.engine}) as session, session.begin():
        box.outbox.put(session, "t", "bound")
    async with dwell.open("memory:") as queue:
        await moved(box, queue)
        bodies = [one.body for one in await held(queue, "t")]
    assert bodies == [b"kept", b"scoped", b"bound"]


async def test_an_asynchronous_session_puts_by_run_sync(postgres):
    engine = create_async_engine(postgres.engine.url)
    async with AsyncSession(engine) as session, session.begin():
        found = await session.run_sync(postgres.outbox.put, "t", "1", delay="1h")
    async with engine.begin() as link:
        await link.run_sync(postgres.outbox.create)
        await link.run_sync(postgres.outbox.put_many, "t", ["2", "3"])
    await engine.dispose()
    async with dwell.open("memory:") as queue:
        await moved(postgres, queue)
        messages = await held(queue, "t")
    assert [one.body for one in messages] == [b"2", b"3", b"1"]
    assert messages[2].id == found


BAD = [
    ("a b", "x", {}),
    ("t", object(), {}),
    ("t", b"x" * (MAX_BODY_BYTES + 1), {}),
    ("t", "x", {"delay": "soon"}),
    ("t", "x", {"delay": -1}),
    ("t", "x", {"delay": 1, "due": 2}),
    ("t", "x", {"due": 1_800_000_000}),
    ("t", "x", {"due": now_ms() + 2 * MAX_DELAY_MS}),
    ("t", "x", {"id": "~mine"}),
    ("t", "x", {"id": ""}),
    ("t", "x", {"priority": -1}),
    ("t", "x", {"ttl": "1s", "delay": "1m"}),
    ("t", "x", {"expires": 1, "ttl": 1}),
    ("t", "x", {"lease": 0}),
    ("t", "x", {"max_attempts": 0}),
    ("t", "x", {"key": "\ud800"}),
    ("t", "x", {"headers": {"a": 1}}),
]


def refusal(put, *given, **options) -> tuple[type, str]:
    with pytest.raises(InvalidInput) as told:
        put(*given, **options)
    return type(told.value), str(told.value)


@pytest.mark.parametrize(("topic", "body", "options"), BAD)
def test_bad_input_is_refused_as_the_queue_does(topic, body, options, sqlite):
    with dwell.open("memory:") as queue, sqlite.engine.begin() as link:
        own = refusal(sqlite.outbox.put, link, topic, body, **options)
        assert own == refusal(queue.put, topic, body, **options)
        many = {f"{name}s" if name == "id" else name: [one] for name, one in options.items()}
        own = refusal(sqlite.outbox.put_many, link, topic, [body], **many)
        assert own == refusal(queue.put_many, topic, [body], **many)
    assert sqlite.count() == 0


def test_what_databases_do_not_take_is_refused_on_each(sqlite):
    with sqlite.engine.begin() as link:
        assert "id: got" in refusal(sqlite.outbox.put, link, "t", "", id="a\0")[1]
        assert "key: got" in refusal(sqlite.outbox.put_many, link, "t", [""], key="a\0")[1]
    for wrong in (sqlite.engine, create_async_engine("postgresql+psycopg://h/d"), None):
        assert "run_sync" in refusal(sqlite.outbox.put, wrong, "t", "")[1]
    for name in ("a-b", "1a", "", "x" * 64, None):
        assert "table: got" in refusal(Outbox, name)[1]
    assert "schema: got" in refusal(Outbox, schema="a.b")[1]


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "delay": st.integers(0, 10**6) | st.timedeltas(timedelta(0), timedelta(days=9)),
        "priority": st.integers(0, MAX_PRIORITY),
        "ttl": st.integers(10**7, 10**8),
        "lease": st.integers(1, 1_000),
        "max_attempts": st.integers(1, 65_535),
        "key": TEXTS.filter(bool),
        "headers": st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), TEXTS),
    },
)
MESSAGES = st.lists(
    st.tuples(
        st.from_regex(r"[A-Za-z0-9._:-]{1,20}", fullmatch=True).filter(lambda t: t.strip(".")),
        st.binary(max_size=99) | TEXTS | st.dictionaries(TEXTS, st.integers(-9, 9)),
        OPTIONS,
    ),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(MESSAGES)
def test_what_is_put_comes_out_of_the_queue_equal(box, messages):
    clock = dwell.SimulatedClock(now_ms())
    box.outbox = Outbox(box.outbox.table.name, clock=clock)

    async def run() -> None:
        async with (
            dwell.open("memory:", clock=clock) as oracle,
            dwell.open("memory:", clock=clock) as queue,
        ):
            with box.engine.begin() as link:
                for at, (topic, body, options) in enumerate(messages):
                    if at % 2:
                        many = {name: [one] for name, one in options.items()}
                        box.outbox.put_many(link, topic, [body], ids=[str(at)], **many)
                    else:
                        box.outbox.put(link, topic, body, id=str(at), **options)
                    await oracle.put(topic, body, id=str(at), **options)
            await moved(box, queue)
            for topic in {topic for topic, _, _ in messages}:
                mine, theirs = await held(queue, topic), await held(oracle, topic)
                assert [bare(one) for one in mine] == [bare(one) for one in theirs]

    asyncio.run(run())


def bare(message: dwell.Message) -> dict[str, object]:
    """Return a message without its number, which is of the whole store."""
    return {name: getattr(message, name) for name in message.__struct_fields__ if name != "number"}


# --- how it is moved ------------------------------------------------------------------------------


async def test_the_order_is_that_of_the_table(box):
    due = now_ms()
    for first in range(0, 300, 20):
        box.put_many("a", list(range(first, first + 10)), due=due)
        with box.engine.begin() as link:
            for at in range(first + 10, first + 20):
                box.outbox.put(link, "a", at, due=due)
    async with dwell.open("memory:") as queue, moving(queue, box.address, batch=7):
        await until_async(lambda: asyncio.to_thread(lambda: box.count() == 0))
        assert [one.json() for one in await held(queue, "a")] == list(range(300))


async def test_a_commit_wakes_the_relay_and_no_poll_has_to(box, monkeypatch):
    monkeypatch.setattr("dwell.relay.outbox.source._POLL_S", 3_600.0)
    async with dwell.open("memory:") as queue, moving(queue, box.address):
        for at in range(20):
            await asyncio.to_thread(box.put, "t", "1", id=str(at))
            await until_async(lambda at=at: queue.get("t", str(at)))


async def test_a_notice_that_is_lost_costs_a_second(postgres_url):
    with Box.of(postgres_url, f"quiet{uuid.uuid4().hex[:8]}", notify=False) as box:
        async with dwell.open("memory:") as queue, moving(queue, box.address):
            for at in range(2):
                await asyncio.to_thread(box.put, "t", "1", id=str(at))
                await until_async(lambda at=at: queue.get("t", str(at)))


@contextlib.asynccontextmanager
async def reading(box: Box) -> AsyncIterator[OutboxSource]:
    """Give a source that no relay reads."""
    source = source_at(box.address)
    try:
        yield source
    finally:
        await source.close()


async def test_large_rows_are_read_a_few_at_a_time(box):
    box.put_many("t", [b"x" * MAX_BODY_BYTES] * 12)
    box.put_many("t", ["small", "last"], headers={"h": "v" * 16_000})
    found: list[int] = []
    async with reading(box) as source:
        while sum(found) < 14:
            records = await source.read(5_000)
            found.append(len(records))
            await source.done(records)
        assert await source.read(5_000) == []
    assert found[0] in (8, 9)
    assert len(found) == 2


async def test_what_one_relay_has_another_skips(postgres):
    postgres.put_many("t", list(range(10)))
    async with reading(postgres) as one, reading(postgres) as other:
        first, second = await one.read(4), await other.read(4)
        assert [[record.place[0] for record in part] for part in (first, second)] == [
            [1, 2, 3, 4],
            [5, 6, 7, 8],
        ]
        await other.done(second)
        assert len(await other.read(9)) == 2
        # Who ends without having held its rows leaves them to others.
        await one.close()

        async def has_the_rest() -> bool:
            await other.done([])
            found = await other.read(9)
            return [record.place[0] for record in found] == [1, 2, 3, 4, 9, 10]

        await until_async(has_the_rest)


def end_links(box: Box) -> None:
    """End the connections of relays of a table."""
    box.do(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE application_name = 'dwell relay' AND query LIKE '%{table}%'"
    )


async def test_what_the_queue_has_is_deleted_when_the_database_is_back(postgres):
    postgres.put_many("t", list(range(10)))
    async with reading(postgres) as source:
        await source.done(await source.read(6))
        end_links(postgres)
        with pytest.raises(BrokerUnreachable, match=r"terminat|closed"):
            await source.read(9)
        assert [record.place[0] for record in await source.read(9)] == [7, 8, 9, 10]


@pytest.mark.parametrize(
    "changed", [{"id": "two"}, {"topic": "other"}, {"due_ms": 7}], ids=["id", "topic", "due"]
)
async def test_a_number_that_is_given_out_again_is_another_row(box, changed):
    """Who makes the table without AUTOINCREMENT, or restores a copy, loses nothing by it."""
    box.put("t", "1", id="one")
    ((column, value),) = changed.items()
    async with reading(box) as source:
        records = await source.read(9)
        if box.engine.name == "postgresql":
            # The row is locked as long as the connection lives.
            end_links(box)
            await source.done(records)
            with pytest.raises(BrokerUnreachable):
                await source.read(9)
        box.do(f"UPDATE {{table}} SET {column} = :value", value=value)
        await source.done(records)
        (again,) = await source.read(9)
        assert again.row[COLUMNS.index(column)] in (value, str(value).encode())
        await source.done([again])
        assert await source.read(9) == []
    assert box.count() == 0


async def test_a_relay_has_the_rights_that_it_is_said_to_need(postgres_url):
    name, role = f"t{uuid.uuid4().hex[:8]}", f"r{uuid.uuid4().hex[:8]}"
    admin = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    outbox = Outbox("Mails", schema=name)
    with admin.begin() as link:
        link.exec_driver_sql(f"CREATE SCHEMA {name}")
        outbox.create(link)
        link.exec_driver_sql(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {name} TO {role}")
        link.exec_driver_sql(f'GRANT SELECT, UPDATE, DELETE ON {name}."Mails" TO {role}')
        outbox.put(link, "t", "1")
    url = postgres_url.replace("dwell@", f"{role}@")
    address = f"outbox+{url}?table=Mails&schema={name}&options=-c%20synchronous_commit%3Doff"
    box = Box(admin, outbox, address)
    async with dwell.open("memory:") as queue:
        await moved(box, queue)
        (found,) = await held(queue, "t")
    assert found.body == b"1"
    admin.dispose()


GARBAGE = [
    ("topic: got str 'a b'", {"topic": "a b"}),
    ("topic: got str ''", {"topic": ""}),
    ("id: got str '~x'", {"id": "~x"}),
    ("id: got str ''", {"id": ""}),
    ("id: got", {"id": "i" * 5_000}),
    ("due_ms: got int -1", {"due_ms": -1}),
    ("due_ms: got int 1800000000", {"due_ms": 1_800_000_000}),
    ("due_ms: got int", {"due_ms": 2**63 - 1}),
    ("expires_ms: got int -5", {"expires_ms": -5}),
    ("priority: got int -1", {"priority": -1}),
    ("lease_ms: got int", {"lease_ms": 2**40}),
    ("max_attempts: got int", {"max_attempts": 70_000}),
    ("key: got str ''", {"key": ""}),
    ("headers: got", {"headers": "{"}),
    ("headers: got", {"headers": '{"a": 1}'}),
    ("headers: got", {"headers": json.dumps({"a": "x" * 10_000, "b": 1})}),
]
#: What only SQLite lets stand in its columns.
ANY_KIND = [
    ("body: got int 5", {"body": 5}),
    ("due_ms: got str 'soon'", {"due_ms": "soon"}),
    ("due_ms: got float", {"due_ms": 1.5}),
    ("priority: got bytes", {"priority": b"\xff"}),
    ("topic: got bytes", {"topic": b"\xff"}),
    ("id: got bytes", {"id": b"\xff\xfe"}),
    ("headers: got bytes", {"headers": b"\xff"}),
]


async def test_rows_that_nobody_can_read_are_dead_letters_and_stop_nothing(box):
    rows = GARBAGE + (ANY_KIND if box.engine.name == "sqlite" else [])
    columns = ("id", "topic", "body", "due_ms", "priority", "lease_ms", "max_attempts")
    columns += ("expires_ms", "key", "headers")
    usual = {"id": "good", "topic": "t", "body": b"b", "due_ms": 0, "priority": 1}
    usual |= {"lease_ms": 0, "max_attempts": 0, "expires_ms": 0, "key": None, "headers": None}
    places = ", ".join(f":{name}" for name in columns)
    text = f"INSERT INTO {{table}} ({', '.join(columns)}) VALUES ({places})"
    for _, wrong in rows:
        box.do(text, **(usual | wrong))
    box.put("t", "behind")
    async with dwell.open("memory:") as queue:
        async with moving(queue, box.address) as relay:
            await until_async(lambda: asyncio.to_thread(lambda: box.count() == 0))
            assert relay.tally.dead["source"] == len(rows)
        (good,) = await held(queue, "t")
        assert good.body == b"behind"
        letters = await held(queue, "relay-dead")
    assert len(letters) == len(rows)
    of_row = {letter.headers["dwell-from"]: letter for letter in letters}
    for at, (told, _) in enumerate(rows, 1):
        letter = of_row[f"{box.outbox.table.name}-{at}"]
        assert letter.headers["dwell-reason"].startswith(told)
    first = of_row[f"{box.outbox.table.name}-1"]
    assert "topic='a b'" in first.headers["dwell-row"]
    assert first.body == b"b"


async def test_text_of_sqlite_may_have_any_bytes(sqlite):
    """NUL, at which its functions end a text, and what is not UTF-8."""
    insert = "INSERT INTO {table} (id, topic, body, due_ms, key) VALUES (:id, 't', "
    for name in ("ann", "bob"):
        said = {"id": f"tenant\0{name}", "key": f"k\0{name}"}
        sqlite.do(insert + ":body, 0, :key)", body=f"pay\0{name}", **said)
    sqlite.do(insert + "CAST(x'636166e9' AS TEXT), 0, NULL)", id="latin")
    async with dwell.open("memory:") as queue:
        await moved(sqlite, queue)
        found = [(one.id, one.body, one.key) for one in await held(queue, "t")]
    assert found == [
        ("tenant\0ann", b"pay\0ann", "k\0ann"),
        ("tenant\0bob", b"pay\0bob", "k\0bob"),
        ("latin", b"caf\xe9", None),
    ]


async def test_a_file_that_is_replaced_is_opened_again(sqlite, tmp_path):
    """As a backup is put back."""
    file = Path(sqlite.engine.url.database)
    sqlite.put("t", b"old")
    backup = tmp_path / "backup.db"
    shutil.copy(file, backup)
    async with dwell.open("memory:") as queue, moving(queue, sqlite.address):
        await until_async(lambda: asyncio.to_thread(lambda: sqlite.count() == 0))
        sqlite.engine.dispose()
        backup.replace(file)
        sqlite.put("t", b"new")
        await until_async(lambda: asyncio.to_thread(lambda: sqlite.count() == 0))
        assert [one.body for one in await held(queue, "t")] == [b"old", b"new"]


async def test_columns_have_defaults_for_rows_of_other_languages(box):
    due = now_ms() + 60_000
    box.do(f"INSERT INTO {{table}} (id, topic, body, due_ms) VALUES ('x', 't', 'b', {due})")
    async with dwell.open("memory:") as queue:
        await moved(box, queue)
        (found,) = await held(queue, "t")
        await queue.put("t", "b", id="y", due=due)
        other = await queue.get("t", "y")
    assert bare(found) | {"id": "y"} == bare(other)


# --- as a process ---------------------------------------------------------------------------------


def blocked(box: Box) -> contextlib.AbstractContextManager[object]:
    """Let nobody delete rows until the block ends."""
    link = box.engine.connect()
    if box.engine.name == "sqlite":
        link.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        key = zlib.crc32(box.outbox.table.name.encode())
        name = box.outbox.table.name
        box.do(
            f"CREATE FUNCTION wait_{name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN PERFORM pg_advisory_xact_lock({key}); RETURN OLD; END'"
        )
        box.do(
            f"CREATE TRIGGER wait BEFORE DELETE ON {name} "
            f"FOR EACH ROW EXECUTE FUNCTION wait_{name}()"
        )
        link.exec_driver_sql(f"SELECT pg_advisory_xact_lock({key})")
    return contextlib.closing(link)


def test_a_relay_that_is_killed_before_it_has_deleted_doubles_nothing(box, redis_url, tmp_path):
    topic = f"t{uuid.uuid4().hex}"
    options = ["--from", box.address]
    ids = box.put_many(topic, list(range(500)))
    with blocked(box):
        with relaying(redis_url, options, tmp_path / "log") as relay:
            until(lambda: ready(redis_url, topic) == 500)
            relay.end(signal.SIGKILL)
        assert box.count() == 500
    # Those that were taken and acked meanwhile do not come again either.
    with dwell.open(redis_url) as queue:
        queue.ack(queue.take(topic, 100))
    ids += box.put_many(topic, ["after"])
    with relaying(redis_url, options, tmp_path / "log") as relay:
        box.until_empty()
        assert relay.end() == 0, relay.log
    assert [one.id for one in held_at(redis_url, topic)] == ids[100:]


def ready(store: str, topic: str) -> int:
    with dwell.open(store) as queue:
        found = queue.stats().topics.get(topic)
    return 0 if found is None else found.ready


def test_two_relays_share_the_work_and_no_row_comes_twice(postgres, redis_url, tmp_path):
    topic, places = f"t{uuid.uuid4().hex}", [f"127.0.0.1:{free_port()}" for _ in range(2)]
    started = [
        relaying(
            redis_url,
            ["--from", postgres.address, "--batch", "50", "--http", place],
            tmp_path / place,
        )
        for place in places
    ]
    with started[0], started[1]:
        for place in places:
            until(lambda place=place: asked(place, "readyz")[0] == 200)
        for first in range(0, 4_000, 200):
            postgres.put_many(topic, list(range(first, first + 200)))
        postgres.until_empty()
        read = [metric(place, "read") for place in places]
    assert sum(read) == 4_000
    assert sorted(one.json() for one in held_at(redis_url, topic)) == list(range(4_000))


def metric(place: str, name: str) -> float:
    lines = asked(place, "metrics")[1].splitlines()
    start = f"dwell_relay_{name}_total "
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def test_a_database_that_is_not_there_yet_is_waited_for(tmp_path):
    place = f"127.0.0.1:{free_port()}"
    url = f"sqlite:///{tmp_path}/shop.db"
    options = ["--from", f"outbox+{url}", "--http", place]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        until(lambda: "unable to open" in asked(place, "readyz")[1])
        engine = sa.create_engine(url)
        with engine.begin() as link:
            link.exec_driver_sql("CREATE TABLE other (a)")
        until(lambda: "no such table" in asked(place, "readyz")[1])
        with Box.of(url) as box:
            box.put("t", "1")
            box.until_empty()
        until(lambda: asked(place, "readyz") == (200, "ready\n"))
        assert relay.end() == 0, relay.log
    engine.dispose()
    (found,) = held_at(tmp_path / "store", "t")
    assert found.body == b"1"


class Kept:
    """A sink that has all it was given."""

    def __init__(self):
        self.sent = []

    async def open(self):
        """Do nothing."""

    async def send(self, records):
        self.sent += [(one.topic, one.body) for one in records]
        return [None] * len(records)

    async def close(self):
        """Do nothing."""


@pytest.mark.parametrize("id_", ["order-7", "x" * 256])
async def test_an_id_is_one_of_its_topic_where_a_broker_gets_the_messages(box, id_):
    names = ["mails", "invoices", "t" * 200]
    for topic in names * 2:
        box.put(topic, topic, id=id_)
    box.put(names[0], "another", id=id_[:-1])
    box.put("later", "1", id="a", delay="1h")
    async with dwell.open("memory:") as queue:
        source, sink = source_at(box.address), Kept()
        rules = source.reader(is_named=True)
        relay = Relay(queue, Plan(), rules, source=source, sink=sink, letters=sink)
        stopping = asyncio.Event()
        running = asyncio.create_task(relay.run(stopping))
        await until_async(lambda: asyncio.to_thread(lambda: box.count() == 0))
        assert await queue.cancel("relay", "later/a") == Result.CANCELLED
        await until_async(lambda: len(sink.sent) >= 4)
        stopping.set()
        await running
    expected = [*((topic, topic.encode()) for topic in names), (names[0], b"another")]
    assert sorted(sink.sent) == sorted(expected)


def test_a_broker_gets_messages_when_they_are_due(postgres, topics, tmp_path):
    mine = topics(1)
    due = now_ms() + 1_000
    postgres.put(mine.goes, b"\xff", due=due, key="k", headers={"h": "v", "dwell-h": "ours"})
    postgres.put(mine.goes, "now")
    options = ["--from", postgres.address, "--to", f"kafka://{mine.hosts}", "--dead", mine.dead]
    with relaying(tmp_path / "store", options, tmp_path / "log"):
        now, later = mine.read(mine.goes, 2)
        postgres.do("INSERT INTO {table} (id, topic, body, due_ms) VALUES ('x', 't', 'b', -1)")
        (dead,) = mine.read(mine.dead, 1)
    assert (now.value(), now.key(), now.headers()) == (b"now", None, None)
    assert (later.value(), later.key(), later.headers()) == (b"\xff", b"k", [("h", b"v")])
    assert later.timestamp()[1] >= due
    assert b"due_ms: got int -1" in dict(dead.headers())["dwell-reason"]
