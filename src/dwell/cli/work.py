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
from dwell.errors import InvalidInput
from dwell.worker import Worker

_FORM = "MODULE:APP, such as jobs:worker"


def work(
    context: typer.Context,
    app: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP",
            help="A module, looked for in the current directory first, and the Worker in it.",
            show_default=False,
        ),
    ],
) -> None:
    """Run a worker until SIGTERM or Ctrl-C, then let running handlers finish.

    A second signal does not wait for them. The worker opens the store that it was made with, so
    --store has no effect.
    """
    session = session_of(context)
    if session.store_given:
        raise InvalidInput("store: got --store, which work cannot use: the worker names its store")
    worker = load(app)
    level = logging.ERROR if session.out.quiet else logging.INFO
    # Where the module has set up logging of its own, this does nothing.
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    session.out.note(f"{worker.described}; Ctrl-C or SIGTERM stops it")
    worker.run()


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
