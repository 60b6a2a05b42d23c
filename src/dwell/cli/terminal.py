"""Tables and texts for people, by way of Rich."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dwell.cli.stdout import OutputClosed, stdout


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """End the command as for any other reason, and close its store."""
        raise OutputClosed


class Terminal:
    """The consoles on standard output and, ``notes``, on standard error."""

    def __init__(self) -> None:
        self._answers, self.notes = _console(stderr=False), _console(stderr=True)

    def show(self, what: Table) -> None:
        """Print a table: as wide as the terminal, or at full width without a terminal."""
        if self._answers.is_terminal:
            self._answers.print(what)
        else:
            self.line("\n".join(_plain(what)))

    def line(self, text: str | Text) -> None:
        """Print text in full; raises OSError without a standard output."""
        stdout()
        self._answers.print(text if isinstance(text, Text) else Text(text), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print text on standard error."""
        self.notes.print(Text(text), soft_wrap=True)


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
