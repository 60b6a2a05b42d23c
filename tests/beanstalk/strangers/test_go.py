"""go-beanstalk, a client in Go: a program that uses every command it has."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.beanstalk.served import need

HERE = Path(__file__).parent / "go"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program, built."""
    go = need("go", "Go (golang)")
    made = tmp_path_factory.mktemp("go") / "client"
    command = [go, "build", "-o", str(made), "."]
    env = {**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        command, cwd=HERE, env=env, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return made


def test_every_command_of_go_beanstalk(program, number):
    command = [program, f"127.0.0.1:{number}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stdout + done.stderr
