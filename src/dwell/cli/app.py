"""The app: the options for all commands, and the commands in the groups of ``dwell --help``."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import typer

from dwell.cli.backup import backup
from dwell.cli.check import check
from dwell.cli.clear import clear
from dwell.cli.counts import stats, topics
from dwell.cli.events import events
from dwell.cli.exits import MEANINGS, Code, Commands
from dwell.cli.find import find
from dwell.cli.flags import Command
from dwell.cli.ids import cancel, get, kick, reschedule
from dwell.cli.listing import list_messages
from dwell.cli.output import Output
from dwell.cli.pipeline import FORWARD, pipeline
from dwell.cli.put import put
from dwell.cli.receipts import ack, bury, release, touch
from dwell.cli.relay import relay
from dwell.cli.reshard import reshard
from dwell.cli.schedule import schedule
from dwell.cli.serve import serve
from dwell.cli.session import Session
from dwell.cli.settings import settings
from dwell.cli.stale import stale
from dwell.cli.take import take
from dwell.cli.takeover import takeover
from dwell.cli.token import token
from dwell.cli.work import work

DEFAULT_STORE = "./dwell-data"


class _Command(NamedTuple):
    """A command: its name, what it does, and how it may look on a command line."""

    name: str
    function: Callable[..., None]
    example: str
    settings: dict[str, Any] | None = None


#: The commands, in the groups and in the order in which the help shows them.
GROUPS: dict[str, tuple[_Command, ...]] = {
    "In and out": (
        _Command("put", put, """dwell put emails '{"to": "ann"}' --delay 30m"""),
        _Command("take", take, "dwell take emails --limit 10 --wait 1m"),
        _Command("ack", ack, "dwell ack 49b9c533000000010000000002000001"),
        _Command("release", release, 'dwell release $RECEIPT --retry --error "no answer"'),
        _Command("touch", touch, "dwell touch $RECEIPT --lease 5m"),
        _Command("bury", bury, 'dwell bury $RECEIPT --reason "no such address"'),
        _Command("work", work, "dwell work jobs:worker"),
    ),
    "By topic and id": (
        _Command("get", get, "dwell get emails order-17"),
        _Command("reschedule", reschedule, "dwell reschedule emails order-17 --delay 2h"),
        _Command("cancel", cancel, "dwell cancel emails order-17 order-18"),
        _Command("kick", kick, """dwell kick emails --where "to != 'ann'" --error timeout"""),
        _Command("clear", clear, "dwell clear emails --yes"),
    ),
    "Again and again": (
        _Command(
            "schedule",
            schedule,
            "dwell schedule put report jobs daily --cron '0 9 * * mon-fri' --zone Europe/Berlin",
        ),
    ),
    "What is there": (
        _Command("list", list_messages, "dwell list emails --state dead --all"),
        _Command("find", find, """dwell find emails "contains(to, '@example.org')" --state dead"""),
        _Command("topics", topics, "dwell topics"),
        _Command("stats", stats, "dwell --json stats"),
        _Command("events", events, "dwell events --from 1200 --limit 50"),
    ),
    "Server": (
        _Command("serve", serve, "dwell serve ./data --http 127.0.0.1:8410"),
        _Command("token", token, "dwell token orders --put orders. --take orders."),
    ),
    "Brokers": (
        _Command(
            "relay",
            relay,
            "dwell relay --from kafka://localhost:9092/orders.delay-30m "
            "--to kafka://localhost:9092/orders",
        ),
        _Command("takeover", takeover, "dwell takeover beanstalk://localhost:11300 --dry-run"),
    ),
    "Spark": (
        _Command(
            "pipeline",
            pipeline,
            "dwell pipeline forecast --url http://localhost:8410 --out ./forecast",
            FORWARD,
        ),
    ),
    "Care": (
        _Command("settings", settings, "dwell settings emails lease_ms=5m max_attempts=3"),
        _Command("check", check, "dwell --store ./data check --repair"),
        _Command("stale", stale, "dwell --store http://localhost:8410 stale"),
        _Command("backup", backup, "dwell --store ./data backup ./copy"),
        _Command("reshard", reshard, "dwell --store redis://localhost:6379/0 reshard 8"),
    ),
}

_EXITS = "\n".join(f"- {code.value}: {meaning}" for code, meaning in MEANINGS.items())

app = typer.Typer(
    name="dwell",
    cls=Commands,
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Exit codes:\n\n{_EXITS}",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dwell {version('dwell')}")
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


for _panel, _commands in GROUPS.items():
    for _command in _commands:
        app.command(
            _command.name,
            cls=Command,
            rich_help_panel=_panel,
            epilog=f"Example: `{_command.example}`",
            context_settings=_command.settings,
        )(_command.function)
