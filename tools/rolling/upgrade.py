"""The upgrade: starts everything on an older revision, and replaces one process after another.

Over ``http`` there are a server, two putters, two workers, and two processes that change settings;
the server is replaced first. Over ``redis`` every process has the store open, and each is replaced
in turn, so that both revisions work on the store at the same time.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.against import checkout
from bench.redis_servers import redis_server
from bench.servers import free_port

_ROOT = Path(__file__).parents[2]
_PART = Path(__file__).with_name("part.py")
_ROLES = ("put", "work", "settings", "put", "work", "settings")
#: How many more lines of each process are awaited before the next is replaced.
_LINES = 40
_PATIENCE_S = 120.0


class Found(NamedTuple):
    """What came of it: ids that were accepted, of those not handled, and handled again; errors."""

    accepted: int
    lost: int
    again: int
    errors: list[str]


class _Process:
    """A process of one revision, whose lines go to a file."""

    def __init__(self, tree: Path, command: list[str], place: Path) -> None:
        self.place = place
        python = _ROOT / ".venv" / "bin" / "python"
        with place.open("wb") as out, place.with_suffix(".err").open("wb") as err:
            self._process = subprocess.Popen(
                [str(python), *command],
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONPATH": str(tree / "src")},
            )

    def lines(self) -> list[str]:
        """Return what it has said so far."""
        return self.place.read_text().splitlines()

    def end(self) -> str | None:
        """Stop it gracefully; return its error, if it did not end well."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(_PATIENCE_S)
        said = self.place.with_suffix(".err").read_text()
        is_bad = code not in (0, -signal.SIGTERM) or "Traceback" in said
        return f"{self.place.name} ended with {code}: {said[-800:]}" if is_bad else None

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        self._process.kill()
        self._process.wait()


def run(revision: str, store: str) -> Found:
    """Upgrade from a revision to this checkout; raises TimeoutError if nothing goes on."""
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(checkout(revision))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if store == "redis":
            url = f"redis://127.0.0.1:{stack.enter_context(redis_server()).port}"
            roles = list(_ROLES)
        else:
            url = f"http://127.0.0.1:{free_port()}"
            roles = ["serve", *_ROLES]
        made: list[_Process] = []

        def start(tree: Path, role: str) -> _Process:
            name = f"{role}-{len(made)}"
            command = [str(_PART), role, url, name]
            if role == "serve":
                address = url.removeprefix("http://")
                command = [
                    "-c",
                    "from dwell.cli import main; main()",
                    "serve",
                    str(folder / "store"),
                ]
                command += ["--http", address, "--beanstalk", "off"]
            made.append(_Process(tree, command, folder / name))
            stack.callback(made[-1].kill)
            return made[-1]

        running = [start(there, role) for role in roles]
        errors: list[str | None] = []
        for place, role in enumerate(roles):
            _await(lambda: all(_goes_on(one) for one in running))
            errors.append(running[place].end())
            running[place] = start(_ROOT, role)
        _await(lambda: all(_goes_on(one) for one in running))
        by_role = list(zip(roles, running, strict=True))
        errors += [one.end() for role, one in by_role if role in ("put", "settings")]
        accepted = {id_ for one in made if one.place.name.startswith("put") for id_ in one.lines()}

        def handled() -> Counter[str]:
            workers = [one for one in made if one.place.name.startswith("work")]
            return Counter(id_ for one in workers for id_ in one.lines())

        with contextlib.suppress(TimeoutError):
            _await(lambda: accepted <= handled().keys())
        errors += [one.end() for role, one in reversed(by_role) if role in ("work", "serve")]
        done = handled()
        lost = accepted - done.keys()
        again = sum(done.values()) - len(done)
        return Found(len(accepted), len(lost), again, [error for error in errors if error])


def _goes_on(process: _Process) -> bool:
    return process.place.name.startswith("serve") or len(process.lines()) >= _LINES


def _await(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("no progress: a process of the upgrade does nothing")
        time.sleep(0.05)
