"""Handlers that run in processes of their own, which find them here."""

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S

#: Longer than anybody waits for it.
LONG_S = 2 * PATIENCE_S

#: Names a file; while there is one, no further process can import this.
CLOSED = "DWELL_TEST_CLOSED"

#: The process in which this is imported signals itself, as a terminal may at any moment.
SIGNALLED = "DWELL_TEST_SIGNALLED"

if SIGNALLED in os.environ:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)

#: Names a file; while there is one, a process that imports this hangs.
STUCK = "DWELL_TEST_STUCK"

while Path(os.environ.get(STUCK, "/no such file")).exists():
    time.sleep(0.01)

if Path(os.environ.get(CLOSED, "/no such file")).exists():
    os._exit(9)


class Sly(Exception):
    """Can be read in the process that has raised it, and nowhere else."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _only_in, (os.getpid(),)


class Slyer(Sly):
    """Ends who reads it, in any other process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _only_in, (os.getpid(), SystemExit)


def _only_in(pid: int, error: type[BaseException] = RuntimeError) -> Exception:
    if os.getpid() != pid:
        raise error("not here")
    return Sly()


def ends(message: Any) -> None:
    """End as the body says: an exit code, or the number of a signal below 0."""
    how = message.body.decode()
    if how == "sly":
        raise Sly("sly")
    if how == "slyer":
        raise Slyer("slyer")
    if how == "long":
        raise ValueError("x" * 5_000_000)
    if how == "closes":
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    elif how == "forks":
        if os.fork() == 0:
            time.sleep(LONG_S)
        os._exit(4)
    elif how == "shells":
        os.system(f"sleep {LONG_S} &")
        os._exit(5)
    elif how.startswith("-"):
        os.kill(os.getpid(), -int(how))
    elif how:
        os._exit(int(how))


def hides(message: Any) -> Any:
    """Return what nobody has run yet: a coroutine, a generator, or an asynchronous one."""
    return {b"coroutine": _coroutine, b"generator": _generator, b"both": _both}[message.body]()


async def _coroutine() -> None:
    pass


def _generator() -> Iterator[int]:
    yield 1


async def _both() -> AsyncIterator[int]:
    yield 1


def works(message: Any) -> None:
    """Take two milliseconds."""
    time.sleep(0.002)


def sees_signals(message: Any) -> None:
    """Signal itself as a terminal does, and start a program, which is ended as any other."""
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
        program = subprocess.Popen(["sleep", f"{LONG_S}"])
        program.send_signal(number)
        if program.wait() != -number:
            raise ValueError(f"{number}: {program.returncode}")


def hangs(message: Any) -> None:
    """Write the process's id into the file that the body names, and hang."""
    Path(message.body.decode()).write_text(str(os.getpid()))
    time.sleep(LONG_S)
