"""Several processes of ``dwell work``: they are started again when they end, or files change."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from dwell.errors import InvalidInput
from dwell.urls import host_and_port

_PROGRAM = (sys.executable, "-c", "from dwell.cli import main; main()")
#: Seconds until a process that has ended is started again, and between two checks.
_AGAIN_S, _LOOK_S = 1.0, 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_many(
    words: Sequence[str], count: int, http: str | None, quiet: bool, *, is_reloaded: bool
) -> None:
    """Run ``dwell work WORDS`` in ``count`` processes until SIGTERM or SIGINT, which all receive.

    A process that ends with status 0, as in a burst, is not started again.
    """
    commands = [
        [*_PROGRAM, *(["--quiet"] if quiet else []), "work", *words, *_http_of(http, at)]
        for at in range(count)
    ]
    if is_reloaded:
        _run_reloaded(commands)
    else:
        _Force(commands).run()


def _http_of(http: str | None, at: int) -> list[str]:
    if http is None:
        return []
    host, port = host_and_port(http, "--http")
    return ["--http", f"{host}:{port + at}"]


def _run_reloaded(commands: Sequence[Sequence[str]]) -> None:
    try:
        import watchfiles
    except ImportError as error:
        raise InvalidInput(f"reload: needs pip install 'dwell[worker]': {error}") from None
    here = os.getcwd()
    force = _Force(commands)
    force.start()
    force.listen()
    changes = watchfiles.watch(
        here,
        watch_filter=watchfiles.PythonFilter(),
        stop_event=force.stopping,
        yield_on_timeout=True,
        rust_timeout=200,
    )
    for change in changes:
        if change:
            force.end()
            force.start()
    force.end()


class _Stopping:
    """Tells watchfiles whether a signal has come.

    A second signal may come during the first: an Event has a lock, and would wait for itself.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Note that one has."""
        self._is_set = True

    def is_set(self) -> bool:
        """Tell whether one has."""
        return self._is_set


class _Force:
    """The processes of some commands."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._running: list[subprocess.Popen[bytes] | None] = []
        self.stopping = _Stopping()

    def start(self) -> None:
        """Start all."""
        self._running = [self._started(command) for command in self._commands]

    def _started(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        # A Ctrl-C comes to this process, which sends it on, once.
        return subprocess.Popen(command, process_group=0)

    def listen(self) -> None:
        """Send on the signals that come."""
        for number in _SIGNALS:
            signal.signal(number, self._send)

    def run(self) -> None:
        """Run all until they have ended, or were told to."""
        self.start()
        self.listen()
        while any(self._running):
            time.sleep(_LOOK_S)
            for at, process in enumerate(self._running):
                if process is None or process.poll() is None:
                    continue
                self._running[at] = None
                if process.returncode and not self.stopping.is_set():
                    time.sleep(_AGAIN_S)
                    if not self.stopping.is_set():
                        self._running[at] = self._started(self._commands[at])

    def end(self) -> None:
        """Terminate all processes, and wait until they have finished their work."""
        for process in filter(None, self._running):
            process.terminate()
        for process in filter(None, self._running):
            process.wait()

    def _send(self, number: int, frame: FrameType | None) -> None:
        self.stopping.set()
        for process in filter(None, self._running):
            process.send_signal(number)
