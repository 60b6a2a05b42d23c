"""The command line: ``dwell``, over :func:`dwell.open`.

It needs the extra ``cli``, which the library itself does not.
"""

import sys

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command that the process was started with, and end with its exit code."""
    try:
        from dwell.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        print(
            f"dwell: {missing} is missing, which the command line needs: pip install 'dwell[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    app(prog_name="dwell")
