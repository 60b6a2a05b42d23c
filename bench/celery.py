"""Celery on Dwell beside Celery on Redis: tasks that do nothing a second, and countdowns in memory.

Both run the same Celery in this interpreter, each worker in a process of its own.
"""

import json
import subprocess
import sys
from functools import partial
from typing import Any

from bench.redis_servers import Server, redis_server
from bench.result import Result
from bench.servers import dwell_server
from tools.rooms import ROOT

#: How long one of them may take, seconds.
_MOST_S = 900


def run(*, tasks: int, countdowns: int, rounds: int) -> Result:
    """Let a worker handle tasks of each broker; then let it run beside countdowns of an hour.

    ``redis`` is Celery's own transport on a Redis that keeps nothing on disk; ``dwell`` is a
    server that syncs each put, and ``dwell_redis`` the store on that Redis. ``published`` are the
    tasks that one client puts a second, ``batched`` those of one ``producer.batch()``.
    ``memory`` is what a worker grows by while it runs beside the countdowns, in bytes for each.
    """
    result = Result("celery", {"tasks": tasks, "countdowns": countdowns}, "tasks/s")
    more: dict[str, list[float]] = {}
    with redis_server() as server:

        def measured(name: str) -> float:
            said = _measured(server, name, ["tasks", str(tasks)])
            for key in ("published", "batched"):
                more.setdefault(f"{name}_{key}", []).append(said[key])
            rate: float = said["handled"]
            return rate

        names = ("dwell", "dwell_redis", "redis")
        result.in_turn(rounds, {name: partial(measured, name) for name in names})
        for name in names:
            said = _measured(server, name, ["countdowns", str(countdowns)])
            result.more[f"{name}_memory"] = round(said["grown_bytes"] / countdowns)
    result.more |= {name: round(sorted(found)[len(found) // 2]) for name, found in more.items()}
    return result


def _measured(server: Server, name: str, words: list[str]) -> dict[str, Any]:
    server.ask("FLUSHALL")
    redis = f"redis://127.0.0.1:{server.port}/0"
    if name == "dwell":
        with dwell_server() as address:
            return _said(["dwell+http://{}:{}".format(*address), *words])
    return _said([f"dwell+{redis}" if name == "dwell_redis" else redis, *words])


def _said(words: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.celery_worker", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_MOST_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-800:]}")
    # What Celery says of itself comes before.
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
