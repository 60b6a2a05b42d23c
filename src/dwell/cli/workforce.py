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
#: After so many failures a process is not started again in a burst, which has to end.
_MOST_FAILURES = 3
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_many(
    words: Sequence[str],
    count: int,
    http: str | None,
    quiet: bool,
    *,
    is_burst: bool,
    is_reloaded: bool,
) -> None:
    """Run ``dwell work WORDS`` in ``count`` processes until SIGTERM or SIGINT, which all receive.

    One that ends is started again, unless it has ended a burst with status 0, or failed three times
    in a burst, which raises SystemExit once all have ended. When files are watched, all are started
    again at each change, too.
    """
    burst = ["--burst"] if is_burst else []
    commands = [
        [*_PROGRAM, *(["--quiet"] if quiet else []), "work", *words, *burst, *_http_of(http, at)]
        for at in range(count)
    ]
    if is_reloaded:
        _run_reloaded(commands)
    else:
        _Force(commands).run(is_burst=is_burst)


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
    force.listen()
    force.start()
    is_code = watchfiles.PythonFilter()
    # A filter of its own would say nothing for as long as other files change, such as a log.
    ticks = watchfiles.watch(
        here,
        watch_filter=None,
        stop_event=force.stopping,
        yield_on_timeout=True,
        rust_timeout=200,
    )
    for changes in ticks:
        if any(is_code(*change) for change in changes):
            force.end()
            force.start()
        force.look()
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
        self._running: list[subprocess.Popen[bytes] | None] = [None] * len(commands)
        self._failures = [0] * len(commands)
        #: When an ended process is started again.
        self._again_s: dict[int, float] = {}
        self._are_told = False
        self.stopping = _Stopping()

    def start(self) -> None:
        """Start all, unless they are to stop."""
        self._are_told = False
        for at in range(len(self._commands)):
            self._start(at)

    def _start(self, at: int) -> None:
        self._again_s.pop(at, None)
        if self.stopping.is_set():
            return
        # A Ctrl-C comes to this process, which sends it on, once.
        process = subprocess.Popen(self._commands[at], process_group=0)
        self._running[at] = process
        if self.stopping.is_set():
            # The signal may have come before this one stood in the list.
            process.terminate()

    def listen(self) -> None:
        """Send on the signals that come."""
        for number in _SIGNALS:
            signal.signal(number, self._send)

    def run(self, *, is_burst: bool) -> None:
        """Run all until they were told to end, or have ended a burst; raises SystemExit."""
        self.listen()
        self.start()
        while any(self._running) or self._again_s:
            time.sleep(_LOOK_S)
            self.look(is_burst=is_burst)
        if is_burst and max(self._failures) >= _MOST_FAILURES:
            raise SystemExit(1)

    def look(self, *, is_burst: bool = False) -> None:
        """Start processes again a while after their end, and note new ends."""
        now_s = time.monotonic()
        for at, when_s in list(self._again_s.items()):
            if when_s <= now_s or self.stopping.is_set():
                self._start(at)
        for at, process in enumerate(self._running):
            if process is None or process.poll() is None:
                continue
            self._running[at] = None
            self._failures[at] += process.returncode != 0
            is_over = not process.returncode or self._failures[at] >= _MOST_FAILURES
            if not (is_burst and is_over):
                self._again_s[at] = now_s + _AGAIN_S

    def end(self) -> None:
        """Wait until all have finished their work, and tell them to, unless they know."""
        if not self._are_told:
            self._are_told = True
            self._tell(signal.SIGTERM)
        for process in filter(None, self._running):
            process.wait()

    def _send(self, number: int, frame: FrameType | None) -> None:
        is_first = not self.stopping.is_set()
        self.stopping.set()
        # Those that end already would take it for a second signal, which ends their grace.
        if not (is_first and self._are_told):
            self._are_told = True
            self._tell(number)

    def _tell(self, number: int) -> None:
        for process in filter(None, self._running):
            process.send_signal(number)
