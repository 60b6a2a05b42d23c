"""``dwell pipeline``: the Spark pipelines, each with a command line of its own."""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import dwell
from dwell.cli.session import session_of
from dwell.errors import InvalidInput
from dwell.given.values import refusal

#: The pipelines, in the order of usual use.
NAMES = ("schedule", "relay", "redrive", "audit", "forecast")

_FOLDER = Path(dwell.__file__).parent / "spark" / "pipelines"
_EXTRA = ("jinja2", "matplotlib", "pandas", "py4j", "pyarrow", "pyspark")
_HELP = ("-h", "--help")


def pipeline(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME [OPTIONS]", help="The pipeline, and its own options."),
    ] = None,
) -> None:
    """Run a Spark pipeline over a queue, on this machine or on a cluster.

    `dwell pipeline` lists them, and `dwell pipeline NAME --help` shows the options of one.
    """
    words = [*(words or []), *context.args]
    if not words or words[0] in _HELP:
        typer.echo(listing())
        raise typer.Exit(0 if words else 2)
    name, *options = words
    if name not in NAMES:
        raise refusal(InvalidInput, "pipeline", name, ", ".join(NAMES))
    raise typer.Exit(_run(name, [*_store(context), *options]))


def listing() -> str:
    """Return the pipelines with a line on each; nothing of Spark is imported for it."""
    lines = "".join(f"  {name:<10}{about(name)}\n" for name in NAMES)
    return (
        "Usage: dwell pipeline NAME [OPTIONS]\n\n"
        "Run a Spark pipeline over a queue, on this machine or on a cluster.\n\n"
        f"Pipelines:\n{lines}\n"
        "dwell pipeline NAME --help shows the options of one.\n\n"
        "Example: dwell pipeline forecast --url http://localhost:8410 --out ./forecast"
    )


def about(name: str) -> str:
    """Return the first line of a pipeline's docstring."""
    path = _FOLDER / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text())) if path.exists() else None
    return (text or "").partition("\n")[0]


def _store(context: typer.Context) -> Sequence[str]:
    """Return the store that was given, by --store or DWELL_STORE; a later --url counts instead."""
    session = session_of(context)
    return ["--url", session.store] if session.store_named else []


def _run(name: str, options: Sequence[str]) -> int:
    try:
        from dwell.spark.pipelines.command import main
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return main(name, options)


def _missing(error: ModuleNotFoundError) -> Any:
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRA:
        return error
    return InvalidInput(f"{package} is missing, which Spark needs: pip install 'dwell[spark]'")
