"""The app: the options for all commands, and the commands in the groups of ``dwell --help``."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.main import get_command

from dwell.cli.exits import MEANINGS, Code, Commands
from dwell.cli.flags import Command
from dwell.cli.output import Output
from dwell.cli.session import Session
from dwell.version import VERSION

DEFAULT_STORE = "./dwell-data"

#: Typer settings that pass all words after the name of a pipeline to it, also ``--help``.
_FORWARD = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


class _Command(NamedTuple):
    """A command: its name, an example, and the place of its function.

    The default place is the function of its name in the module of its name.
    """

    name: str
    example: str
    place: str | None = None
    settings: dict[str, Any] | None = None

    @property
    def function(self) -> Callable[..., None]:
        """The function of the command; its module is imported here, when it is needed."""
        module, _, name = (self.place or f"{self.name}:{self.name}").partition(":")
        found: Callable[..., None] = getattr(import_module(f"dwell.cli.{module}"), name)
        return found


#: The commands, in the groups and the order of the help.
GROUPS: dict[str, tuple[_Command, ...]] = {
    "In and out": (
        _Command("put", """dwell put emails '{"to": "ann"}' --delay 30m"""),
        _Command("take", "dwell take emails --limit 10 --wait 1m"),
        _Command("ack", "dwell ack 49b9c533000000010000000002000001", "receipts:ack"),
        _Command(
            "release", 'dwell release $RECEIPT --retry --error "no answer"', "receipts:release"
        ),
        _Command("touch", "dwell touch $RECEIPT --lease 5m", "receipts:touch"),
        _Command("bury", 'dwell bury $RECEIPT --reason "no such address"', "receipts:bury"),
        _Command("work", "dwell work jobs:worker"),
    ),
    "By topic and id": (
        _Command("get", "dwell get emails order-17", "ids:get"),
        _Command("result", "dwell result emails order-17 --wait 30s"),
        _Command("reschedule", "dwell reschedule emails order-17 --delay 2h", "ids:reschedule"),
        _Command("cancel", "dwell cancel emails order-17 order-18", "ids:cancel"),
        _Command("kick", """dwell kick emails --where "to != 'ann'" --error timeout""", "ids:kick"),
        _Command("clear", "dwell clear emails --yes"),
    ),
    "Again and again": (
        _Command(
            "schedule",
            "dwell schedule put report jobs daily --cron '0 9 * * mon-fri' --zone Europe/Berlin",
        ),
    ),
    "What is there": (
        _Command("list", "dwell list emails --state dead --all", "listing:list_messages"),
        _Command("find", """dwell find emails "contains(to, '@example.org')" --state dead"""),
        _Command("topics", "dwell topics", "counts:topics"),
        _Command("stats", "dwell --json stats", "counts:stats"),
        _Command("events", "dwell events --from 1200 --limit 50"),
    ),
    "Server": (
        _Command("serve", "dwell serve ./data --http 127.0.0.1:8410"),
        _Command("token", "dwell token orders --put orders. --take orders."),
    ),
    "Brokers": (
        _Command(
            "relay",
            "dwell relay --from kafka://localhost:9092/orders.delay-30m "
            "--to kafka://localhost:9092/orders",
        ),
        _Command("takeover", "dwell takeover beanstalk://localhost:11300 --dry-run"),
    ),
    "Spark": (
        _Command(
            "pipeline",
            "dwell pipeline forecast --url http://localhost:8410 --out ./forecast",
            settings=_FORWARD,
        ),
    ),
    "Care": (
        _Command("settings", "dwell settings emails lease_ms=5m max_attempts=3"),
        _Command("check", "dwell --store ./data check --repair"),
        _Command("stale", "dwell --store http://localhost:8410 stale"),
        _Command("backup", "dwell --store ./data backup ./copy"),
        _Command("export", "dwell export emails orders --to ./export", "archive:export"),
        _Command("import", "dwell import ./export --settings", "archive:import_"),
        _Command("reshard", "dwell --store redis://localhost:6379/0 reshard 8"),
    ),
}

_EXITS = "\n".join(f"- {code.value}: {meaning}" for code, meaning in MEANINGS.items())

_BY_NAME = {command.name: (panel, command) for panel, of in GROUPS.items() for command in of}


@cache
def _made(name: str) -> Any:
    panel, command = _BY_NAME[name]
    alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    alone.command(
        name,
        cls=Command,
        rich_help_panel=panel,
        epilog=f"Example: `{command.example}`",
        context_settings=command.settings,
    )(command.function)
    return get_command(alone)


class _Made(Mapping[str, Any]):
    """The commands by name; each is imported and built on first use, as a start needs only one."""

    def __getitem__(self, name: str) -> Any:
        return _made(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command; a KeyError in its module is not taken for a name that is not there."""
        return _made(name) if name in _BY_NAME else default

    def __iter__(self) -> Iterator[str]:
        return iter(_BY_NAME)

    def __len__(self) -> int:
        return len(_BY_NAME)


class _All(Commands):
    """All commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**(options | {"commands": _Made()}))


app = typer.Typer(
    name="dwell",
    cls=_All,
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Exit codes:\n\n{_EXITS}",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dwell {VERSION}")
        raise typer.Exit


@app.callback()
def start(
    context: typer.Context,
    store: Annotated[
        str,
        typer.Option(
            envvar="DWELL_STORE", metavar="URL", help="The store: a folder, or another store's URL."
        ),
    ] = DEFAULT_STORE,
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs: one JSON object a line.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Answers only: no confirmations, notes or progress.")
    ] = False,
    version_: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Keep messages until they are due: a durable delay queue, on the command line."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(Code.INPUT)
    source: Any = context.get_parameter_source("store")
    context.obj = Session(
        store=store,
        store_given=source is not None and source.name == "COMMANDLINE",
        store_named=source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"),
        out=Output(json=as_json, quiet=quiet),
    )
