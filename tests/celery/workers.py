"""Workers of Celery as processes."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import until
from tools.rooms import ROOT


class WorkerProcess:
    """``celery worker`` with the app of shop.py, and what its tasks noted."""

    def __init__(self, folder: Path, url: str, *options: str, **settings: str) -> None:
        self.log, self._notes = folder / "worker.log", folder / "notes"
        self._notes.touch()
        (folder / "results").mkdir(exist_ok=True)
        self._options = options
        self.environment = {
            "SHOP_BROKER": f"dwell+{url}",
            "SHOP_RESULTS": f"file://{folder}/results",
            "SHOP_NOTES": str(self._notes),
        } | {f"SHOP_{name.upper()}": value for name, value in settings.items()}
        self.start()

    def start(self) -> None:
        """Start it, and wait until it takes tasks."""
        words = ["-m", "celery", "-A", "tests.celery.shop", "worker", "-c", "2", "-l", "INFO"]
        begun = self._said().count(" ready.")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words, *self._options],
                cwd=ROOT,
                env=os.environ | self.environment | {"C_FORCE_ROOT": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(
            lambda: self._said().count(" ready.") > begun or self.process.poll() is not None,
            self._said,
        )
        assert self.process.poll() is None, self._said()

    def notes(self) -> list[list[str]]:
        """Return the words of each line that tasks noted."""
        return [line.split() for line in self._notes.read_text().splitlines()]

    def kill(self) -> None:
        """End it and its children as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Let it end what it has begun, and wait for its end."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)

    def _said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""
