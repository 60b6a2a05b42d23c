"""``dwell work``: run a worker that a module of yours holds."""

import importlib
import logging
import os
import sys
import traceback
from types import ModuleType
from typing import Annotated

import typer

from dwell.cli.session import session_of
from dwell.cli.workforce import run_many
from dwell.errors import InvalidInput
from dwell.worker import Worker

_FORM = "MODULE:APP, such as jobs:worker"


_App = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP",
        help="A module, looked for in the current directory first, and the Worker in it.",
        show_default=False,
    ),
]
_Topics = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Handle the messages of these topics only: a,b.", show_default=False
    ),
]
_Burst = Annotated[bool, typer.Option("--burst", help="End when nothing can be taken.")]
_Http = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Answer there to /healthz, /readyz and /metrics.",
        show_default=False,
    ),
]
_Processes = Annotated[
    int, typer.Option(metavar="N", min=1, help="Run so many; one that ends is started again.")
]
_Reload = Annotated[
    bool, typer.Option("--reload", help="Start all again when a Python file here changes.")
]


def work(
    context: typer.Context,
    app: _App,
    topics: _Topics = None,
    burst: _Burst = False,
    http: _Http = None,
    processes: _Processes = 1,
    reload: _Reload = False,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C, then let running handlers finish.

    A second signal does not wait for them. The worker opens the store that it was made with, so
    --store has no effect. With --processes it runs in several processes, which only a store at a
    URL allows; --http is then the address of the first process, and the others use the next ports.
    """
    session = session_of(context)
    if session.store_given:
        raise InvalidInput("store: got --store, which work cannot use: the worker names its store")
    if reload and burst:
        raise InvalidInput("burst: got it with --reload, which goes on until it is stopped")
    if reload:
        # Compiled code would stand for a file that changes again in its second, and keeps its size.
        sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
    worker = load(app)
    if processes > 1 and not worker.is_shareable:
        raise InvalidInput(
            f"processes: got {processes}, expected 1: only one process opens this store; a worker "
            "of a server or a Redis may have several"
        )
    if processes > 1 or reload:
        own = [app, *(["--topics", topics] if topics else [])]
        run_many(own, processes, http, session.out.quiet, is_burst=burst, is_reloaded=reload)
        return
    level = logging.ERROR if session.out.quiet else logging.INFO
    # Where the module has set up logging of its own, this does nothing.
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    session.out.note(f"{worker.described}; Ctrl-C or SIGTERM stops it")
    chosen = topics.split(",") if topics else ()
    worker.run(topics=chosen, burst=burst, http=http or "")


def load(app: str) -> Worker:
    """Return the worker that ``module:name`` names; raises InvalidInput."""
    name, _, path = app.partition(":")
    if not name or not path:
        raise InvalidInput(f"app: got {app!r:.80}, expected {_FORM}")
    found: object = _import(name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise InvalidInput(f"app: module {name!r} has no {path!r}, expected {_FORM}")
        found = getattr(found, part)
    if not isinstance(found, Worker):
        raise InvalidInput(
            f"app: {app!r} is a {type(found).__name__}, expected a dwell.worker.Worker"
        )
    return found


def _import(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if "importlib" in last.filename else f" ({last.filename}:{last.lineno})"
        said = f"{type(error).__name__}: {error}{where}"
        raise InvalidInput(f"app: cannot import {name!r}: {said}") from error
