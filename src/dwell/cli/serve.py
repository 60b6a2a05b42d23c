"""``dwell serve``: a queue for other programs, over HTTP and the beanstalk protocol."""

import inspect
import os
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from dwell.cli.session import Session, session_of
from dwell.errors import InvalidInput
from dwell.server.settings import FIELDS, Field
from dwell.server.sources import CONFIG_ENV, Loaded, load, show
from dwell.urls import shown

_EXTRA = ("httptools", "prometheus_client", "uvloop")


def serve(context: typer.Context, **given: Any) -> None:
    """Serve a queue over HTTP and the beanstalk protocol until SIGTERM or Ctrl-C.

    Every option can also be given by the environment or in a TOML file, under the same name:
    --max-requests as DWELL_MAX_REQUESTS or as max_requests. Options go first, then the environment,
    then the file.
    """
    session = session_of(context)
    show_config = given.pop("show_config")
    flags = {name: value for name, value in given.items() if value is not None}
    loaded = load(_with_store(session, flags), os.environ)
    if show_config:
        typer.echo(show(loaded), nl=False)
    else:
        _run(loaded)


def _with_store(session: Session, flags: dict[str, Any]) -> dict[str, Any]:
    if session.store_given:
        if flags.get("store", session.store) != session.store:
            raise InvalidInput(
                f"store: got {shown(flags['store'])!r:.80} and "
                f"--store {shown(session.store)!r:.80}, expected one"
            )
        flags["store"] = session.store
    return flags


def _run(loaded: Loaded) -> None:
    import logging

    try:
        from dwell.server import logs
        from dwell.server.serve import run

        logs.setup(loaded.settings.log_level, loaded.settings.log_format)
        for doubt in loaded.doubts:
            logging.getLogger(__name__).warning(doubt)
        run(loaded.settings)
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def _missing(error: ModuleNotFoundError) -> Exception:
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRA:
        return error
    return InvalidInput(f"{name} is missing, which the server needs: pip install 'dwell[server]'")


# --- the command line comes from the settings -----------------------------------------------------


def _parameter(name: str, hint: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)


def _option(field: Field) -> inspect.Parameter:
    about = _about(field)
    if field.kind is bool:
        option = typer.Option(f"{field.flag}/--no{field.flag[1:]}", help=about, show_default=False)
        return _parameter(field.name, Annotated[bool | None, option])
    option = typer.Option(field.flag, metavar=field.form, help=about, show_default=False)
    return _parameter(field.name, Annotated[str | None, option])


def _about(field: Field) -> str:
    return f"{field.about} Default: {field.shown}." if field.shown else field.about


def _parameters() -> list[inspect.Parameter]:
    """Return the parameters for Typer: an option for each setting, and two more."""
    about = f"A TOML file with settings. Or from the environment: {CONFIG_ENV}."
    config = typer.Option("--config", metavar="FILE", help=about, show_default=False)
    shown = typer.Option("--show-config", help="Print the settings and their sources, and end.")
    store = typer.Argument(metavar="STORE", help=_about(FIELDS["store"]), show_default=False)
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    return [
        context,
        _parameter("store", Annotated[str | None, store]),
        *(_option(field) for field in FIELDS.values() if field.name != "store"),
        _parameter("config", Annotated[Path | None, config]),
        _parameter("show_config", Annotated[bool, shown]).replace(default=False),
    ]


cast(Any, serve).__signature__ = inspect.Signature(_parameters())
