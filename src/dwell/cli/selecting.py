"""The options that say which messages, the same on every command that takes them."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer

from dwell.batch.changed import Changed
from dwell.batch.selection import Selection
from dwell.cli import given
from dwell.cli.exits import ask, require
from dwell.cli.options import WHERE_HELP
from dwell.cli.session import Session
from dwell.cli.texts import count_text
from dwell.errors import InvalidInput
from dwell.given.selecting import select
from dwell.message import Result
from dwell.threads.sync import SyncQueue

_Command: TypeAlias = Callable[..., None]

_TIME = "ISO 8601 with a zone, or epoch milliseconds."


def _option(name: str, metavar: str, about: str, kind: Any = str) -> inspect.Parameter:
    option = typer.Option(metavar=metavar, help=about, show_default=False)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind | None, option])


_STATE = _option(
    "state", "STATE", "Only delayed, ready, leased or dead; may be repeated.", list[str]
)
_OPTIONS = (
    _option("where", "EXPRESSION", WHERE_HELP),
    _option("key", "KEY", "Only messages with this key."),
    _option("header", "NAME=VALUE", "Only messages with this header; may be repeated.", list[str]),
    _option("error", "TEXT", "Only messages whose last error contains this text."),
    _option("attempt_from", "N", "Only messages with at least this many attempts.", int),
    _option("attempt_to", "N", "Only messages with fewer attempts than this.", int),
    _option("due_from", "TIME", f"Only messages due then or later: {_TIME}"),
    _option("due_to", "TIME", f"Only messages due before: {_TIME}"),
)
#: The names of the options, for errors.
NAMES = [f"--{option.name.replace('_', '-')}" for option in _OPTIONS]

OptionalIds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="Ids, or - to read one a line from standard input; or options that say which.",
        show_default=False,
    ),
]
MostOption = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", help="Without ids: how many at most.", show_default=False),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Without ids: do it without asking.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Without ids: count the messages, and change nothing.")
]


def selecting(*, has_state: bool = True) -> Callable[[_Command], _Command]:
    """Add the options of a selection to a command.

    The command is called with ``which``: a Selection, or None without any of these options.
    """
    added = [_STATE, *_OPTIONS] if has_state else list(_OPTIONS)

    def decorated(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(**words: Any) -> None:
            said = {option.name: words.pop(option.name) for option in added}
            command(**words, which=_selection(said))

        own = inspect.signature(command)
        kept = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own.parameters.values()
            if parameter.name != "which"
        ]
        every = [*kept, *added]
        vars(run).update(
            __signature__=own.replace(parameters=every),
            __annotations__={one.name: one.annotation for one in every},
        )
        return run

    return decorated


def _selection(said: dict[str, Any]) -> Selection | None:
    words = {name: value for name, value in said.items() if value not in (None, [])}
    if not words:
        return None
    if "header" in words:
        words["headers"] = given.headers(words.pop("header"))
    return select(**words)


class Bulk(NamedTuple):
    """A verb on selected messages: its name and its function.

    ``verb`` is called with the queue, and whether it only counts. ``word`` begins the question.
    """

    word: str
    wanted: Result
    verb: Callable[[SyncQueue, bool], Changed]

    def run(self, session: Session, topic: str, *, yes: bool, dry_run: bool) -> None:
        """Print how many messages match and ask, unless ``yes``; run the verb, print the results.

        The command ends as not done if a message has another result than the wanted one.
        """
        with session.queue() as queue:
            if dry_run:
                return self._count(session, topic, self.verb(queue, True))
            if not yes:
                self._ask(topic, self.verb(queue, True))
            changed = self.verb(queue, False)
        return self._say(session, topic, changed)

    def _count(self, session: Session, topic: str, found: Changed) -> None:
        answer = {"topic": topic, "matched": found.matched, "is_complete": found.is_complete}
        more = "" if found.is_complete else ", and there may be more"
        session.out.answer(
            answer, f"{count_text(found.matched, 'message')} would be {self.wanted}{more}"
        )

    def _ask(self, topic: str, found: Changed) -> None:
        if found.matched:
            first = "" if found.is_complete else "the first "
            count = count_text(found.matched, "message")
            ask(f"{self.word} {first}{count} of {topic}?")

    def _say(self, session: Session, topic: str, changed: Changed) -> None:
        is_as_asked = changed.results.total() == changed.results[self.wanted]
        answer = {
            "topic": topic,
            "matched": changed.matched,
            "results": {str(result): count for result, count in changed.results.items()},
            "is_complete": changed.is_complete,
        }
        counts = {self.wanted: 0, **changed.results}
        text = ", ".join(f"{count:,} {result}" for result, count in counts.items())
        session.out.confirm(answer, text, is_as_asked=is_as_asked)
        if not changed.is_complete:
            session.out.note("there may be more that match")
        require(is_as_asked)


def check_either(
    command: str, ids: Sequence[str] | None, which: Selection | None, **alone: object
) -> None:
    """Refuse a command line with ids and a selection, or with neither; ``alone`` are options.

    Those go without ids only.
    """
    if bool(ids) == (which is not None):
        came = "both" if ids else "neither"
        raise InvalidInput(f"{command}: got {came}, expected ids or some of {', '.join(NAMES)}")
    for name, value in alone.items():
        if ids and value:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidInput(f"{command}: got {flag} beside ids, expected it without any")
