import json

import pytest
from typer.testing import CliRunner

import dwell
from dwell.cli.app import app


class Cli:
    """The command line in this process, over a store in a folder of the test."""

    def __init__(self, folder):
        self.folder = str(folder)

    def run(self, *args, code=0, stdin=None, env=None):
        """Run a command that has to end with an exit code; return its answer."""
        env = {"DWELL_STORE": self.folder, "COLUMNS": "80", **(env or {})}
        done = CliRunner().invoke(app, list(args), input=stdin, env=env, catch_exceptions=False)
        assert done.exit_code == code, (args, done.output)
        return done

    def out(self, *args, **how):
        """Return the lines of a command's standard output."""
        return self.run(*args, **how).stdout.splitlines()

    def json(self, *args, **how):
        """Return the objects that a command prints for programs."""
        return [json.loads(line) for line in self.out("--json", *args, **how)]

    def error(self, *args, code=2, **how):
        """Return the one line with which a command fails."""
        done = self.run(*args, code=code, **how)
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr.rstrip("\n")

    def queue(self):
        """Open the store without the command line."""
        return dwell.open(self.folder)

    def get(self, topic, id_):
        with self.queue() as queue:
            return queue.get(topic, id_)


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path / "queue")
