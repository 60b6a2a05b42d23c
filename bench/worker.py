"""Messages that a worker handles a second, with handlers that do nothing, one message each."""

import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

from bench.redis_servers import Server, redis_server
from bench.result import Result
from bench.servers import dwell_server
from bench.workers import PEERS
from tools.rooms import ROOT

_PYTHON = ROOT / ".brokers/tasks/bin/python"
#: How long one of them may take.
_MOST_S = 300


def run(*, messages: int, rounds: int) -> Result:
    """Let a worker handle messages of a store in a folder, and of a server, beside its peers.

    The peers handle a tenth as many. ``own_us`` is what the worker itself takes a message.
    """
    result = Result("worker", {"messages": messages}, "messages/s")
    own_us: dict[str, list[float]] = {"dwell": [], "http": []}
    with redis_server() as server:

        def dwell(place: str) -> float:
            said = _folder(messages) if place == "dwell" else _served(messages)
            own_us[place].append(said["own_us"])
            rate: float = said["rate"]
            return rate

        systems = {place: partial(dwell, place) for place in own_us}
        systems |= {name: partial(_peer, server, name, messages // 10) for name in PEERS}
        result.in_turn(rounds, systems)
    best = max(result.median(name) for name in PEERS)
    for place, figures in own_us.items():
        result.more[f"{place}_own_us"] = round(statistics.median(figures), 1)
        result.more[f"{place}_of_the_best"] = round(result.median(place) / best, 2)
    return result


def _folder(messages: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        return _worked(f"{folder}/store", messages)


def _served(messages: int) -> dict[str, Any]:
    with dwell_server() as address:
        return _worked("http://{}:{}".format(*address), messages)


def _worked(url: str, messages: int) -> dict[str, Any]:
    said = _said([sys.executable, "-m", "bench.worked", url, str(messages)])
    found: dict[str, Any] = json.loads(said)
    return found


def _peer(server: Server, name: str, messages: int) -> float:
    server.ask("FLUSHALL")
    if not _PYTHON.exists():
        raise SystemExit(f"{_PYTHON} is not there; make setup makes it")
    command = [str(_PYTHON), "-m", "bench.workers", name, str(server.port), str(messages)]
    # What else they say of themselves comes before.
    return float(_said(command).splitlines()[-1])


def _said(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_MOST_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout
