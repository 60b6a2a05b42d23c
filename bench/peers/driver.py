"""A driver, seen from here: a program that answers one JSON object a line, bounded in time.

The commands, by ``do``: ``open`` {address}; ``take`` {takers, limit, file}, which goes on until the
program ends; ``put``, ``cancel`` and ``move`` {first, count, batch, callers, and optionally
start_ms and rate (dues), seconds (a limit), lead_ms (paced before the due), file (what was
confirmed), keep (the ids are needed later)}. ``bench/peers/drivers/program.py`` answers them.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.process import descendants, is_running

ROOT = Path(__file__).parents[2]


#: How long a program may take to end in order.
_END_S = 3.0


class PeerFailed(Exception):
    """A peer did not do what it was told to: what it said, or that it said nothing."""


class PeerCannot(PeerFailed):
    """A peer does not have what is to be measured; it is as well as before."""


class Driver:
    """One program, with the processes that it started."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=ROOT,
                # Frameworks start processes of their own; all of them end with the group.
                start_new_session=True,
            )
        self._read = b""

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def tell(self, do: str, **more: Any) -> None:
        """Begin a command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(self._ended()) from None

    def answer(self, seconds: float) -> dict[str, Any]:
        """Return the answer to the command that began."""
        end = time.monotonic() + seconds
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(end - time.monotonic(), 0)):
                    raise PeerFailed(f"no answer within {seconds:.0f} s")
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    raise PeerFailed(self._ended())
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
            failed = answer.get("failed")
        except (AttributeError, ValueError):
            raise PeerFailed(f"the driver said {line[:200]!r}") from None
        if failed is not None:
            raise PeerFailed(failed)
        return answer

    def ask(self, do: str, *, within_s: float = 30, **more: Any) -> dict[str, Any]:
        """Return the answer to a command."""
        self.tell(do, **more)
        return self.answer(within_s)

    def end(self, *, at_once: bool = False) -> None:
        """End the program and what it started; workers may first give back what they hold."""
        pids = [self.pid, *descendants(self.pid)]
        with contextlib.suppress(ProcessLookupError):
            if not at_once:
                os.killpg(self.pid, signal.SIGTERM)
                end = time.monotonic() + _END_S
                while any(map(is_running, pids)) and time.monotonic() < end:
                    time.sleep(0.01)
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()

    def _ended(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        status = self._process.wait()
        return f"the driver ended with status {status}: {lines[-1][:300] if lines else 'no words'}"
