"""The output of a command: objects for programs, tables and lines for people."""

import codecs
import contextlib
import io
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from dwell.cli.stdout import OutputClosed, stdout
from dwell.cli.texts import printable
from dwell.message import Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from dwell.cli.terminal import Terminal


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

    @property
    def shows_progress(self) -> bool:
        """Whether a person at a terminal wants to see the progress."""
        return self.notes.is_terminal and not self.quiet

    @property
    def notes(self) -> "Console":
        """The console on standard error."""
        return self._people.notes

    @cached_property
    def _people(self) -> "Terminal":
        # Rich is a tenth of a command's imports, and programs and servers do not need it.
        from dwell.cli.terminal import Terminal

        return Terminal()

    def object(self, value: Mapping[str, Any]) -> None:
        """Print one object for programs; where the output is not UTF-8, in ASCII."""
        text, output = msgspec.json.encode(value).decode(), stdout()
        if not text.isascii() and codecs.lookup(output.encoding).name != "utf-8":
            text = json.dumps(msgspec.to_builtins(value))
        try:
            output.write(text + "\n")
        except BrokenPipeError:
            raise OutputClosed from None

    def show(self, what: "Table") -> None:
        """Print a table: as wide as the terminal, or at full width without a terminal."""
        self._people.show(what)

    def line(self, text: "str | Text") -> None:
        """Print text for people in full; characters that the output cannot encode are escaped."""
        self._people.line(text)

    def confirm(self, value: Mapping[str, Any], text: str, *, is_as_asked: bool = True) -> None:
        """Print the result of a change: an object for programs, a line for people.

        ``quiet`` leaves it out, unless it is not the requested result.
        """
        if self.json or not (self.quiet and is_as_asked):
            self.answer(value, text)

    def answer(self, value: Mapping[str, Any], text: "str | Text") -> None:
        """Print an answer, an object for programs, a line for people, while the output is read.

        When the reader leaves, printing stops, but the command's work and exit code are the same.
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
        """Confirm the result of each id or receipt."""
        for name, result in zip(names, results, strict=True):
            answer = {field: name, "result": str(result)}
            self.confirm(answer, f"{result}  {printable(name)}", is_as_asked=result is wanted)

    def note(self, text: str) -> None:
        """Print a remark on standard error, unless it is closed or the command is quiet."""
        if not self.quiet and sys.stderr is not None:
            with contextlib.suppress(OutputClosed, OSError):
                self._people.note(text)
