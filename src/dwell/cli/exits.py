"""How a command ends: the exit codes, and the only code that maps errors to them."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, TextIO

import typer

from dwell.cli.flags import Group
from dwell.cli.stdout import OutputClosed, flush
from dwell.cli.texts import count_text, printable
from dwell.errors import AccessDenied, DwellError, InvalidInput, StoreError


class Code(IntEnum):
    """The exit codes."""

    DONE = 0
    OTHER = 1
    INPUT = 2
    STORE = 3
    INTERRUPTED = 130


#: The meaning of each code, as the help and the reference state it.
MEANINGS = {
    Code.DONE: "done",
    Code.OTHER: "an answer that is not what was asked for: an id that is unknown, leased or there "
    "already, a stale receipt, nothing to take, a topic that is full, damage found, a bad "
    "line after others were put",
    Code.INPUT: "bad input: a value or a command line that was refused before anything was done",
    Code.STORE: "the store or the server does not do its work: it is missing, locked, damaged or "
    "full, cannot be reached, refuses the caller, or cannot have its address",
    Code.INTERRUPTED: "interrupted",
}

# Typer does not export the class of its usage errors, but it exports a child of it.
_UsageError: Any = typer.BadParameter.__bases__[0]

_GLOBAL = ("--store", "--json", "--quiet")


class PartlyDone(Exception):
    """Input was refused after part of the work; it is reported under the refusal's own name."""

    def __init__(self, error: InvalidInput, done: str) -> None:
        super().__init__(f"{error} (after {done})")
        self.name = type(error).__name__


@contextlib.contextmanager
def refused_after(done: Callable[[], int], noun: str) -> Iterator[None]:
    """Raise PartlyDone for input that is refused when ``done()`` of something were done before."""
    try:
        yield
    except InvalidInput as error:
        if not done():
            raise
        raise PartlyDone(error, count_text(done(), noun)) from None


def code_of(error: DwellError) -> Code:
    """Return the exit code that an error means."""
    if isinstance(error, InvalidInput):
        return Code.INPUT
    return Code.STORE if isinstance(error, StoreError | AccessDenied) else Code.OTHER


def require(is_as_asked: bool) -> None:
    """End the command with :attr:`Code.OTHER` if the answer is not the requested one."""
    if not is_as_asked:
        raise typer.Exit(Code.OTHER)


def ask(question: str) -> None:
    """Ask the user, and end the command if the answer is no.

    Raises InvalidInput if nobody can answer.
    """
    try:
        require(typer.confirm(question, err=True))
    except typer.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            raise InvalidInput("nobody answers here: expected --yes") from None
        raise


class Commands(Group):
    """A group of commands that reports an error in one line, and ends with an exit code."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command and end the process."""
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
            _flush()
        except OutputClosed:
            _leave_output()
            code = Code.DONE
        except (KeyboardInterrupt, typer.Abort):
            code = Code.INTERRUPTED
        except _UsageError as error:
            code = _say("UsageError", _usage(error), Code.INPUT)
        except PartlyDone as error:
            code = _say(error.name, str(error), Code.OTHER)
        except DwellError as error:
            code = _say(type(error).__name__, str(error), code_of(error))
        except OSError as error:
            code = _say(type(error).__name__, str(error), Code.STORE)
            _leave_output()
        _leave_errors()
        sys.exit(int(code or 0))


def _say(name: str, message: str, code: Code) -> Code:
    # Without a standard error only the exit code reports the error.
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(printable(f"{name}: {message}"), file=sys.stderr)
    return code


def _flush() -> None:
    """Flush the output; a reader that has gone does not change the exit code."""
    try:
        flush()
    except OutputClosed:
        _leave_output()


def _usage(error: Any) -> str:
    """Return the error of a command line, and a pointer to the help."""
    message = error.format_message()
    path = error.ctx.command_path if error.ctx is not None else "dwell"
    if any(option in message.split() for option in _GLOBAL) and path != "dwell":
        return f"{message} (options for all commands stand before the command: dwell --json list)"
    return f"{message} (see {path} --help)"


def _leave_output() -> None:
    """Point an output that nobody reads at /dev/null, so that the flush at exit succeeds."""
    _lead_nowhere(sys.stdout)


def _leave_errors() -> None:
    """Point a standard error that cannot be written at /dev/null, for the same reason."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        _lead_nowhere(sys.stderr)


def _lead_nowhere(file: TextIO | None) -> None:
    # If it is not a file of the process, no flush at exit can fail.
    with contextlib.suppress(OSError, ValueError):
        if file is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
