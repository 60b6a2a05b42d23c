"""A clock that is set while real programs run under it, by libfaketime."""

from pathlib import Path


class SetClock:
    """How far the clock of some processes is ahead of this machine's, in a file they read."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ahead"
        self.step(0)

    def step(self, ahead_s: float) -> None:
        """Let the clock be so many seconds ahead of the true time, or behind it."""
        # It is read at every look at the clock, so it must never be empty.
        new = self.file.with_suffix(".new")
        new.write_text(f"{ahead_s:+.3f}")
        new.rename(self.file)

    def environment(self) -> dict[str, str]:
        """Return what lets a program see this clock."""
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
        if library is None:
            raise SystemExit("libfaketime is not installed; make setup installs it")
        return {
            # The allocator of Debian's Redis asks for the time before the library can tell it, so
            # that of the C library comes before it.
            "LD_PRELOAD": f"{library}:libc.so.6",
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            # Only the wall clock is set: what a program waits for takes as long as it takes.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def wrapped(self, program: str) -> str:
        """Return a command that runs a program under this clock."""
        command = self.file.with_name(program)
        words = " ".join(f"{name}={value}" for name, value in self.environment().items())
        command.write_text(f'#!/bin/sh\nexec env {words} {program} "$@"\n')
        command.chmod(0o755)
        return str(command)
