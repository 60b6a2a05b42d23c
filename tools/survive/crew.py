"""The crew: actors in processes of their own, what they say read to the end, and kill -9."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from tools.survive.books import Books

ROOT = Path(__file__).parents[2]
_decode = msgspec.json.Decoder(list).decode


class Member:
    """One actor's process."""

    def __init__(self, books: Books, roles: str, url: str, name: str, clock: Path | None) -> None:
        self.name = name
        self._books = books
        words = [roles, url, name, *([] if clock is None else [str(clock)])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.survive.actor", *words],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        # What is cut off in the middle of a line was never said.
        rest = b""
        while part := os.read(self._process.stdout.fileno(), 1 << 16):
            *lines, rest = (rest + part).split(b"\n")
            self._books.enter(self.name, map(_decode, lines))

    def kill(self) -> None:
        """Kill it, and read what it had said to the end."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with status {self._process.returncode}")
        self._books.die(self.name)
        self._process.kill()
        self._end()

    def drain(self) -> None:
        """Let it put nothing more."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"d")
            self._process.stdin.flush()

    def stop(self) -> None:
        """Let it come to an end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._reader.join()


def environment() -> dict[str, str]:
    """Return the environment of processes: this one's, without what would set a store up."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DWELL_")}
    paths = [str(ROOT / "src"), str(ROOT), kept.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Crew:
    """The actors of a scenario; each has a role, and another takes its place when it is killed."""

    def __init__(self, books: Books, url: str, roles: list[str], clock: Path | None) -> None:
        self._books, self._url, self._clock = books, url, clock
        self._roles = roles
        self._members: list[Member] = []
        self._number = 0

    def start(self) -> None:
        """Start one of each role."""
        self._members = [self._new(role) for role in self._roles]

    def _new(self, role: str) -> Member:
        self._number += 1
        return Member(self._books, role, self._url, f"{role[:3]}{self._number}", self._clock)

    def named(self, role: str) -> str:
        """Return the name of the first actor with a role."""
        return self._members[self._roles.index(role)].name

    def kill(self, role: str) -> str:
        """Kill the first actor with a role and return its name; another one starts at once."""
        index = self._roles.index(role)
        member = self._members[index]
        member.kill()
        self._members[index] = self._new(role)
        return member.name

    def drain(self) -> None:
        """Let nobody put any more."""
        for member in self._members:
            member.drain()

    def stop(self) -> None:
        """Let all come to an end."""
        for member in self._members:
            member.stop()
        self._members = []
