"""``dwell relay`` as a process, and its counts."""

import contextlib
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from bench.servers import free_port

_PATIENCE_S = 300.0

#: What tells a relay's counts by name.
Counted: TypeAlias = Callable[[str], float]


@contextlib.contextmanager
def relaying(source: str, sink: str, *more: str) -> Iterator[Counted]:
    """Run ``dwell relay`` on a folder of its own."""
    port = free_port()
    program = str(Path(sys.executable).with_name("dwell"))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        command = [program, "--store", f"{folder}/store", "--quiet", "relay"]
        command += ["--from", source, "--to", sink, "--http", f"127.0.0.1:{port}"]
        process = subprocess.Popen([*command, *more])
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
    start = f"dwell_relay_{name}_total "
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def wait_for(condition: Callable[[], bool]) -> None:
    """Look again and again until a condition holds."""
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "the relay did not end"
        time.sleep(0.02)
