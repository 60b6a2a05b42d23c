"""Run a benchmark: ``python -m bench lifecycle --batch 1000 --ids queue --json``."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bench import (
    backlog,
    beanstalk,
    byid,
    celery,
    console,
    far,
    http,
    idle,
    keys,
    lateness,
    lifecycle,
    memory,
    moments,
    outbox,
    relay,
    restart,
    scaling,
    schedules,
    spark_audit,
    spark_campaign,
    spark_kafka,
    spark_read,
    spark_stream,
    spark_write,
    stall,
    takers,
    worker,
)
from bench.result import Result

#: For each benchmark: its function, the parameters of a full run, and those of a small one.
BENCHES: dict[str, tuple[Callable[..., Result], dict[str, Any], dict[str, Any]]] = {
    "lifecycle": (
        lifecycle.run,
        {
            "store": "embedded",
            "batch": 1000,
            "ids": "queue",
            "messages": 0,
            "concurrency": 64,
            "rounds": 5,
        },
        {"messages": 64_000, "rounds": 1},
    ),
    "lateness": (
        lateness.run,
        {
            "store": "embedded",
            "over": "process",
            "rate": 0,
            "pending": 1_000_000,
            "seconds": 10,
            "rounds": 3,
        },
        {"rate": 2_000, "pending": 20_000, "seconds": 2, "rounds": 1},
    ),
    "memory": (
        memory.run,
        {"store": "embedded", "ids": "queue", "pending": 5_000_000},
        {"pending": 100_000},
    ),
    "far": (
        far.run,
        {"pending": 10_000_000, "memory_mb": 128, "named": 200_000},
        {"pending": 300_000, "memory_mb": 64, "named": 20_000},
    ),
    "restart": (restart.run, {"pending": 5_000_000, "rounds": 3}, {"pending": 50_000, "rounds": 1}),
    "stall": (
        stall.run,
        {
            "pending": 5_000_000,
            "rate": 20_000,
            "seconds": 120,
            "sync_ms": 300,
            "ids": "queue",
            "topics": 60_000,
            "large": 1_000_000,
            "schedules": 20_000,
            "rounds": 1,
        },
        {
            "pending": 20_000,
            "rate": 2_000,
            "seconds": 3,
            "sync_ms": 20,
            "topics": 500,
            "large": 20_000,
            "schedules": 1_000,
        },
    ),
    "http": (
        http.run,
        {"batch": 1000, "messages": 0, "connections": 64, "rounds": 3, "profile": False},
        {"messages": 16_000, "rounds": 1},
    ),
    "keys": (
        keys.run,
        {
            "store": "embedded",
            "keys": 100_000,
            "spread": "turns",
            "batch": 1000,
            "messages": 1_600_000,
            "rounds": 3,
        },
        {"keys": 1_000, "messages": 32_000, "rounds": 1},
    ),
    "idle": (
        idle.run,
        {"pending": 1_000_000, "takers": 1000, "seconds": 30},
        {"pending": 20_000, "takers": 50, "seconds": 2},
    ),
    "beanstalk": (
        beanstalk.run,
        {"mode": "pipelined", "seconds": 5, "rounds": 3},
        {"seconds": 1, "rounds": 1},
    ),
    "spark_write": (
        spark_write.run,
        {"rows": 2_000_000, "rounds": 3},
        {"rows": 20_000, "rounds": 1},
    ),
    "spark_read": (
        spark_read.run,
        {"view": "messages", "rows": 2_000_000, "rounds": 3},
        {"rows": 50_000, "rounds": 1},
    ),
    "spark_stream": (
        spark_stream.run,
        {"mode": "drain", "messages": 1_000_000, "rate": 1000, "seconds": 30, "rounds": 3},
        {"messages": 20_000, "rounds": 1},
    ),
    "spark_campaign": (spark_campaign.run, {"rows": 20_000_000}, {"rows": 50_000}),
    "spark_kafka": (
        spark_kafka.run,
        {"messages": 1_000_000, "rounds": 3},
        {"messages": 20_000, "rounds": 1},
    ),
    "spark_audit": (spark_audit.run, {"events": 10_000_000}, {"events": 50_000}),
    "byid": (
        byid.run,
        {"pending": 1_000_000, "batch": 1000, "rounds": 3},
        {"pending": 20_000, "rounds": 1},
    ),
    "backlog": (
        backlog.run,
        {"few": 10_000, "many": 1_000_000, "messages": 500_000, "rounds": 3},
        {"few": 1_000, "many": 50_000, "messages": 20_000, "rounds": 1},
    ),
    "relay": (
        relay.run,
        {
            "broker": "kafka",
            "messages": 400_000,
            "rate": 5_000,
            "seconds": 10,
            "once": "no",
            "rounds": 3,
        },
        {"messages": 10_000, "rate": 500, "seconds": 2, "rounds": 1},
    ),
    "moments": (
        moments.run,
        {"schedules": 100_000, "rounds": 3},
        {"schedules": 4_000, "rounds": 1},
    ),
    "schedules": (
        schedules.run,
        {
            "store": "redis",
            "schedules": 100_000,
            "rate": 1_000,
            "processes": 3,
            "seconds": 600,
            "kill_s": 60.0,
        },
        {"schedules": 500, "rate": 100, "seconds": 6, "kill_s": 2.0},
    ),
    "console": (
        console.run,
        {
            "pending": 5_000_000,
            "topics": 1_000,
            "browsers": 20,
            "messages": 4_000_000,
            "seconds": 10,
            "rounds": 5,
        },
        {"pending": 20_000, "topics": 100, "messages": 100_000, "seconds": 2, "rounds": 1},
    ),
    "outbox": (
        outbox.run,
        {"messages": 200_000, "batch": 5_000, "rate": 500, "seconds": 20, "rounds": 3},
        {"messages": 10_000, "rate": 200, "seconds": 2, "rounds": 1},
    ),
    "scaling": (
        scaling.run,
        {"messages": 500_000, "rounds": 3},
        {"messages": 20_000, "rounds": 1},
    ),
    "takers": (
        takers.run,
        {"over": "process", "putters": 64, "takers": 2, "messages": 100_000, "rounds": 5},
        {"messages": 12_800, "rounds": 1},
    ),
    "celery": (
        celery.run,
        {"tasks": 20_000, "countdowns": 100_000, "rounds": 3},
        {"tasks": 800, "countdowns": 1_000, "rounds": 1},
    ),
    "worker": (
        worker.run,
        {"messages": 50_000, "rounds": 3},
        {"messages": 5_000, "rounds": 1},
    ),
}

#: What ``all`` runs beside each benchmark as it is.
ALSO: list[tuple[str, dict[str, Any]]] = [
    ("lifecycle", {"store": "redis"}),
    ("lifecycle", {"store": "redis", "batch": 1}),
    ("lateness", {"store": "redis"}),
    ("memory", {"store": "redis"}),
    ("relay", {"broker": "rabbitmq"}),
]

#: The options that have few values.
_CHOICES = {
    "ids": ["queue", "caller"],
    "store": ["embedded", "redis"],
    "spread": ["turns", "random"],
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    for name, (function, full, _) in BENCHES.items():
        summary = (sys.modules[function.__module__].__doc__ or "").strip()
        command = commands.add_parser(name, help=summary, description=summary)
        for option, value in full.items():
            if value is False:
                command.add_argument(f"--{option}", action="store_true", default=None)
                continue
            choices = _CHOICES.get(option)
            command.add_argument(f"--{option}", type=type(value), choices=choices, default=None)
    commands.add_parser("all", help="every benchmark once")
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print one object of JSON")
        command.add_argument("--small", action="store_true", help="small enough for every change")
    return parser


def main() -> None:
    """Run what the command line asks for."""
    options = vars(_parser().parse_args())
    name, as_json, small = options.pop("name"), options.pop("json"), options.pop("small")
    given = {option: value for option, value in options.items() if value is not None}
    if name == "all":
        _all(["--json"] * as_json + ["--small"] * small)
        return
    function, full, less = BENCHES[name]
    function(**{**full, **(less if small else {}), **given}).show(as_json=as_json)


def _all(flags: list[str]) -> None:
    """Run every benchmark in a process of its own: a JVM, say, takes jars only as it starts."""
    for name, own in [*((each, {}) for each in BENCHES), *ALSO]:
        words = [f"--{option}={value}" for option, value in own.items()]
        subprocess.run([sys.executable, "-m", "bench", name, *words, *flags], check=True)


if __name__ == "__main__":
    main()
