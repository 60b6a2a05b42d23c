"""The peers: what runs, by what their driver is run, and what has to be known of the comparison."""

import sys
from collections.abc import Callable
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
]
