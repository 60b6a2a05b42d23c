"""The own test suite of fivebeans, a client in Node: the same outcome as with beanstalkd."""

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.beanstalk.served import Served, beanstalkd, need

HERE = Path(__file__).parent / "fivebeans"


@pytest.fixture(scope="module")
def suite(request):
    """The folder of the package, which is fetched once and kept."""
    need("node", "Node.js (nodejs)")
    npm = need("npm", "npm")
    folder = request.config.cache.mkdir("fivebeans")
    made, wanted = folder / "package.json", HERE / "package.json"
    if not made.exists() or made.read_bytes() != wanted.read_bytes():
        shutil.copy(wanted, folder / "wanted.json")
        command = [npm, "install", "--prefix", ".", "--no-audit", "--no-fund", "--no-package-lock"]
        made.unlink(missing_ok=True)
        shutil.copy(wanted, made)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
        if done.returncode:
            made.unlink()
            pytest.fail(f"npm install did not work:\n{done.stdout}\n{done.stderr}")
    return folder / "node_modules" / "fivebeans"


def outcome(suite: Path, number: int) -> dict[str, str]:
    """Return what became of each test of the suite against a server."""
    mocha = suite.parent / "mocha" / "bin" / "_mocha"
    command = ["node", str(mocha), "-r", str(HERE / "port.js"), "-t", "8000", "-R", "json", "test/"]
    env = {**os.environ, "BEANSTALK_PORT": str(number)}
    done = subprocess.run(command, cwd=suite, env=env, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout[done.stdout.index("{\n") :])
    return {
        test["fullTitle"]: kind
        for kind in ("passes", "failures", "pending")
        for test in report[kind]
    }


def test_the_suite_of_fivebeans_has_the_same_outcome_as_with_beanstalkd(suite):
    with beanstalkd() as real, Served() as served, ThreadPoolExecutor() as pool:
        expected, found = pool.map(partial(outcome, suite), (real, served.number))
    assert found == expected
    # With a Node of today, one test of its own expects a number that it is not given any more.
    assert list(expected.values()).count("passes") >= 53
    assert list(expected.values()).count("failures") <= 1
