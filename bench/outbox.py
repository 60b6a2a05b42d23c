"""Rows of an outbox in PostgreSQL into the queue: rows a second, and how soon a worker has them.

``loop`` is what people write by hand: lock a batch and skip what is locked, put it in a queue that
is open in the same process, delete, commit. ``copy`` does the same without the queue. All read
batches of the same size. ``without`` is a put by the writer after its commit. Database, relay and
what measures share the two cores; the database and the queue sync what they say to be there.
"""

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

import dwell
from bench.postgres import Postgres, postgres_server
from bench.process import now_ms
from bench.redis_servers import until
from bench.result import Result, percentile
from bench.servers import dwell_server, free_port
from dwell.outbox import Outbox

_BODY_BYTES = 200
_PATIENCE_S = 300.0
_PART = 10_000
_WRITERS = 4

_SELECT = "SELECT seq, id, topic, body, due_ms FROM {} ORDER BY seq LIMIT {} FOR UPDATE SKIP LOCKED"

Batch = list[tuple[Any, ...]]


def run(*, messages: int, batch: int, rate: int, seconds: int, rounds: int) -> Result:
    """Measure all in turn, then how soon a worker has what is committed at a rate."""
    params = {"messages": messages, "batch": batch, "rate": rate, "seconds": seconds}
    params |= {"rounds": rounds, "body_bytes": _BODY_BYTES}
    result = Result("outbox", params, "rows/s")
    with postgres_server() as server:
        systems: dict[str, Callable[[], float]] = {
            "dwell": lambda: _relayed(server, messages, batch),
            "loop": lambda: _looped(server, messages, batch),
            "copy": lambda: _moved(server, messages, batch, lambda rows: None),
        }
        result.in_turn(rounds, systems)
        for name, by_relay in (("", True), ("without_", False)):
            late = _soon(server, rate, seconds, by_relay=by_relay)
            result.more[f"{name}p50_ms"] = round(percentile(late, 0.5), 1)
            result.more[f"{name}p99_ms"] = round(percentile(late, 0.99), 1)
    return result


# --- throughput -----------------------------------------------------------------------------------


def _relayed(server: Postgres, messages: int, batch: int) -> float:
    """Return the rate from the first row that was read until the table is empty."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        name = _filled(server, messages)
        with _relay(server, name, f"{folder}/store", "--batch", str(batch)) as counted:
            start, end = 0.0, time.monotonic() + _PATIENCE_S
            while counted('held_total{result="created"}') < messages:
                assert time.monotonic() < end, "the relay did not end"
                if not start and counted("read_total"):
                    start = time.perf_counter()
                time.sleep(0.05)
            took_s = time.perf_counter() - start
        with dwell.open(f"{folder}/store") as queue:
            assert queue.stats().topics["t"].ready == messages
    return messages / took_s


def _looped(server: Postgres, messages: int, batch: int) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder, dwell.open(f"{folder}/store") as queue:

        def put(rows: Batch) -> None:
            _, ids, topics, bodies, dues = zip(*rows, strict=True)
            queue.put_many(topics[0], bodies, ids=ids, due=dues)

        return _moved(server, messages, batch, put)


def _moved(server: Postgres, messages: int, batch: int, put: Callable[[Batch], object]) -> float:
    """Move batch by batch, and return the rate."""
    name = _filled(server, messages)
    with psycopg.connect(server.url) as link:
        start, done = time.perf_counter(), 0
        while done < messages:
            rows = link.execute(_SELECT.format(name, batch).encode(), binary=True).fetchall()
            put(rows)
            seqs = [row[0] for row in rows]
            link.execute(f"DELETE FROM {name} WHERE seq = ANY(%s)".encode(), (seqs,))
            link.commit()
            done += len(rows)
        return messages / (time.perf_counter() - start)


def _filled(server: Postgres, messages: int) -> str:
    """Return a table with so many rows, and without what statistics and vacuum would do later."""
    outbox, engine = _outbox(server)
    bodies, due = [b"x" * _BODY_BYTES] * _PART, int(now_ms())
    for first in range(0, messages, _PART):
        with engine.begin() as link:
            outbox.put_many(link, "t", bodies[: messages - first], due=due)
    engine.dispose()
    with psycopg.connect(server.url, autocommit=True) as link:
        link.execute(f"VACUUM ANALYZE {outbox.table.name}".encode())
        link.execute("CHECKPOINT")
    return str(outbox.table.name)


def _outbox(server: Postgres) -> tuple[Outbox, sa.Engine]:
    engine = sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
    outbox = Outbox(f"t{uuid.uuid4().hex[:12]}")
    outbox.create(engine)
    return outbox, engine


@contextlib.contextmanager
def _relay(server: Postgres, name: str, store: str, *more: str) -> Iterator[Callable[[str], float]]:
    """Run ``dwell relay``; yield what tells its counts by name."""
    port = free_port()
    program = str(Path(sys.executable).with_name("dwell"))
    command = [program, "--store", store, "--quiet", "relay", "--http", f"127.0.0.1:{port}"]
    command += ["--from", f"outbox+{server.url}?table={name}", *more]
    process = subprocess.Popen(command)
    try:
        yield lambda name: _counted(port, name)
    finally:
        process.terminate()
        process.wait()


def _counted(port: int, name: str) -> float:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return 0
    start = f"dwell_relay_{name} "
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


# --- how soon -------------------------------------------------------------------------------------


def _soon(server: Postgres, rate: int, seconds: int, *, by_relay: bool) -> list[float]:
    """Commit one message after the other at a rate; return how soon a worker has each, in order.

    The way to the worker is more than the put, so what is said is a little too much. Without a
    relay the writer puts each itself after its commit, as people do who may lose it then. What
    comes in the first second, while all begin, does not count.
    """
    total = rate * (seconds + 1)
    outbox, engine = _outbox(server)
    committed, came = [0.0] * total, [0.0] * total
    with dwell_server() as (host, port), contextlib.ExitStack() as running:
        store = f"http://{host}:{port}"
        if by_relay:
            counted = running.enter_context(_relay(server, str(outbox.table.name), store))
            with engine.begin() as link:
                outbox.put(link, "first", b"")
            until(lambda: counted("read_total"), "the relay read nothing")
        taking = threading.Thread(target=_take, args=[store, came], daemon=True)
        taking.start()
        start = time.perf_counter()

        def write(first: int) -> None:
            with engine.connect() as link, dwell.open(store) as queue:
                for at in range(first, total, _WRITERS):
                    time.sleep(max(0.0, start + at / rate - time.perf_counter()))
                    body = str(at).encode().ljust(_BODY_BYTES)
                    outbox.put(link, "t", body)
                    link.commit()
                    committed[at] = now_ms()
                    if not by_relay:
                        queue.put("t", body)

        with ThreadPoolExecutor(_WRITERS) as writers:
            list(writers.map(write, range(_WRITERS)))
        taking.join(_PATIENCE_S)
    engine.dispose()
    assert not taking.is_alive(), "some did not come"
    # It may be there before the writer was told of its commit.
    pairs = list(zip(came, committed, strict=True))[rate:]
    return sorted(max(0.0, there - told) for there, told in pairs)


def _take(store: str, came: list[float]) -> None:
    with dwell.open(store) as queue:
        left = len(came)
        while left:
            batch = queue.take("t", 1_000, wait="10s")
            at_ms = now_ms()
            for message in batch:
                came[int(message.body)] = at_ms
            queue.ack(batch)
            left -= len(batch)
