"""jackd, a client in Node: a program that uses every command it has.

Its package holds no suite of its own.
"""

import os
import subprocess
from pathlib import Path

from tests.beanstalk.strangers.packages import modules_of

HERE = Path(__file__).parent / "jackd"


def test_every_command_of_jackd(request, number):
    modules = modules_of(request.config, HERE / "package.json")
    command = ["node", str(HERE / "client.js"), str(number)]
    env = {**os.environ, "NODE_PATH": str(modules)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stdout + done.stderr
