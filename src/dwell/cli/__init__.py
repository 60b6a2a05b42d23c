"""The command line: ``dwell``, over :func:`dwell.open`.

It needs the extra ``cli``, which the library itself does not.
"""

import gc
import os
import sys
from importlib import import_module

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command that the process was started with, and end with its exit code."""
    _hold_standard_files()
    # The imported modules stay, so garbage collection during the import would find nothing.
    gc.disable()
    try:
        # Most of Rich is imported on first output, but its absence is reported at once.
        for name in _NEEDED:
            import_module(name)
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
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        gc.enable()
    gc.freeze()
    app(prog_name="dwell")


def _hold_standard_files() -> None:
    """Open standard files that were closed before the start, so that no store file gets 0 to 2.

    The libraries of the system write their messages to 2, whichever file that is.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one, as all lower numbers are open.
            os.open(os.devnull, os.O_RDWR)
