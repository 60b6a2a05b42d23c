"""Effects that count once: marks in SQLite and PostgreSQL, tokens in a Redis."""

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
from functools import partial

import psycopg
import pytest
import redis

import dwell
from bench.postgres import postgres_server
from dwell.once import (
    StillRunning,
    TransactionLost,
    create_table,
    forget,
    once,
    once_on_redis,
)
from dwell.takeover.process import run
from dwell.worker import Worker
from dwell.worker.calls import Expired, ThreadCall
from tests.once.payer import connected
from tests.redis.servers import redis_server
from tests.waiting import until
from tools.rooms import ROOT


@pytest.fixture(scope="module")
def postgres_url():
    with postgres_server() as server:
        yield server.url.replace("postgresql+psycopg:", "postgresql:")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "site.db")
    url = request.getfixturevalue("postgres_url")
    with contextlib.closing(connected(url)) as connection:
        cursor = connection.cursor()
        cursor.execute("DROP TABLE IF EXISTS accounts, dwell_once")
        connection.commit()
    return url


@pytest.fixture
def connect(database):
    """Return a function that makes connections, each closed with the test."""
    with contextlib.ExitStack() as stack:

        def made():
            return stack.enter_context(contextlib.closing(connected(database)))

        first = made()
        create_table(first)
        first.cursor().execute("CREATE TABLE accounts (balance INTEGER NOT NULL)")
        first.cursor().execute("INSERT INTO accounts VALUES (0)")
        first.commit()
        yield made


def message(id_="P-1", topic="payments"):
    with dwell.open("memory:") as queue:
        queue.put(topic, b"{}", id=id_)
        return queue.take(topic)[0]


def pay(connection, given, **words):
    with once(given, connection, **words) as is_first:
        if is_first:
            connection.cursor().execute("UPDATE accounts SET balance = balance + 1")
    return is_first


def balance(connection):
    cursor = connection.cursor()
    cursor.execute("SELECT balance FROM accounts")
    (found,) = cursor.fetchone()
    connection.rollback()
    return found


def test_a_second_delivery_is_told(connect):
    assert [pay(connect(), message()) for _ in range(3)] == [True, False, False]
    assert pay(connect(), message("P-2"))
    assert pay(connect(), message("P-1", "refunds"))
    assert balance(connect()) == 3


def test_the_key_may_be_that_of_the_business(connect):
    """Two messages about one order."""
    assert pay(connect(), message("first"), key="order-17")
    assert not pay(connect(), message("second"), key="order-17")


def test_what_a_takeover_moves_is_known_by_its_id_or_a_key(connect, tmp_path):
    """Done, and not acked before the store was left; an id that the queue made is another then."""
    old, new = f"{tmp_path}/old", f"{tmp_path}/new"

    def key(given):
        return given.body.decode() or None

    def done(store):
        with dwell.open(store) as queue:
            taken = queue.take("payments", 2)
            answers = [pay(connect(), one, key=key(one)) for one in taken]
            queue.release(taken)
            return answers, {one.id for one in taken}

    with dwell.open(old) as queue:
        queue.put("payments", b"", id="P-1")
        queue.put("payments", b"order-17")
    before, ids = done(old)
    run(new, old, tell=lambda report: None)
    after, others = done(new)
    assert (before, after) == ([True, True], [False, False])
    assert ids & others == {"P-1"}


def test_an_error_takes_the_mark_back(connect):
    connection = connect()
    with contextlib.suppress(ZeroDivisionError), once(message(), connection):
        connection.cursor().execute("UPDATE accounts SET balance = balance + 1")
        raise ZeroDivisionError
    assert balance(connect()) == 0
    assert pay(connect(), message())


def test_a_block_that_commits_and_then_fails_is_done_again(connect, caplog):
    """Otherwise what it had not done yet would never be done."""
    for is_last in (False, True):
        connection = connect()
        with contextlib.suppress(ZeroDivisionError), once(message(), connection) as is_first:
            assert is_first
            connection.cursor().execute("UPDATE accounts SET balance = balance + 1")
            connection.commit()
            connection.cursor().execute("UPDATE accounts SET balance = balance + 10")
            if not is_last:
                raise ZeroDivisionError
        assert balance(connect()) == (12 if is_last else 1)
    assert not pay(connect(), message())
    assert caplog.text.count("committed its transaction and then failed") == 1


@contextlib.contextmanager
def held_up_commits(connect, database):
    """Let each commit wait; yields a function that tells whether one does."""
    other, looker = connect(), connect()
    if database.startswith("postgresql"):
        other.execute(
            "CREATE OR REPLACE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_advisory_xact_lock(17); RETURN NULL; END $$"
        )
        other.execute(
            "CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON accounts "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION held()"
        )
        other.commit()
        other.execute("SELECT pg_advisory_xact_lock(17)")

        def waits():
            asked = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            return looker.execute(asked).fetchone() is not None

    else:
        other.execute("BEGIN")
        other.execute("SELECT balance FROM accounts").fetchall()
        looker.execute("PRAGMA busy_timeout = 0")

        def waits():
            # Who waits to commit lets no new readers in.
            try:
                looker.execute("SELECT balance FROM accounts").fetchall()
            except sqlite3.OperationalError:
                return True
            return False

    try:
        yield waits
    finally:
        other.rollback()


