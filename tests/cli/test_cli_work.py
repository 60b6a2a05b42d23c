import logging
import sys

import pytest

import dwell
from dwell.worker import Worker

MODULE = """
from dwell.worker import Worker

worker = Worker("memory:")
other = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module ``jobs`` with a worker, in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "jobs.py").write_text(MODULE)
    yield "jobs"
    sys.modules.pop("jobs", None)


@pytest.mark.parametrize(("args", "level"), [([], logging.INFO), (["--quiet"], logging.ERROR)])
def test_the_worker_of_the_module_runs(cli, module, monkeypatch, args, level):
    ran, levels = [], []
    monkeypatch.setattr(Worker, "run", lambda worker, **how: ran.append(worker))
    monkeypatch.setattr(logging, "basicConfig", lambda **options: levels.append(options["level"]))
    said = "" if args else "serving nothing at memory:; Ctrl-C or SIGTERM stops it\n"
    assert cli.run(*args, "work", f"{module}:worker").output == said
    assert ran == [sys.modules["jobs"].worker]
    assert levels == [level]


def test_what_the_store_cannot_do_ends_with_three(cli, module, monkeypatch):
    def run(worker, **how):
        raise dwell.StoreLocked("queue: is held")

    monkeypatch.setattr(Worker, "run", run)
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    error = cli.error("--quiet", "work", f"{module}:worker", code=3)
    assert error == "StoreLocked: queue: is held"


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("app", "error"),
    [
        ("jobs", "InvalidInput: app: got 'jobs', expected MODULE:APP"),
        (":worker", "InvalidInput: app: got ':worker'"),
        ("jobs:", "InvalidInput: app: got 'jobs:'"),
        ("jobs:no", "InvalidInput: app: module 'jobs' has no 'no'"),
        ("jobs:other", "InvalidInput: app: 'jobs:other' is a int, expected a dwell.worker.Worker"),
        ("nojobs:x", "InvalidInput: app: cannot import 'nojobs': ModuleNotFoundError: No module"),
    ],
)
def test_bad_apps(cli, app, error):
    assert cli.error("work", app).startswith(error)


def test_a_module_that_fails_is_named_with_its_line(cli, module, tmp_path):
    file = tmp_path / f"{module}.py"
    file.write_text("x = 1\n1 / 0\n")
    assert cli.error("work", f"{module}:worker") == (
        f"InvalidInput: app: cannot import 'jobs': ZeroDivisionError: division by zero ({file}:2)"
    )


def test_a_store_cannot_be_given(cli, module):
    error = cli.error("--store", "x", "work", f"{module}:worker")
    assert error.startswith("InvalidInput: store: got --store, which work cannot use")


def test_a_store_of_one_process_is_worked_by_one(cli, module):
    error = cli.error("work", f"{module}:worker", "--processes", "2")
    assert error.startswith("InvalidInput: processes: got 2, expected 1: only one process opens")
