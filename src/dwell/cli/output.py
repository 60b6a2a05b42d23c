"""What a command prints: objects for programs, tables and lines for people."""

import codecs
import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dwell.cli.texts import printable
from dwell.message import Result


class OutputClosed(Exception):
    """Whoever read the output has gone, as ``head`` does when it has enough."""


def flush() -> None:
    """Hand on what was printed; raises OutputClosed, or OSError where there is no output."""
    try:
        _stdout().flush()
    except BrokenPipeError:
        raise OutputClosed from None


def _stdout() -> TextIO:
    # Python has no object for a standard output that was closed before the start.
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")
    return sys.stdout


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command end as for any other reason, and close its store."""
        raise OutputClosed


class Output:
    """Standard output, where answers go, and standard error, where everything else goes.

    With ``json``, standard output holds one JSON object a line and nothing else. With ``quiet``,
    people get answers but no confirmations, notes or progress.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self._is_gone = False
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        self._console = _console(stderr=False)
        self._notes = _console(stderr=True)

    @property
    def shows_progress(self) -> bool:
        """Whether somebody sits before a terminal and wants to know how it goes."""
        return self._notes.is_terminal and not self.quiet

    @property
    def notes(self) -> Console:
        """The console on standard error."""
        return self._notes

    def object(self, value: Mapping[str, Any]) -> None:
        """Print one object for programs; where the output is not UTF-8, in ASCII."""
        text, output = msgspec.json.encode(value).decode(), _stdout()
        if not text.isascii() and codecs.lookup(output.encoding).name != "utf-8":
            text = json.dumps(msgspec.to_builtins(value))
        try:
            output.write(text + "\n")
        except BrokenPipeError:
            raise OutputClosed from None

    def show(self, what: Table) -> None:
        """Print a table: as wide as the terminal, or where there is none as wide as it is."""
        if self._console.is_terminal:
            self._console.print(what)
        else:
            self.line("\n".join(_plain(what)))

    def line(self, text: str | Text) -> None:
        """Print text for people, cut nowhere; what the output cannot say is escaped."""
        _stdout()
        self._console.print(text if isinstance(text, Text) else Text(text), soft_wrap=True)

    def confirm(self, value: Mapping[str, Any], text: str, *, is_as_asked: bool = True) -> None:
        """Print what was done: an object for programs, a line for people.

        ``quiet`` leaves it out, unless it is not what was asked for.
        """
        if self.json or not (self.quiet and is_as_asked):
            self.answer(value, text)

    def answer(self, value: Mapping[str, Any], text: str | Text) -> None:
        """Print an answer, an object for programs, a line for people, as long as it is read.

        What is asked for is done and judged, whether or not somebody goes on reading.
        """
        if self._is_gone:
            return
        try:
            self.object(value) if self.json else self.line(text)
        except OutputClosed:
            self._is_gone = True

    def results(
        self, field: str, names: Sequence[str], results: Sequence[Result], wanted: Result
    ) -> None:
        """Confirm what was done to each of some ids or receipts."""
        for name, result in zip(names, results, strict=True):
            answer = {field: name, "result": str(result)}
            self.confirm(answer, f"{result}  {printable(name)}", is_as_asked=result is wanted)

    def note(self, text: str) -> None:
        """Say something beside the answer, where there is somebody to hear it."""
        if not self.quiet and sys.stderr is not None:
            with contextlib.suppress(OutputClosed, OSError):
                self._notes.print(Text(text), soft_wrap=True)


def _console(*, stderr: bool) -> Console:
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def _plain(what: Table) -> Iterator[str]:
    """Yield the lines of a table without colours, which takes a twentieth of the time."""
    columns = [[column.header, *column.cells] for column in what.columns]
    texts = [[str(cell) for cell in cells] for cells in columns]
    widths = [max(map(cell_len, cells)) for cells in texts]
    right = [column.justify == "right" for column in what.columns]
    for row in zip(*texts, strict=True):
        cells = zip(row, widths, right, strict=True)
        yield "  ".join(_padded(text, width, at_right) for text, width, at_right in cells).rstrip()


def _padded(text: str, width: int, at_right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if at_right else text + space


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table; the columns named in ``right`` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        # A column that may not wrap gives way last; cells with their own ellipsis give way first.
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name != "body")
    return made