def test_an_interrupt_of_its_own_commit_keeps_the_mark(connect, database, caplog):
    """Such as the end of the time that a worker gives to the handler."""
    own, answers = connect(), []
    call = ThreadCall(lambda given: pay(own, given), message())
    with held_up_commits(connect, database) as waits:
        thread = threading.Thread(target=lambda: answers.append(call()))
        thread.start()
        until(waits)
        call.end()
    thread.join()
    ((_, error),) = answers
    assert isinstance(error, Expired)
    assert balance(connect()) == 1
    assert not pay(connect(), message())
    assert "may be done again" not in caplog.text


def test_what_cannot_be_committed_does_not_fail_the_next(connect, database):
    """A foreign key that is checked at the commit."""
    connection = connect()
    cursor = connection.cursor()
    if not database.startswith("postgresql"):
        cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
    cursor.execute(
        "CREATE TABLE bills "
        "(person INTEGER NOT NULL REFERENCES people (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    connection.commit()
    told = (sqlite3.IntegrityError, psycopg.errors.ForeignKeyViolation)
    for _ in range(2):
        with pytest.raises(told), once(message(), connection) as is_first:  # noqa: PT012
            assert is_first
            cursor.execute("INSERT INTO bills VALUES (17)")
    assert pay(connection, message("P-2"))
    assert balance(connection) == 1


def test_deliveries_at_once_count_once(connect):
    answers, start = [], threading.Barrier(4)

    def work(connection):
        start.wait()
        answers.append(pay(connection, message()))

    threads = [threading.Thread(target=work, args=(connect(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False, False, False, True]
    assert balance(connect()) == 1


def test_a_transaction_that_is_rolled_back_in_the_block_is_told(connect, database):
    """PostgreSQL answers the commit of an aborted transaction with a rollback."""
    connection = connect()
    is_postgres = database.startswith("postgresql")
    told = psycopg.Error if is_postgres else TransactionLost
    with pytest.raises(told), once(message(), connection) as is_first:  # noqa: PT012
        assert is_first
        connection.cursor().execute("UPDATE accounts SET balance = balance + 1")
        if is_postgres:
            with contextlib.suppress(psycopg.Error):
                connection.cursor().execute("SELECT nothing")
        else:
            connection.rollback()
    assert balance(connection) == 0
    assert pay(connection, message())
    lost = "dwell_once: the mark of 'P-2' is gone"
    with pytest.raises(TransactionLost, match=lost), once(message("P-2"), connection):
        connection.rollback()
    assert balance(connection) == 1


def test_marks_are_forgotten_after_a_while(connect):
    connection = connect()
    pay(connection, message())
    assert forget(connection, 3_600_000) == 0
    assert forget(connection, -1000) == 1
    assert pay(connection, message())


@pytest.mark.parametrize("table", ["", "a b", "x; DROP TABLE accounts", "a.b.c", None])
def test_only_names_of_tables_are_taken(connect, table):
    with pytest.raises(dwell.InvalidInput, match="table: got"):
        pay(connect(), message(), table=table)


def test_a_connection_without_transactions_is_refused(database, connect):
    connect()
    if database.startswith("postgresql"):
        own = psycopg.connect(database, autocommit=True)
    else:
        own = connected(database)
        own.isolation_level = None
    with contextlib.closing(own), pytest.raises(dwell.InvalidInput, match="by itself"):
        pay(own, message())
    with pytest.raises(dwell.InvalidInput, match="expected one of a DB-API driver"):
        pay(object(), message())


def test_one_connection_is_not_in_two_blocks(connect):
    """The first to end would commit half of what the other does."""
    connection = connect()
    with once(message("P-1"), connection) as is_first:
        assert is_first
        refused = pytest.raises(dwell.InvalidInput, match="another block of once has it")
        with refused, once(message("P-2"), connection):
            pytest.fail("the block has begun")
    with once(message("P-2"), connection) as is_first:
        assert is_first


def test_a_pipeline_is_refused_and_nothing_done(postgres_url):
    """It tells of no statement what it has changed, so the first delivery looked like a second."""
    with contextlib.closing(psycopg.connect(postgres_url)) as connection:
        create_table(connection, "piped")
        refused = pytest.raises(dwell.InvalidInput, match="outside a pipeline")
        with connection.pipeline(), refused, once(message(), connection, table="piped"):
            pytest.fail("the block has begun")
        assert connection.execute("SELECT count(*) FROM piped").fetchone() == (0,)
        with once(message(), connection, table="piped") as is_first:
            assert is_first


async def test_an_asynchronous_connection_is_refused(postgres_url):
    connection = await psycopg.AsyncConnection.connect(postgres_url)
    async with connection:
        refused = partial(pytest.raises, dwell.InvalidInput, match="asynchronous AsyncConnection")
        with refused():
            create_table(connection)
        with refused(), once(message(), connection):
            pytest.fail("the block has begun")


@pytest.mark.campaign
def test_payments_are_booked_once_though_workers_are_killed(database, connect, tmp_path):
    names = [f"P-{number}" for number in range(40)]
    connection = connect()
    with dwell.open(tmp_path / "store", sync="never") as queue:
        queue.put_many("payments", [b"{}"] * len(names), ids=names, max_attempts=1000)
    kills = 0
    for seed in range(1000):
        command = [
            sys.executable,
            "-m",
            "tests.once.payer",
            f"{tmp_path}/store",
            database,
            str(seed),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        kills += done.returncode == -signal.SIGKILL
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if done.returncode == 0 and not _left(tmp_path / "store"):
            break
    assert kills > 5
    assert balance(connection) == len(names)


def _left(store):
    with dwell.open(store) as queue:
        counts = queue.stats().topics["payments"]
        return counts.ready + counts.leased + counts.delayed


# --- tokens -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    with redis_server() as server, contextlib.closing(redis.Redis.from_url(server.url)) as client:
        yield client


@pytest.fixture(autouse=True)
def emptied(request):
    if "client" in request.fixturenames:
        request.getfixturevalue("client").flushall()


def test_a_token_is_taken_once(client):
    for expected in (True, False, False):
        with once_on_redis(message(), client) as is_first:
            assert is_first is expected


def test_a_token_that_another_has_is_waited_for_by_a_retry(client):
    with once_on_redis(message(), client) as is_first:
        assert is_first
        with (
            pytest.raises(StillRunning, match="handled by another"),
            once_on_redis(message(), client),
        ):
            pass


def test_a_token_that_the_client_sets_twice_is_its_own(client, monkeypatch):
    """It repeats commands whose answer was lost."""
    send = client.set

    def twice(*args, **words):
        send(*args, **words)
        return send(*args, **words)

    monkeypatch.setattr(client, "set", twice)
    for expected in (True, False):
        with once_on_redis(message(), client) as is_first:
            assert is_first is expected


def test_topics_and_ids_with_colons_have_tokens_of_their_own(client):
    for given in (message("eu:17", "orders"), message("17", "orders:eu")):
        with once_on_redis(given, client) as is_first:
            assert is_first


async def test_waiting_for_another_delivery_uses_up_no_attempts(client):
    killed = once_on_redis(message(), client, holds_ms=1_000)
    assert killed.__enter__()
    done = asyncio.Event()
    async with dwell.open("memory:") as queue:
        await queue.put("payments", b"{}", id="P-1", max_attempts=1)
        worker = Worker(queue)

        @worker.on("payments", retry="10ms")
        async def work(given):
            with once_on_redis(given, client) as is_first:
                assert is_first
            done.set()

        serving = asyncio.create_task(worker.serve())

        async def is_over():
            return done.is_set() or (await queue.stats()).topics["payments"].dead

        while not await is_over():
            await asyncio.sleep(0.01)
        worker.stop()
        await serving
        assert (await queue.stats()).topics["payments"].dead == 0


def test_a_block_that_takes_longer_than_its_token_is_done_all_the_same(client, caplog):
    with once_on_redis(message(), client, holds_ms=20):
        until(lambda: not client.keys("dwell-once:*"))
    with once_on_redis(message(), client) as is_first:
        assert not is_first
    assert not caplog.records


def test_a_block_that_takes_so_long_that_another_began_says_so(client, caplog):
    with once_on_redis(message(), client, holds_ms=20):
        until(lambda: not client.keys("dwell-once:*"))
        client.set("dwell-once:payments:P-1", "another")
    assert "took more than 20 ms" in caplog.text


def test_an_end_that_the_client_tells_twice_is_one(client, monkeypatch, caplog):
    """As when the first answer was lost."""
    told = client.eval

    def twice(*words):
        told(*words)
        return told(*words)

    monkeypatch.setattr(client, "eval", twice)
    with once_on_redis(message(), client):
        pass
    assert not caplog.records


def test_an_error_gives_the_token_back(client):
    with pytest.raises(ZeroDivisionError), once_on_redis(message(), client):
        raise ZeroDivisionError
    with once_on_redis(message(), client) as is_first:
        assert is_first


def test_an_interrupt_at_the_end_of_a_block_keeps_its_token_as_done(client, monkeypatch):
    """The effect is made by then."""

    def interrupted(*args):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), once_on_redis(message(), client) as is_first:  # noqa: PT012
        assert is_first
        monkeypatch.setattr(client, "eval", interrupted)
    with once_on_redis(message(), client) as is_first:
        assert not is_first


def test_a_token_of_a_killed_worker_ends(client):
    """And what it would have said after that changes nothing."""
    first = once_on_redis(message(), client, holds_ms=50)
    assert first.__enter__()
    until(lambda: not client.keys("dwell-once:*"))
    with once_on_redis(message(), client) as is_first:
        assert is_first
        first.__exit__(None, None, None)
        assert client.get("dwell-once:payments:P-1") != b"done"
    assert client.get("dwell-once:payments:P-1") == b"done"
