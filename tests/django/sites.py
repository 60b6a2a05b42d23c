"""A project of Django in processes: programs that enqueue, and workers, with two releases."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import until
from tools.rooms import ROOT

_SITE = Path(__file__).with_name("project")
#: The interpreter with Django 6, where there is a Python that it runs on.
NEWER = ROOT / ".brokers/django/bin/python"
#: Django 5.2 with the package django-tasks, and Django 6.
PYTHONS = {"backport": Path(sys.executable), "django6": NEWER}

_BEGIN = """
import os, sys
sys.path.insert(0, os.environ["SITE_FOLDER"])
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from shop import tasks
from dwell.django.tasks import task_backend
backend = task_backend("default")
"""


class Site:
    """A project over a store, with a database and notes of its own."""

    def __init__(self, python: Path, folder: Path, url: str, /, **options: object) -> None:
        self._python, self._folder = python, folder
        self._notes, self.log = folder / "notes", folder / "worker.log"
        self._notes.touch()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._environment = os.environ | {
            "PYTHONPATH": str(ROOT / "src"),
            "SITE_FOLDER": str(_SITE),
            "SITE_DATABASE": str(folder / "site.db"),
            "SITE_URL": url,
            "SITE_OPTIONS": json.dumps(options),
            "SITE_NOTES": str(self._notes),
        }

    def run(self, code: str) -> str:
        """Run code with the project, and return what it prints."""
        done = self._ran([self._python, "-c", _BEGIN + code])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def manage(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of manage.py to its end."""
        return self._ran([self._python, _SITE / "manage.py", *words])

    def _ran(self, command: list[object]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(word) for word in command],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def burst(self) -> None:
        """Run what is ready, and wait for its end."""
        done = self.manage("dwell_worker", "--burst")
        assert done.returncode == 0, done.stderr

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start a worker; it is ended with the site."""
        command = [self._python, _SITE / "manage.py", "dwell_worker", *words]
        with self.log.open("ab") as log:
            worker = subprocess.Popen(
                command, env=self._environment, cwd=self._folder, stdout=log, stderr=log
            )
        self._workers.append(worker)
        return worker

    def kill(self, worker: "subprocess.Popen[bytes]") -> None:
        """End a worker as a power cut would."""
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def notes(self) -> list[list[str]]:
        """Return the words of each line that tasks noted."""
        return [line.split() for line in self._notes.read_text().splitlines()]

    def until(self, condition) -> None:
        """Wait until a condition holds for the notes."""
        until(lambda: condition(self.notes()), lambda: (self.notes(), self.log.read_text()))

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            if worker.poll() is None:
                self.kill(worker)
