"""The peers: what runs, by what their driver is run, and what has to be known of the comparison."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.peers import engines
from bench.peers.driver import ROOT
from bench.peers.engines import Engine

#: Where ``make bench-peers`` puts what peers are made of.
PLACE = ROOT / ".brokers" / "peers"
_PYTHON = PLACE / "python" / "bin" / "python"
_GO = PLACE / "go"
_NODE = ROOT / "bench" / "bullmq" / "node_modules"


@dataclass(frozen=True)
class Peer:
    """One system, with the settings that it is measured with."""

    name: str
    engine: Callable[[], AbstractContextManager[Engine]]
    #: What runs its driver.
    command: tuple[str, ...]
    #: What has to be there.
    needs: Path
    #: Who calls the handlers, who confirms, who syncs when.
    note: str
    #: What of Dwell it is compared with: the server, or the library in one process.
    beside: str = "dwell"


def _python(module: str, python: Path | str = sys.executable) -> tuple[str, ...]:
    return (str(python), "-m", f"bench.peers.drivers.{module}")


def _on_redis(
    name: str, note: str, command: tuple[str, ...] = (), needs: Path = _PYTHON
) -> Iterator[Peer]:
    """Yield a peer with the setting that its durable users have, and with the fastest."""
    for kept, suffix, words in (
        (True, "", "Redis with appendfsync everysec. "),
        (False, " in memory", "Redis that keeps nothing on disk. "),
    ):
        engine = partial(engines.redis, kept=kept)
        driver = command or _python(name, _PYTHON)
        yield Peer(name + suffix, engine, driver, needs, words + note)


PEERS = [
    Peer(
        "dwell",
        engines.dwell,
        _python("dwell"),
        ROOT,
        "The server over a folder, its Python client over HTTP. The server answers after "
        "fdatasync; takers wait at the server, take up to the limit and ack each batch.",
    ),
    Peer(
        "dwell embedded",
        engines.library,
        _python("dwell"),
        ROOT,
        "The same client over a folder, in one process that puts and takes.",
        beside="dwell embedded",
    ),
    Peer(
        "sql",
        engines.postgres,
        _python("sql"),
        ROOT,
        "A table of PostgreSQL and psycopg, as people write it by hand: takers select rows that "
        "are due FOR UPDATE SKIP LOCKED, delete them in the transaction that handles them, and "
        "look again after 5 ms when there was none. synchronous_commit is on.",
    ),
    *(
        Peer(
            name,
            partial(
                engines.program,
                "nats://127.0.0.1:{port}",
                *(_GO, "nats-server", "{port}", "{folder}", sync),
            ),
            (str(_GO), "nats"),
            _GO,
            f"JetStream with message schedules, nats.go, sync_interval {sync}{also}. A subject for "
            "each delayed message and one work queue for all that are due; publishes are "
            "confirmed, acks are sent and not confirmed. A batch is published at once, and its "
            "confirmations are awaited together.",
        )
        for name, sync, also in (
            ("nats", "2m", ", as it comes: what came since can be lost in a power cut"),
            ("nats sync", "always", ""),
        )
    ),
    Peer(
        "river",
        engines.postgres,
        (str(_GO), "river"),
        _GO,
        "River on PostgreSQL, its own client in Go. A taker is a client with MaxWorkers 1,000; "
        "FetchCooldown is 5 ms (of itself 100), and all else as it comes. A batch is an "
        "InsertManyFast, by COPY.",
    ),
    *_on_redis(
        "rq",
        "A worker process for each taker, as SimpleWorker (the usual one forks for each job and "
        "is slower by far), each with the scheduler. A job is taken off its list as its work "
        "begins. A batch is a pipeline of enqueues.",
    ),
    *_on_redis(
        "celery",
        "One worker with a process for each taker, default acks (before the task runs) and "
        "prefetch. A task with an ETA is held in the worker's memory; revoke is a broadcast that "
        "nothing confirms.",
    ),
    *_on_redis(
        "huey",
        "One consumer with a thread for each taker, which takes a task off its list before it "
        "runs; results are off. The scheduler looks once a second, the least that it allows.",
    ),
    *(
        Peer(name, engines.postgres, _python(name, _PYTHON), _PYTHON, note)
        for name, note in (
            (
                "procrastinate",
                "A worker process for each taker with concurrency 10, woken by notifications and "
                "polling every 0.1 s (of itself 5), jobs deleted when they have succeeded. A batch "
                "is a batch_defer of jobs that fall due at one time.",
            ),
            (
                "awa",
                "awa-pg, a client for each taker with 100 workers, polling and promoting every "
                "10 ms. A batch is an insert_many_copy of jobs that fall due at one time.",
            ),
        )
    ),
    *_on_redis(
        "bullmq",
        "BullMQ on Node, a Worker with concurrency 100 for each taker, jobs removed when they "
        "are complete. A batch is an addBulk.",
        ("node", str(_NODE.parent / "driver.mjs")),
        _NODE / "bullmq",
    ),
    Peer(
        "rabbitmq",
        engines.rabbitmq,
        _python("rabbitmq"),
        ROOT,
        "RabbitMQ without a plugin: persistent messages wait in a durable queue with a TTL each, "
        "and a dead-letter exchange brings them to the queue that takers read. Publishes are "
        "confirmed, acks are sent. A batch is published at once. Only the head of a queue "
        "expires, so that many pending messages with longer delays hold up the others.",
    ),
    Peer(
        "beanstalkd",
        engines.beanstalkd,
        _python("beanstalkd"),
        ROOT,
        "beanstalkd -f 0 (each write is synced), greenstalk. Delays are whole seconds, rounded up "
        "here, so that it is up to a second late and never early.",
    ),
    Peer(
        "river sqlite",
        partial(engines.library, "sqlite:"),
        (str(_GO), "river"),
        _GO,
        "River on SQLite with a write-ahead log and full syncs, in one process that puts and "
        "takes; its ratios are to Dwell embedded.",
        beside="dwell embedded",
    ),
]
