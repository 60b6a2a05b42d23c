"""A queue whose answers are lost, and processes that are killed, at one chosen call."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dwell

ROOT = Path(__file__).parents[2]

#: What can happen to a call: it never arrives, or it is done and nobody hears of it.
BEFORE, AFTER = "before", "after"


class Losing:
    """A queue of which the first call of one verb is lost, before or after it was done.

    ``kill`` ends the process there, as SIGKILL would, where otherwise ServerUnreachable is raised.
    """

    def __init__(self, queue: Any, verb: str, when: str, *, kill: bool = False) -> None:
        self._queue = queue
        self._verb = verb
        self._when = when
        self._kill = kill
        self.is_lost = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._queue, name)
        if name != self._verb or self.is_lost:
            return real

        def lost(*args: Any, **options: Any) -> None:
            self.is_lost = True
            if self._when == AFTER:
                real(*args, **options)
            if self._kill:
                os._exit(9)
            raise dwell.ServerUnreachable("the answer was lost")

        return lost


def run(code: str, *args: str, exit_code: int = 0) -> None:
    """Run code in a process of its own, which has to end so; 9 is how a kill ends it."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
